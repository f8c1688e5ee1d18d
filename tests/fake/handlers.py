"""The state of the fake cluster, and its response to each request."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any

from kafka.protocol import consumer, metadata

from spark_group_source.group.consumer_messages import ConsumerGroupHeartbeatRequest
from spark_group_source.wire.versions import GROUP_VERSION
from tests.fake import group_responses, leader_epochs
from tests.fake.classic_group import EMPTY, INCONSISTENT_PROTOCOL, NOT_COORDINATOR, UNKNOWN_MEMBER
from tests.fake.consumer_group import JOIN, UNKNOWN_GROUP, UNSUPPORTED_VERSION, invalid
from tests.fake.group import CLASSIC, CONSUMER, FakeGroup
from tests.fake.group_responses import UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, Commit, Removal
from tests.fake.log import NOT_LEADER, FakeLog, fit
from tests.fake.releases import Offered
from tests.fake.server import REQUESTS, FakeBroker, Handler

LOADING, NO_COORDINATOR = 14, 15


@dataclass(frozen=True)
class View:
    """What a broker knows: topics with their ids, leaders and leader epochs, and the coordinator, or 0 for none."""

    topics: dict[str, tuple[uuid.UUID, dict[int, tuple[int | None, int]]]]
    coordinator: int


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
        self.offered: dict[int, Offered] = {}
        """What a broker offers, if it is not all versions that the fake knows."""
        self._max_metadata = max_metadata
        self._group_version = group_version
        self.heartbeat_interval = heartbeat_interval
        self.session_timeout = session_timeout
        self._loading_until = 0.0
        self._frozen: dict[int, View] = {}
        self._changed = threading.Condition()
        self._groups: dict[str, FakeGroup] = {}

    def group(self, group: str) -> FakeGroup:
        """Returns the state of a group. Tests may read it only."""
        if group not in self._groups:

            def removed(at: float, member_id: str, why: str) -> None:
                self.removals.append(Removal(at, group, member_id, why))

            self._groups[group] = FakeGroup(self._changed, removed)
        return self._groups[group]

    def _view(self, node: int) -> View:
        """What this broker knows of the cluster."""
        return self._frozen.get(node) or View(
            {
                name: (self.ids[name], {number: (log.leader, log.epoch) for number, log in logs.items()})
                for name, logs in self.logs.items()
            },
            self.coordinator,
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
        api_version = metadata.ApiVersionsResponse.ApiVersion
        known = {key: (0, each.max_version) for key, each in REQUESTS.items()}
        offered = self.offered.get(node, known)
        response.api_keys = [
            api_version(api_key=key, min_version=lowest, max_version=min(highest, known[key][1]))
            for key, (lowest, highest) in offered.items()
            if key in known
        ]
        if request.version > offered[request.API_KEY][1]:
            response.error_code, response.API_VERSION = UNSUPPORTED_VERSION, 0
        if self._group_version and ConsumerGroupHeartbeatRequest.API_KEY in offered:
            feature = metadata.ApiVersionsResponse.FinalizedFeatureKey
            level = self._group_version
            response.finalized_features_epoch = 1
            response.finalized_features = [
                feature(version=3, name=GROUP_VERSION, max_version_level=level, min_version_level=level)
            ]

    def _Metadata(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response_broker = metadata.MetadataResponse.MetadataResponseBroker
        response.brokers = [
            response_broker(node_id=broker.node, host="127.0.0.1", port=broker.port, rack=None)
            for broker in self.brokers.values()
        ]
        topics = self._view(node).topics
        names = sorted(topics) if request.topics is None else [topic.name for topic in request.topics]
        response.topics = [_topic_metadata(name, *topics.get(name, (None, {}))) for name in names]

    def _SaslHandshake(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.error_code, response.mechanisms = error, ["PLAIN"]

    def _SaslAuthenticate(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.error_code, response.error_message = error, None
        response.auth_bytes, response.session_lifetime_ms = b"", 0

    def _FindCoordinator(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        broker = self.brokers.get(self._view(node).coordinator)
        coordinator = metadata.FindCoordinatorResponse.Coordinator
        found = coordinator(key="".join(request.coordinator_keys), error_code=0 if broker else NO_COORDINATOR)
        found.node_id, found.host, found.port = (broker.node, "127.0.0.1", broker.port) if broker else (-1, "", -1)
        response.coordinators = [found]
        response.error_code, response.node_id, response.host, response.port = (
            found.error_code,
            found.node_id,
            found.host,
            found.port,
        )

    def _coordinator_error(self, node: int) -> int:
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
        response.error_code = error or self._coordinator_error(node)
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
        response.assignment = b""
        if group := self._coordinated(request, response, node, error):
            group.classic.sync(request, response)

    def _Heartbeat(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        if group := self._coordinated(request, response, node, error):
            group.classic.heartbeat(request, response)

    def _LeaveGroup(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.members = []
        if group := self._coordinated(request, response, node, error):
            response_member = consumer.LeaveGroupResponse.MemberResponse
            only = consumer.LeaveGroupRequest.MemberIdentity(member_id=request.member_id, group_instance_id=None)
            members = request.members if request.version >= 3 else [only]
            errors = group.classic.leave((each.member_id, each.group_instance_id) for each in members)
            if request.version < 3:
                (response.error_code,) = errors
            response.members = [
                response_member(
                    member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error_code
                )
                for each, error_code in zip(members, errors, strict=True)
            ]

    def _ConsumerGroupHeartbeat(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.heartbeat_interval_ms = round(self.heartbeat_interval * 1000)
        if group := self._coordinated(request, response, node, error):
            if not self._group_version:
                response.error_code = UNSUPPORTED_VERSION
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
        error_code = error or self._coordinator_error(node)
        names = {topic_id: name for name, topic_id in self.ids.items()}
        response.groups = [
            group_responses.describe_consumer(name, self._current(name), names, error_code)
            for name in request.group_ids
        ]

    def _DescribeGroups(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        name = request.groups[0]
        response.groups = [group_responses.describe(name, self._current(name), error or self._coordinator_error(node))]

    def _OffsetCommit(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        group = self._current(request.group_id)

        def group_error() -> int:
            return error or self._coordinator_error(node) or group.commit_error(request)

        topics = self._view(node).topics
        response.topics, partitions, error_code = group_responses.commit(
            request, group, topics, group_error, self._max_metadata
        )
        member = request.group_id, request.member_id, request.generation_id_or_member_epoch
        offsets = {tp: each.offset for tp, each in partitions.items()}
        text = "|".join(sorted({each.metadata for each in partitions.values()}))
        self.commits.append(Commit(*member, offsets, text, error_code, node, time.monotonic(), partitions))

    def _OffsetFetch(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        requested = request.groups[0] if request.version >= 8 else request
        group = self._current(requested.group_id)
        error_code = error or self._coordinator_error(node)
        if not error_code and group.kind == CONSUMER:
            member_id, epoch = (requested.member_id, requested.member_epoch) if request.version >= 9 else (None, -1)
            if member_id is not None or epoch >= 0:
                error_code = group.consumer.member_error(member_id or "", epoch)
        found = group_responses.fetch_offsets(requested, group, error_code)
        response.groups, response.topics, response.error_code = [found], found.topics, error_code

    def _ListOffsets(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response_topic = consumer.ListOffsetsResponse.ListOffsetsTopicResponse
        response.topics = []
        known = self._frozen[node].topics if node in self._frozen else self.logs
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                log = self.logs.get(topic.name, {}).get(partition.partition_index) if topic.name in known else None
                if log is None or log.leader != node:
                    error_code, offset, epoch = (UNKNOWN_TOPIC if log is None else NOT_LEADER), -1, -1
                elif not (error_code := log.epoch_error(partition.current_leader_epoch)):
                    offset, epoch = log.list_offset(partition.timestamp, request.isolation_level)
                partitions.append(
                    response_topic.ListOffsetsPartitionResponse(
                        version=7,
                        partition_index=partition.partition_index,
                        error_code=error_code,
                        timestamp=-1,
                        offset=-1 if error_code else offset,
                        leader_epoch=-1 if error_code else epoch,
                    )
                )
            response.topics.append(response_topic(version=7, name=topic.name, partitions=partitions))

    def _OffsetForLeaderEpoch(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response.topics = [
            leader_epochs.epoch_ends(topic, self.logs.get(topic.topic, {}), node) for topic in request.topics
        ]

    def _Fetch(self, request: Any, response: Any, node: int, error: int) -> None:  # noqa: N802
        response_topic = consumer.FetchResponse.FetchableTopicResponse
        by_id = request.version >= 13
        name_of = {str(topic_id): name for name, topic_id in self.ids.items()} if by_id else {n: n for n in self.ids}
        response.error_code, response.session_id, response.responses = 0, 0, []
        deadline = time.monotonic() + request.max_wait_ms / 1000
        while not error and not self._has_response(request, name_of) and time.monotonic() < deadline:
            self._changed.wait(max(0.0, deadline - time.monotonic()))
        left, empty = request.max_bytes, True
        for topic in request.topics:
            name = name_of.get(str(topic.topic_id) if by_id else topic.topic)
            partitions = [self._fetch_partition(name, each, node, request) for each in topic.partitions]
            for requested, data in zip(topic.partitions, partitions, strict=True):
                data.records = fit(data.records, min(requested.partition_max_bytes, left), first=empty)
                left, empty = max(0, left - len(data.records)), empty and not data.records
            response.responses.append(response_topic(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions))

    def _has_response(self, request: Any, name_of: dict[str, str]) -> bool:
        for topic in request.topics:
            logs = self.logs.get(name_of.get(str(topic.topic_id) if request.version >= 13 else topic.topic, ""), {})
            for partition in topic.partitions:
                log = logs.get(partition.partition)
                if log is None or log.has_response(partition.fetch_offset, request.isolation_level):
                    return True
        return False

    def _fetch_partition(self, name: str | None, requested: Any, node: int, request: Any) -> Any:
        partition_data = consumer.FetchResponse.FetchableTopicResponse.PartitionData
        log = self.logs.get(name or "", {}).get(requested.partition)
        data = partition_data(
            version=13, partition_index=requested.partition, error_code=0, high_watermark=-1, records=b""
        )
        data.aborted_transactions = None
        if name is None or log is None:
            data.error_code = UNKNOWN_TOPIC_ID if name is None and request.version >= 13 else UNKNOWN_TOPIC
            data.aborted_transactions = []
        else:
            log.fetch(requested, node, request.rack_id, request.isolation_level, data)
        return data


def _empty_response(request: Any) -> Any:
    response_class = request.header.get_response_class()
    throttled = "throttle_time_ms" in response_class._struct.fields
    return response_class(throttle_time_ms=0) if throttled else response_class()


def _topic_metadata(name: str, topic_id: uuid.UUID | None, leaders: dict[int, tuple[int | None, int]]) -> Any:
    response_topic = metadata.MetadataResponse.MetadataResponseTopic
    response_partition = response_topic.MetadataResponsePartition
    partitions = [
        response_partition(version=12, partition_index=number, leader_id=leader or -1, leader_epoch=epoch)
        for number, (leader, epoch) in leaders.items()
    ]
    for partition in partitions:
        partition.replica_nodes = partition.isr_nodes = partition.offline_replicas = []
    error, topic_id = (UNKNOWN_TOPIC, uuid.UUID(int=0)) if topic_id is None else (0, topic_id)
    return response_topic(version=12, error_code=error, name=name, topic_id=topic_id, partitions=partitions)
