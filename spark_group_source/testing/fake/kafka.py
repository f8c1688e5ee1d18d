"""The fake cluster: topics, logs and groups, and what answers each request."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from kafka.protocol import consumer, metadata
from kafka.record.default_records import DefaultRecordBatchBuilder

from spark_group_source.testing.fake import group_answers, leader_epochs
from spark_group_source.testing.fake.faults import Fault, Faults
from spark_group_source.testing.fake.group import UNKNOWN_MEMBER, FakeGroup
from spark_group_source.testing.fake.group_answers import UNKNOWN_TOPIC, Commit, Partition
from spark_group_source.testing.fake.log import NOT_LEADER, FakeLog
from spark_group_source.testing.fake.server import REQUESTS, FakeBroker

NOT_COORDINATOR, UNKNOWN_TOPIC_ID = 16, 100
MAX_METADATA = 4096


class FakeKafka:
    """A cluster of fake brokers, numbered from 1. All that happened is in ``requests`` and ``commits``, in order."""

    def __init__(self, brokers: int = 1, max_metadata: int = MAX_METADATA) -> None:
        self.requests: list[tuple[str, int, Any]] = []
        self.commits: list[Commit] = []
        self.logs: dict[str, dict[int, FakeLog]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.coordinator = 1
        self._max_metadata = max_metadata
        self._faults = Faults()
        self._changed = threading.Condition()
        self._groups: dict[str, FakeGroup] = {}
        self.brokers = {node: FakeBroker(node, self._handler(node), self._faults) for node in range(1, brokers + 1)}

    def __enter__(self) -> FakeKafka:
        for each in self.brokers.values():
            each.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            for group in self._groups.values():
                group.closed = True
            self._changed.notify_all()
        for each in self.brokers.values():
            each.stop()
        for each in self.brokers.values():
            each.join()

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, as ``kafka.bootstrap.servers`` takes them."""
        return ",".join(f"127.0.0.1:{each.port}" for each in self.brokers.values())

    # What tests do to it

    def next(self, api: str, fault: Fault, times: int = 1) -> None:
        """The next ``times`` requests of ``api``, for example ``Heartbeat``, meet ``fault``."""
        self._faults.add(api, fault, times)

    def clear_faults(self) -> None:
        """Faults that have not happened yet do not happen."""
        self._faults.clear()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Creates a topic, or adds partitions; leaders are the brokers in turn."""
        with self._changed:
            self.ids.setdefault(name, uuid.uuid4())
            logs = self.logs.setdefault(name, {})
            for number in range(len(logs), partitions):
                logs[number] = FakeLog(1 + number % len(self.brokers))
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic, and what groups have committed of it; one created anew has another id."""
        with self._changed:
            del self.logs[name], self.ids[name]
            for group in self._groups.values():
                group.offsets = {tp: each for tp, each in group.offsets.items() if tp[0] != name}

    def produce(self, topic: str, rows: Iterable[str], partition: int = 0, timestamp: int = 1_700_000_000_000) -> None:
        """Appends a batch of records, all of the time ``timestamp`` in milliseconds."""
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, 0, 2**30)
        values = [row.encode() for row in rows]
        for number, value in enumerate(values):
            builder.append(number, timestamp, None, value, [])
        self.append(topic, partition, bytes(builder.build()), len(values))

    def append(self, topic: str, partition: int, batch: bytes, offsets: int) -> None:
        """Appends a batch as it is, over that many offsets; its base offset is set, which no checksum covers."""
        with self._changed:
            self.logs[topic][partition].append(batch, offsets)
            self._changed.notify_all()

    def truncate(self, topic: str, partition: int, start: int) -> None:
        """Deletes records before ``start``, as retention does."""
        with self._changed:
            self.logs[topic][partition].truncate(start)

    def elect(self, topic: str, partition: int = 0, end: int | None = None, leader: int | None = None) -> None:
        """Elects a leader, by default the same broker again. An unclean election leaves the records before ``end``."""
        with self._changed:
            self.logs[topic][partition].elect(leader, end)
            self._changed.notify_all()

    def asked(self, api: str) -> int:
        """How many requests of this kind have come."""
        return sum(each == api for each, _, _ in self.requests)

    def group(self, group: str) -> FakeGroup:
        """The state of a group; only to be looked at."""
        return self._groups.setdefault(group, FakeGroup(self._changed))

    def commit(self, group: str, offsets: dict[Partition, int], metadata: str = "", epoch: int = -1) -> None:
        """Sets offsets as an operator does."""
        with self._changed:
            self.group(group).offsets |= {tp: (offset, metadata) for tp, offset in offsets.items()}
            self.group(group).epochs |= dict.fromkeys(offsets, epoch)

    def expire(self, group: str, member_id: str) -> None:
        """A member's session ends."""
        with self._changed:
            self.group(group).remove(member_id)

    # What it answers

    def _handler(self, node: int) -> Any:
        def handle(api: str, request: Any, error: int) -> Any:
            answer = _response_of(request)
            with self._changed:
                self.requests.append((api, node, request))
                getattr(self, f"_{api}")(request, answer, node, error)
            return answer

        return handle

    def _ApiVersions(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        spoken = metadata.ApiVersionsResponse.ApiVersion
        answer.api_keys = [
            spoken(version=3, api_key=key, min_version=0, max_version=each.max_version)
            for key, each in REQUESTS.items()
        ]

    def _Metadata(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        broker = metadata.MetadataResponse.MetadataResponseBroker
        answer.brokers = [
            broker(version=12, node_id=each.node, host="127.0.0.1", port=each.port, rack=None)
            for each in self.brokers.values()
        ]
        names = sorted(self.logs) if request.topics is None else [each.name for each in request.topics]
        answer.topics = [self._described(name) for name in names]

    def _described(self, name: str) -> Any:
        topic = metadata.MetadataResponse.MetadataResponseTopic
        part = topic.MetadataResponsePartition
        partitions = [
            part(version=12, partition_index=number, leader_id=log.leader or -1, leader_epoch=log.epoch)
            for number, log in self.logs.get(name, {}).items()
        ]
        for each in partitions:
            each.replica_nodes = each.isr_nodes = each.offline_replicas = []
        known = name in self.logs
        topic_id = self.ids[name] if known else uuid.UUID(int=0)
        error = 0 if known else UNKNOWN_TOPIC
        return topic(version=12, error_code=error, name=name, topic_id=topic_id, partitions=partitions)

    def _SaslHandshake(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        answer.error_code, answer.mechanisms = error, ["PLAIN"]

    def _SaslAuthenticate(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        answer.error_code, answer.error_message, answer.auth_bytes, answer.session_lifetime_ms = error, None, b"", 0

    def _FindCoordinator(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        found = self.brokers[self.coordinator]
        coordinator = metadata.FindCoordinatorResponse.Coordinator
        key = request.coordinator_keys[0]
        answer.coordinators = [
            coordinator(version=4, key=key, node_id=found.node, host="127.0.0.1", port=found.port, error_code=0)
        ]

    def _misplaced(self, node: int) -> int:
        return 0 if node == self.coordinator else NOT_COORDINATOR

    def _coordinated(self, request: Any, answer: Any, node: int, error: int) -> FakeGroup | None:
        """The group, where this broker coordinates it and no error was ordered."""
        answer.error_code = error or self._misplaced(node)
        if error == UNKNOWN_MEMBER:
            # A coordinator that says so does not wait for that member.
            self.group(request.group_id).remove(getattr(request, "member_id", ""))
        return None if answer.error_code else self.group(request.group_id)

    def _JoinGroup(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        answer.protocol_name, answer.leader, answer.member_id, answer.members = "", "", request.member_id, []
        if group := self._coordinated(request, answer, node, error):
            group.join(request, answer)

    def _SyncGroup(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        answer.assignment = b""
        if group := self._coordinated(request, answer, node, error):
            group.sync(request, answer)

    def _Heartbeat(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        if group := self._coordinated(request, answer, node, error):
            group.heartbeat(request, answer)

    def _LeaveGroup(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        answer.members = []
        if group := self._coordinated(request, answer, node, error):
            left = consumer.LeaveGroupResponse.MemberResponse
            answer.members = [
                left(version=5, member_id=each.member_id, error_code=group.remove(each.member_id))
                for each in request.members
            ]

    def _DescribeGroups(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        name = request.groups[0]
        answer.groups = [group_answers.described(name, self.group(name), error or self._misplaced(node))]

    def _OffsetCommit(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        group = self.group(request.group_id)
        refused = error or self._misplaced(node) or group.may_commit(request)
        answer.topics, commit = group_answers.committed(request, group, self.logs, refused, self._max_metadata)
        self.commits.append(commit)

    def _OffsetFetch(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        asked = request.groups[0]
        group = self.group(asked.group_id)
        answer.groups = [group_answers.offsets(asked, group, error or self._misplaced(node))]

    def _ListOffsets(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        topic_of = consumer.ListOffsetsResponse.ListOffsetsTopicResponse
        part_of = topic_of.ListOffsetsPartitionResponse
        answer.topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                log = self.logs.get(topic.name, {}).get(part.partition_index)
                if log is None or log.leader != node:
                    errno, offset = (UNKNOWN_TOPIC if log is None else NOT_LEADER), -1
                else:
                    errno, offset = 0, log.offset(part.timestamp, request.isolation_level == 1)
                parts.append(
                    part_of(
                        version=7,
                        partition_index=part.partition_index,
                        error_code=errno,
                        timestamp=-1,
                        offset=offset,
                        leader_epoch=log.epoch if log else -1,
                    )
                )
            answer.topics.append(topic_of(version=7, name=topic.name, partitions=parts))

    def _OffsetForLeaderEpoch(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        answer.topics = [leader_epochs.ends(topic, self.logs.get(topic.topic, {}), node) for topic in request.topics]

    def _Fetch(self, request: Any, answer: Any, node: int, error: int) -> None:  # noqa: N802
        topic_of = consumer.FetchResponse.FetchableTopicResponse
        by_id = {str(each): name for name, each in self.ids.items()}
        answer.error_code, answer.session_id, answer.responses = 0, 0, []
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while not error and not self._has_some(request, by_id) and time.monotonic() < deadline:
            self._changed.wait(max(0.0, deadline - time.monotonic()))
        for topic in request.topics:
            name = by_id.get(str(topic.topic_id))
            parts = [self._fetched(name, each, node, request.rack_id) for each in topic.partitions]
            answer.responses.append(topic_of(version=13, topic_id=topic.topic_id, partitions=parts))

    def _has_some(self, request: Any, by_id: dict[str, str]) -> bool:
        for topic in request.topics:
            logs = self.logs.get(by_id.get(str(topic.topic_id), ""), {})
            for part in topic.partitions:
                log = logs.get(part.partition)
                if log is None or log.answers(part.fetch_offset):
                    return True
        return False

    def _fetched(self, name: str | None, asked: Any, node: int, rack: str) -> Any:
        part_of = consumer.FetchResponse.FetchableTopicResponse.PartitionData
        log = self.logs.get(name or "", {}).get(asked.partition)
        told = part_of(version=13, partition_index=asked.partition, error_code=0, high_watermark=-1, records=b"")
        told.aborted_transactions = []
        if name is None or log is None:
            told.error_code = UNKNOWN_TOPIC_ID if name is None else UNKNOWN_TOPIC
        else:
            log.fetch(asked, node, rack, told)
        return told


def _response_of(request: Any) -> Any:
    answer = request.header.get_response_class()
    return answer(throttle_time_ms=0) if "throttle_time_ms" in answer._struct.fields else answer()
