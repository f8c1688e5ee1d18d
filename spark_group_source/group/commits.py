"""Fetches and commits a group's offsets at its coordinator.

One :class:`GroupOffsets` belongs to one thread.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any
from uuid import UUID

from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    FENCED_INSTANCE_ID,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    describe_error_code,
)
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.description import GroupDescription, describe
from spark_group_source.group.error_actions import ErrorAction, error_action
from spark_group_source.group.membership import NO_GENERATION, Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.json_text import parse_json
from spark_group_source.offsets import (
    NO_LINEAGE,
    UNKNOWN_EPOCH,
    Partitions,
    TopicPartition,
    may_be_same,
    numbers_by_topic,
    topics_of,
)
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connections import LOOKUPS
from spark_group_source.wire.metadata import Topic

COMMIT_TAG = "spark-group-source"
"""Start of the metadata of every commit of this source. ``kafka-consumer-groups --reset-offsets`` writes empty
metadata. An offset without the tag is the decision of an operator, and not an older commit of this source."""


RESET_TAG = f"{COMMIT_TAG} starting"
"""Start of the metadata after ``resetOffsetsOnStart`` has moved a partition, until Spark has logged a batch of the
partition. If the query dies before that, the tag keeps its restart from a second reset, which would skip the records
that arrived since."""


METADATA_TEXT = 500
"""Maximum length of a text in the metadata of a commit, in characters. JSON takes up to twelve bytes for each
character, and the metadata has at most 32,767 bytes in a request to a broker before Kafka 2.4."""


def commit_metadata(fields: Mapping[str, object], tag: str = COMMIT_TAG) -> str:
    """The metadata of a commit: the tag, then ``fields`` as JSON.

    The field ``start`` is the digest of JSON in ``startingOffsets``: the group started at these offsets. ``lineage`` is
    the lineage of the offset, if it has one. ``checkpoint`` is the id of the checkpoint that has logged the offset as
    the end of a batch.
    """
    if not fields:
        return tag
    shortened = dict(fields)
    for name, value in fields.items():
        if isinstance(value, str):
            shortened[name] = value[:METADATA_TEXT]
    return f"{tag} {json.dumps(shortened)}"


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a partition, with its metadata and leader epoch."""

    offset: int
    metadata: str = ""
    epoch: int = UNKNOWN_EPOCH

    @property
    def tagged(self) -> bool:
        """Whether this source wrote the commit."""
        return self.metadata.startswith(COMMIT_TAG)

    @property
    def tagged_reset(self) -> bool:
        """Whether the commit shows a reset by ``resetOffsetsOnStart`` that no logged batch contained yet."""
        return self.metadata.startswith(RESET_TAG)

    @property
    def lineage(self) -> int:
        """The lineage of the commit."""
        lineage = self._fields.get("lineage", NO_LINEAGE)
        if not isinstance(lineage, int):
            return NO_LINEAGE
        return lineage

    @property
    def checkpoint(self) -> str:
        """The id of the checkpoint that has logged the offset as the end of a batch; empty if none is known."""
        return str(self._fields.get("checkpoint", ""))

    def started_at(self, digest: str) -> bool:
        """Whether the query that wrote the commit has the ``startingOffsets`` with this digest."""
        return self._fields.get("start") == digest

    @property
    def _fields(self) -> Mapping[str, Any]:
        if not self.tagged:
            return {}
        try:
            fields = parse_json(self.metadata[self.metadata.index("{") :])
        except ValueError:  # there is only the tag
            return {}
        if not isinstance(fields, dict):
            return {}
        return fields


NO_MEMBERS = (
    "With 'assign' a query can commit only to a group without members: give this query its own 'kafka.group.id', or"
    " stop the members"
)


COMMIT_BYTES = 2**17
"""Maximum bytes of one request's offsets in the coordinator's log, where they form one record batch: an eighth of the
brokers' default ``message.max.bytes``, about 1,000 partitions. A broker rejects a larger request at every retry."""

RECORD_BYTES = 64
"""Bytes of one partition's offset in the coordinator's log, in addition to the names and the metadata."""


ERRORS_OF_ONE_PARTITION = {
    UNKNOWN_TOPIC_OR_PARTITION,
    TOPIC_AUTHORIZATION_FAILED,
    UNSTABLE_OFFSET_COMMIT,
    UNKNOWN_TOPIC_ID,
}
"""Error codes of one partition. The coordinator still returns the offsets of the other partitions."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: the confirmed partitions, the errors by partition, and the partitions without an answer.

    ``failure`` is an error of the request as a whole. The coordinator may still apply the commits of ``unanswered``
    partitions, even after later commits.
    """

    confirmed: Partitions = frozenset()
    errors: Mapping[TopicPartition, int] = field(default_factory=dict)
    unanswered: Partitions = frozenset()
    failure: RequestFailed | None = None


def _is_of_partition(error_code: int) -> bool:
    """Whether the error code rejects the commit of one partition only, and the others are accepted."""
    if error_code == TOPIC_AUTHORIZATION_FAILED:
        return True
    return error_action(error_code) in (ErrorAction.SKIP, ErrorAction.TRIM_METADATA)


class GroupOffsets:
    """Fetches and commits the offsets of one group, over one thread's cluster.

    Commits use the connection of the thread's other lookups, not the connection of the membership. A thread sends one
    request at a time. If its query ends during a request, the connection is closed, and the member leaves over the
    connection of the membership.
    """

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._settings = settings
        self._client = CoordinatorClient(cluster, settings.group_id, LOOKUPS, timings, settings.coordinator)

    def commit(
        self,
        me: Membership,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> CommitResult:
        """Commits offsets as member ``me``; the broker rejects them if the member's generation is over.

        Without a member id, the broker rejects the offsets if the group has members. Offsets of a topic whose id
        differs from ``topic_ids`` are rejected too, by a broker of Kafka 4.1 or later, and otherwise by this method
        after a lookup of the id. Many partitions take several requests. After a request fails, no further one is sent.
        """
        if topic_ids is None:
            topic_ids = {}
        result = CommitResult()
        for chunk in self._chunks(offsets):
            latest = self._commit(me, chunk, deadline, topic_ids)
            result = CommitResult(
                result.confirmed | latest.confirmed,
                {**result.errors, **latest.errors},
                latest.unanswered,
                latest.failure,
            )
            if latest.failure is not None:
                break
        return result

    def _chunks(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> Iterator[dict[TopicPartition, CommittedOffset]]:
        """Splits the offsets into requests of at most :data:`COMMIT_BYTES`."""
        chunk: dict[TopicPartition, CommittedOffset] = {}
        size = 0
        for tp, commit in sorted(offsets.items(), key=itemgetter(0)):
            record = RECORD_BYTES + len(self._settings.group_id) + len(tp.topic) + len(commit.metadata)
            is_full = size + record > COMMIT_BYTES
            if chunk and is_full:
                yield chunk
                chunk, size = {}, 0
            chunk[tp] = commit
            size += record
        if chunk:
            yield chunk

    def _commit(
        self,
        me: Membership,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        topic_ids: Mapping[TopicPartition, str],
    ) -> CommitResult:
        """Commits with one request; offsets of former topics are left out, and returned as rejected."""
        failure = self._client.connect(deadline)
        if failure is not None:
            return CommitResult(failure=failure)
        if self._compares_topic_ids(offsets, topic_ids):
            return self._send(me, offsets, topic_ids, deadline)
        former = self._in_former_topics(offsets, topic_ids, deadline)
        if isinstance(former, RequestFailed):
            return CommitResult(failure=former)
        others = dict(offsets)
        for tp in former:
            del others[tp]
        result = CommitResult()
        if others:
            result = self._send(me, others, {}, deadline)
        return replace(result, errors={**result.errors, **dict.fromkeys(former, UNKNOWN_TOPIC_ID)})

    def _compares_topic_ids(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[TopicPartition, str]
    ) -> bool:
        """Whether the coordinator itself rejects commits to a topic with another id, and all ids are known."""
        if len(_known(topic_ids, partitions)) < len(partitions):
            return False
        return self._client.supports(ApiKey.OffsetCommit, versions.OFFSET_COMMIT_BY_TOPIC_ID)

    def _in_former_topics(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[TopicPartition, str], deadline: Deadline
    ) -> set[TopicPartition] | RequestFailed:
        """Partitions of topics that have another id by now. A commit by name would go to the recreated topic."""
        known = _known(topic_ids, partitions)
        if not known:
            return set()
        current = self._client.topic_ids(topics_of(known), deadline)
        if isinstance(current, RequestFailed):
            return current
        former = set()
        for tp, topic_id in known.items():
            if not may_be_same(current.get(tp.topic, ""), topic_id):
                former.add(tp)
        return former

    def _send(
        self,
        me: Membership,
        offsets: Mapping[TopicPartition, CommittedOffset],
        topic_ids: Mapping[TopicPartition, str],
        deadline: Deadline,
    ) -> CommitResult:
        """Sends one request, with the topics by id if there are ``topic_ids``, or else by name."""
        response = self._client.call(self._commit_request(me, offsets, topic_ids), deadline)
        if isinstance(response, RequestFailed):
            if not response.unanswered:
                return CommitResult(failure=response)
            return CommitResult(unanswered=frozenset(offsets), failure=response)
        codes = _commit_error_codes(response, topic_ids)
        result = self._interpret({tp: codes.get(tp, UNKNOWN_SERVER_ERROR) for tp in offsets})
        if result.failure is None or me.member_id:
            return result
        if UNKNOWN_MEMBER_ID in codes.values():
            reason = f"{result.failure.reason}: the group has members. {NO_MEMBERS}"
            return replace(result, failure=replace(result.failure, reason=reason))
        return result

    def _commit_request(
        self, me: Membership, offsets: Mapping[TopicPartition, CommittedOffset], topic_ids: Mapping[TopicPartition, str]
    ) -> OffsetCommitRequest:
        topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
        by_topic: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for tp, commit in offsets.items():
            by_topic[tp.topic, topic_ids.get(tp, "")].append(
                topic_of.OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=commit.offset,
                    committed_leader_epoch=commit.epoch,
                    committed_metadata=commit.metadata,
                )
            )
        return OffsetCommitRequest(
            version=self._commit_version(by_id=bool(topic_ids)),
            group_id=self._settings.group_id,
            generation_id_or_member_epoch=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
            topics=[
                topic_of(name=name, topic_id=_uuid(topic_id), partitions=parts)
                for (name, topic_id), parts in by_topic.items()
            ],
        )

    def _commit_version(self, *, by_id: bool) -> int | None:
        """The version of OffsetCommit to send; ``None`` for the latest version that identifies topics by name."""
        if by_id:
            return versions.OFFSET_COMMIT_BY_TOPIC_ID
        if self._settings.consumer_protocol:
            return versions.MEMBER_OFFSET_COMMIT
        return None

    def _interpret(self, codes: Mapping[TopicPartition, int]) -> CommitResult:
        """The result of a response with these error codes; 0 confirms a partition."""
        confirmed, errors = set(), {}
        group_error = 0
        for tp, error_code in codes.items():
            if error_code == 0:
                confirmed.add(tp)
                continue
            errors[tp] = error_code
            # A response repeats an error of the whole group for every partition. If one partition has an error of its
            # own, the others are committed.
            if group_error == 0 and not _is_of_partition(error_code):
                group_error = error_code
        if group_error == 0:
            return CommitResult(frozenset(confirmed), errors)
        return CommitResult(frozenset(confirmed), errors, failure=self._commit_failure(group_error, errors))

    def _commit_failure(self, group_error: int, errors: Mapping[TopicPartition, int]) -> RequestFailed:
        if group_error == FENCED_INSTANCE_ID:
            # The next join fails with this error; until then other members own the partitions.
            reason = f"OffsetCommit failed with {describe_error_code(group_error)}"
            return RequestFailed(ErrorAction.RESET_GENERATION, reason)
        topics = set()
        for tp, error_code in errors.items():
            if error_code == group_error:
                topics.add(tp.topic)
        return self._client.failure("OffsetCommit", group_error, topics=topics)

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        deadline: Deadline,
        me: Membership | None = None,
        unavailable: dict[TopicPartition, RequestFailed] | None = None,
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        """The group's committed offsets of these partitions, or of all for ``None``. Partitions without a commit are
        left out.

        With KIP-848, a coordinator rejects the request if it does not know ``me`` in this epoch, because it is a former
        coordinator or has fenced ``me``.

        With ``me``, the request goes only to the broker that knows this generation. A former coordinator that was
        suspended or cut off would answer with old offsets.

        Asks for stable offsets: while a transaction has pending offsets, the broker returns an error to retry for their
        partitions. If ``unavailable`` is given, it receives the failure of each such partition, and the call returns
        the others. Without ``unavailable``, the failure of one partition fails the call.
        """
        deadline = deadline.at_most(self._settings.offset_fetch_timeout)
        if me is not None and me.generation == NO_GENERATION:
            me = None  # a query outside the group names no member, like an operator's tool
        if me is not None:
            failure = self._client.connect_to_known(deadline)
            if failure is not None:
                return failure
        response = self._client.call(self._fetch_request(partitions, me), deadline)
        if isinstance(response, RequestFailed):
            return response
        return self._interpret_fetch(response, unavailable)

    def _fetch_request(self, partitions: Iterable[TopicPartition] | None, me: Membership | None) -> Any:
        group_of = OffsetFetchRequest.OffsetFetchRequestGroup
        version: int | None = None
        member: dict[str, Any] = {}
        if self._settings.consumer_protocol and me is not None:
            version = versions.MEMBER_OFFSET_FETCH
            member = {"member_id": me.member_id, "member_epoch": me.generation}
        topics = None
        if partitions is not None:
            topics = [
                group_of.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                for name, numbers in numbers_by_topic(partitions).items()
            ]
        return OffsetFetchRequest(
            version=version,
            group_id=self._settings.group_id,
            topics=topics,
            groups=[group_of(group_id=self._settings.group_id, topics=topics, **member)],
            require_stable=True,
        )

    def _interpret_fetch(
        self, response: Any, unavailable: dict[TopicPartition, RequestFailed] | None
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        """As :meth:`committed`, of one response."""
        group = response  # before version 8 there is only one
        if response.groups:
            group = response.groups[0]
        if group.error_code:
            return self._client.failure("OffsetFetch", group.error_code)
        offsets = {}
        for tp, part in _fetched(group):
            if part.error_code:  # any code: if the commit were left out, the partition would start at startingOffsets
                failure = self._client.failure("OffsetFetch", part.error_code, topics=[tp.topic])
                if unavailable is None or part.error_code not in ERRORS_OF_ONE_PARTITION:
                    return failure
                unavailable[tp] = failure
            elif part.committed_offset >= 0:
                offsets[tp] = CommittedOffset(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
        return offsets

    def topics(
        self, names: Collection[str], deadline: Deadline, *, with_permissions: bool = False
    ) -> dict[str, Topic] | RequestFailed:
        """The metadata of these topics from the coordinator, with this principal's permissions if requested.

        Offsets that are fetched afterwards belong to these topics or to later topics of the same names.
        """
        return self._client.topics(names, deadline, with_permissions=with_permissions)

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """The group's state and members."""
        return describe(self._client, self._settings.group_id, deadline)


def raise_final(failures: Iterable[RequestFailed]) -> None:
    """Raises the error of the first of these failures that a retry of the same request cannot help.

    Raises:
        GroupError: this client may not describe the topic of a partition.
    """
    for failure in failures:
        if failure.error is not None:
            raise failure.error


def _known(topic_ids: Mapping[TopicPartition, str], partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """The known topic ids of these partitions. Brokers before topic ids have none."""
    known = {}
    for tp in partitions:
        topic_id = topic_ids.get(tp)
        if topic_id:
            known[tp] = topic_id
    return known


def _uuid(topic_id: str) -> UUID | None:
    if not topic_id:
        return None
    return UUID(topic_id)


def _fetched(group: Any) -> Iterator[tuple[TopicPartition, Any]]:
    """Each partition of an OffsetFetch response, with its entry."""
    for topic in group.topics:
        for part in topic.partitions:
            yield TopicPartition(topic.name, part.partition_index), part


def _commit_error_codes(response: Any, topic_ids: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
    """The error code of each partition; with ``topic_ids`` the response names topics by id only."""
    names = {UUID(topic_id): tp.topic for tp, topic_id in topic_ids.items()}
    codes = {}
    for topic in response.topics:
        name = topic.name
        if topic_ids:
            name = names.get(topic.topic_id, "")
        for part in topic.partitions:
            codes[TopicPartition(name, part.partition_index)] = part.error_code
    return codes
