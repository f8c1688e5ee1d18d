"""The state of the fake cluster, and its response to each request."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import FetchResponse, LeaveGroupRequest

from spark_group_source.group.consumer.messages import ConsumerGroupHeartbeatRequest
from spark_group_source.wire.versions import GROUP_VERSION
from tests.fake.classic_group import EMPTY, INCONSISTENT_PROTOCOL, NOT_COORDINATOR, UNKNOWN_MEMBER
from tests.fake.consumer_group import JOIN, UNKNOWN_GROUP, UNSUPPORTED_VERSION, invalid
from tests.fake.group import CLASSIC, CONSUMER, Commit, FakeGroup, Partition, PartitionCommit, Removal
from tests.fake.log import NOT_LEADER, FakeLog, fit
from tests.fake.releases import Offered
from tests.fake.server import REQUESTS, FakeBroker, Handler, fill

LOADING, NO_COORDINATOR = 14, 15
UNKNOWN_TOPIC, METADATA_TOO_LARGE, UNKNOWN_TOPIC_ID = 3, 12, 100
TOPIC_DENIED, GROUP_DENIED, READ, DESCRIBE = 29, 30, 3, 8
PartitionData = FetchResponse.FetchableTopicResponse.PartitionData


@dataclass(frozen=True)
class View:
    """What a broker knows: topics with their ids, leaders and leader epochs, the coordinator, or 0 for none, and the
    brokers that the controller has not heard of for long."""

    topics: dict[str, tuple[uuid.UUID, dict[int, tuple[int | None, int]]]]
    coordinator: int
    fenced: frozenset[int]


class RequestHandlers:
    """Topics, logs and groups, and one method for each API. ``error`` is the code that a fault demands, or 0."""

    def __init__(
        self, max_metadata: int, group_version: int, heartbeat_interval: float, session_timeout: float
    ) -> None:
        self.requests: list[tuple[str, int, Any]] = []
        self.commits: list[Commit] = []
        self.removals: list[Removal] = []
        self.logs: dict[str, dict[int, FakeLog]] = {}
        self.ids: dict[str, uuid.UUID] = {}
        self.coordinator = 1
        self.former_coordinators: set[int] = set()
        """Brokers that do not know yet that they are none any more: they still answer."""
        self.brokers: dict[int, FakeBroker] = {}
        self.fenced: set[int] = set()
        """Brokers that metadata does not name."""
        self.denied: dict[str, int] = {}
        """Topics that clients may not read (:data:`READ`), or not even describe (:data:`DESCRIBE`)."""
        self.denied_groups: set[str] = set()
        """Groups that clients may not read."""
        self.offered: dict[int, Offered] = {}
        """What a broker offers, if it is not all versions that the fake knows."""
        self.cluster_id: str | None = f"fake-{uuid.uuid4()}"
        self.max_metadata = max_metadata
        self._group_version = group_version
        self.heartbeat_interval = heartbeat_interval
        self.session_timeout = session_timeout
        self._loading_until = 0.0
        self._frozen: dict[int, View] = {}
        self._deleted_late: set[str] = set()
        """Topics of which the coordinator has yet to learn that they were deleted."""
        self._changed = threading.Condition()
        self._groups: dict[str, FakeGroup] = {}

    def group(self, group: str) -> FakeGroup:
        """Returns the state of a group. Tests may read it only."""
        if group not in self._groups:

            def removed(at: float, member_id: str, why: str) -> None:
                self.removals.append(Removal(at, group, member_id, why))

            self._groups[group] = FakeGroup(self._changed, removed)
        return self._groups[group]

    def names(self) -> dict[uuid.UUID, str]:
        """The topics that exist now, by their ids."""
        return {topic_id: name for name, topic_id in self.ids.items()}

    def _view(self, node: int) -> View:
        """What this broker knows of the cluster."""
        return self._frozen.get(node) or View(
            {
                name: (self.ids[name], {number: (log.leader, log.epoch) for number, log in logs.items()})
                for name, logs in self.logs.items()
            },
            self.coordinator,
            frozenset(self.fenced),
        )

    def _handler(self, node: int) -> Handler:
        def handle(api: str, request: Any, error: int) -> Any:
            lowest, highest = self.offered.get(node, {}).get(request.API_KEY, (0, 2**15))
            assert api == "ApiVersions" or lowest <= request.version <= highest, f"broker {node} got {request}"
            response = _empty_response(request)
            with self._changed:
                self.requests.append((api, node, request))
                getattr(self, f"_{api}")(request, response, node, error)
            return None if getattr(response, "error_code", 0) is None else response

        return handle

    def _ApiVersions(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        known = {key: (0, each.max_version) for key, each in REQUESTS.items()}
        offered = self.offered.get(node, known)
        keys = [
            {"api_key": key, "min_version": lowest, "max_version": min(highest, known[key][1])}
            for key, (lowest, highest) in offered.items()
            if key in known
        ]
        fill(response, api_keys=keys)
        if request.version > offered[request.API_KEY][1]:
            response.error_code, response.API_VERSION = UNSUPPORTED_VERSION, 0
        if (level := self._group_version) and ConsumerGroupHeartbeatRequest.API_KEY in offered:
            feature = {"name": GROUP_VERSION, "max_version_level": level, "min_version_level": level}
            fill(response, finalized_features_epoch=1, finalized_features=[feature])

    def _Metadata(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        view = self._view(node)
        brokers = [
            {"node_id": broker.node, "host": "127.0.0.1", "port": broker.port, "rack": None}
            for broker in self.brokers.values()
            if broker.node not in view.fenced
        ]
        topics = view.topics
        visible = sorted(name for name in topics if self.denied.get(name) != DESCRIBE)
        names = visible if request.topics is None else [topic.name for topic in request.topics]
        found = [_topic_metadata(name, *topics.get(name, (None, {}))) for name in names]
        for topic in found:
            denied = self.denied.get(topic["name"])
            if denied == DESCRIBE:
                topic |= {"error_code": TOPIC_DENIED, "topic_id": uuid.UUID(int=0), "partitions": []}
            elif request.include_topic_authorized_operations:
                topic["authorized_operations"] = {DESCRIBE} if denied else {READ, DESCRIBE}
        fill(response, brokers=brokers, topics=found, cluster_id=self.cluster_id)

    _ClusterId = _Metadata

    def _SaslHandshake(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.error_code, response.mechanisms = error, ["PLAIN"]

    def _SaslAuthenticate(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.error_code, response.error_message = error, None

    def _FindCoordinator(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        broker = self.brokers.get(self._view(node).coordinator)
        place = (broker.node, "127.0.0.1", broker.port) if broker else (-1, "", -1)
        found = dict(zip(("node_id", "host", "port"), place, strict=True))
        found |= {"error_code": 0 if broker else NO_COORDINATOR}
        group = request.key or "".join(request.coordinator_keys)
        if group in self.denied_groups:
            found["error_code"] = GROUP_DENIED
        fill(response, **found, coordinators=[{"key": "".join(request.coordinator_keys), **found}])

    def _coordinator_error(self, group: str, node: int) -> int:
        if group in self.denied_groups:  # brokers check the permission before anything else
            return GROUP_DENIED
        if node != self.coordinator and node not in self.former_coordinators:
            return NOT_COORDINATOR
        return LOADING if node == self.coordinator and time.monotonic() < self._loading_until else 0

    def _current(self, group: str) -> FakeGroup:
        """The group as it is now: first, what was due by now happens."""
        found = self.group(group)
        found.advance(time.monotonic())
        return found

    def _coordinated(self, request: Any, response: Any, node: int, error: int) -> FakeGroup | None:
        """Sets the error code; returns the group if this broker coordinates it and no fault demands an error."""
        response.error_code = error or self._coordinator_error(request.group_id, node)
        if error == UNKNOWN_MEMBER:
            # A coordinator that returns this code does not wait for the member.
            self._current(request.group_id).expire(getattr(request, "member_id", ""), time.monotonic())
        return None if response.error_code else self._current(request.group_id)

    def _JoinGroup(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.protocol_name, response.leader, response.member_id, response.members = None, "", request.member_id, []
        if group := self._coordinated(request, response, node, error):
            if group.consumer.members:
                response.error_code = INCONSISTENT_PROTOCOL
                return
            if not request.member_id:
                group.become(CLASSIC)
            group.classic.join(request, response)

    def _SyncGroup(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        if group := self._coordinated(request, response, node, error):
            group.classic.sync(request, response)

    def _Heartbeat(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        if group := self._coordinated(request, response, node, error):
            group.classic.heartbeat(request, response)

    def _LeaveGroup(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.members = []
        if group := self._coordinated(request, response, node, error):
            only = LeaveGroupRequest.MemberIdentity(member_id=request.member_id, group_instance_id=None)
            identities = request.members if request.version >= 3 else [only]
            leaving = [(each.member_id, each.group_instance_id) for each in identities]
            errors = group.classic.leave(leaving)
            if request.version < 3:
                (response.error_code,) = errors
            members = [
                {"member_id": member_id, "group_instance_id": instance, "error_code": error_code}
                for (member_id, instance), error_code in zip(leaving, errors, strict=True)
            ]
            fill(response, members=members)

    def _ConsumerGroupHeartbeat(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.heartbeat_interval_ms = round(self.heartbeat_interval * 1000)
        if group := self._coordinated(request, response, node, error):
            if not self._group_version:
                response.error_code = UNSUPPORTED_VERSION
            elif DESCRIBE in map(self.denied.get, request.subscribed_topic_names or ()):
                response.error_code = TOPIC_DENIED
            elif error_code := invalid(request):
                response.error_code = error_code
            elif group.classic.state != EMPTY or (group.kind != CONSUMER and request.member_epoch != JOIN):
                response.error_code = UNKNOWN_GROUP
            else:
                group.become(CONSUMER)
                group.consumer.session_timeout = self.session_timeout
                topics = {name: (self.ids[name], len(logs)) for name, logs in self.logs.items()}
                group.consumer.heartbeat(request, response, topics)

    def _ConsumerGroupDescribe(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        names = self.names()
        groups = []
        for name in request.group_ids:
            error_code = error or self._coordinator_error(name, node)
            groups.append(self._current(name).describe_consumer(name, names, error_code))
        fill(response, groups=groups)

    def _DescribeGroups(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        name = request.groups[0]
        error_code = error or self._coordinator_error(name, node)
        fill(response, groups=[self._current(name).describe(name, error_code)])

    def _ListGroups(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        groups = []
        if node == self.coordinator:
            groups = [{"group_id": name, "protocol_type": "consumer"} for name in self._groups]
        fill(response, error_code=error, groups=groups)

    def _OffsetCommit(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        group, topics = self._current(request.group_id), self._view(node).topics
        by_id = request.version >= 10
        names = {topic_id: name for name, (topic_id, _) in topics.items()} if by_id else {}
        # The coordinator sees only partitions that exist, and nothing of a request without any.
        group_error: int | None = None
        commits: dict[Partition, PartitionCommit] = {}
        answered: list[dict[str, Any]] = []
        for topic in request.topics:
            name = names.get(topic.topic_id, "") if by_id else topic.name
            topic_id, numbers = topics.get(name, (None, {}))
            partitions: list[dict[str, int]] = []
            for part in topic.partitions:
                tp, offset, epoch = (name, part.partition_index), part.committed_offset, part.committed_leader_epoch
                text = part.committed_metadata or ""
                if part.partition_index not in numbers:
                    error_code = UNKNOWN_TOPIC_ID if by_id and not name else UNKNOWN_TOPIC
                elif name in self.denied:
                    error_code = TOPIC_DENIED
                else:
                    if group_error is None:
                        group_error = error or self._coordinator_error(request.group_id, node)
                        group_error = group_error or group.commit_error(request)
                    error_code = group_error or (METADATA_TOO_LARGE if len(text) > self.max_metadata else 0)
                if not error_code:
                    group.kind = group.kind or CLASSIC
                    group.offsets[tp], group.epochs[tp] = (offset, text), epoch
                commits[tp] = PartitionCommit(topic_id, offset, text, epoch, error_code)
                partitions.append({"partition_index": part.partition_index, "error_code": error_code})
            identity = {"topic_id": topic.topic_id} if by_id else {"name": name}
            answered.append({"partitions": partitions, **identity})
        fill(response, topics=answered)
        member = request.group_id, request.member_id, request.generation_id_or_member_epoch
        offsets = {tp: each.offset for tp, each in commits.items()}
        text = "|".join(sorted({each.metadata for each in commits.values()}))
        self.commits.append(Commit(*member, offsets, text, group_error or 0, node, time.monotonic(), commits))

    def _OffsetFetch(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        requested = request.groups[0] if request.version >= 8 else request
        group = self._current(requested.group_id)
        error_code = error or self._coordinator_error(requested.group_id, node)
        if not error_code and group.kind == CONSUMER:
            member_id, epoch = (requested.member_id, requested.member_epoch) if request.version >= 9 else (None, -1)
            if member_id is not None or epoch >= 0:
                error_code = group.consumer.member_error(member_id or "", epoch)
        found = group.fetch_offsets(requested, error_code)
        for topic in found["topics"]:
            if self.denied.get(topic["name"]) == DESCRIBE:
                for part in topic["partitions"]:
                    part |= {"committed_offset": -1, "metadata": "", "error_code": TOPIC_DENIED}
        fill(response, groups=[found], topics=found["topics"], error_code=error_code)

    def _log(self, name: str, number: int, node: int) -> tuple[FakeLog | None, int]:
        """The log of a partition that this broker leads; otherwise the error code."""
        if self.denied.get(name) == DESCRIBE:
            return None, TOPIC_DENIED
        known = node not in self._frozen or name in self._frozen[node].topics
        log = self.logs.get(name, {}).get(number) if known else None
        if log is None or log.leader != node:
            return None, UNKNOWN_TOPIC if log is None else NOT_LEADER
        return log, 0

    def _ListOffsets(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        def found(name: str, asked: Any) -> dict[str, int]:
            log, error_code = self._log(name, asked.partition_index, node)
            offset, epoch = -1, -1
            if log and not (error_code := log.epoch_error(asked.current_leader_epoch)):
                offset, epoch = log.list_offset(asked.timestamp, request.isolation_level)
            position = {"offset": offset, "leader_epoch": epoch}
            return {"partition_index": asked.partition_index, "error_code": error_code, **position}

        topics = [(each.name, [found(each.name, asked) for asked in each.partitions]) for each in request.topics]
        fill(response, topics=[{"name": name, "partitions": partitions} for name, partitions in topics])

    def _OffsetForLeaderEpoch(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        def found(name: str, asked: Any) -> dict[str, int]:
            log, error_code = self._log(name, asked.partition, node)
            epoch, end = -1, -1
            if log and not (error_code := log.epoch_error(asked.current_leader_epoch)):
                epoch, end = log.epoch_end(asked.leader_epoch)
            return {"partition": asked.partition, "error_code": error_code, "leader_epoch": epoch, "end_offset": end}

        topics = [(each.topic, [found(each.topic, asked) for asked in each.partitions]) for each in request.topics]
        fill(response, topics=[{"topic": name, "partitions": partitions} for name, partitions in topics])

    def _Fetch(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while not error and not self._has_response(request) and time.monotonic() < deadline:
            self._changed.wait(max(0.0, deadline - time.monotonic()))
        left, empty = request.max_bytes, True
        topics = []
        for topic in request.topics:
            name = self._topic_name(topic, request)
            partitions = [self._fetch_partition(name, each, node, request) for each in topic.partitions]
            for requested, data in zip(topic.partitions, partitions, strict=True):
                data.records = fit(data.records, min(requested.partition_max_bytes, left), first=empty)
                left, empty = max(0, left - len(data.records)), empty and not data.records
            topics.append({"topic": topic.topic, "topic_id": topic.topic_id, "partitions": partitions})
        fill(response, error_code=0, session_id=0, responses=topics)

    def _topic_name(self, topic: Any, request: Any) -> str | None:
        """The topic that is fetched, if it exists now: it may be deleted during the wait for records."""
        if request.version < 13:
            return topic.topic if topic.topic in self.ids else None
        return self.names().get(topic.topic_id)

    def _has_response(self, request: Any) -> bool:
        for topic in request.topics:
            logs = self.logs.get(self._topic_name(topic, request) or "", {})
            for partition in topic.partitions:
                log = logs.get(partition.partition)
                if log is None or log.has_response(partition.fetch_offset, request.isolation_level):
                    return True
        return False

    def _fetch_partition(self, name: str | None, requested: Any, node: int, request: Any) -> Any:
        log = self.logs.get(name or "", {}).get(requested.partition)
        data = PartitionData(version=13, partition_index=requested.partition, high_watermark=-1)
        data.aborted_transactions = None
        if name is None or log is None:
            data.error_code = UNKNOWN_TOPIC_ID if name is None and request.version >= 13 else UNKNOWN_TOPIC
            data.aborted_transactions = []
        elif name in self.denied:
            data.error_code = TOPIC_DENIED
        else:
            log.fetch(requested, node, request.rack_id, request.isolation_level, data)
        return data


def _empty_response(request: Any) -> Any:
    response_class = request.header.get_response_class()[None]
    throttled = {"throttle_time_ms": 0} if "throttle_time_ms" in response_class._struct.fields else {}
    return response_class(version=request.header.request_api_version, **throttled)


def _topic_metadata(name: str, topic_id: uuid.UUID | None, leaders: Mapping[int, tuple[int | None, int]]) -> Any:
    partitions = [
        {"partition_index": number, "leader_id": leader or -1, "leader_epoch": epoch}
        for number, (leader, epoch) in leaders.items()
    ]
    error, topic_id = (UNKNOWN_TOPIC, uuid.UUID(int=0)) if topic_id is None else (0, topic_id)
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": partitions}
