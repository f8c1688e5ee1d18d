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
from spark_group_source.offsets import (
    NO_LINEAGE,
    UNKNOWN_EPOCH,
    Partitions,
    TopicPartition,
    may_be_same,
    numbers_by_topic,
)
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster

COMMIT_TAG = "spark-group-source"
"""Start of the metadata of every commit of this source. ``kafka-consumer-groups --reset-offsets`` writes empty
metadata. An offset without the tag is the decision of an operator, and not an older commit of this source."""


RESET_TAG = f"{COMMIT_TAG} starting"
"""Start of the metadata after ``resetOffsetsOnStart`` has moved a partition, until Spark has logged a batch that says
so. If the query dies before, its restart does not reset again: it would skip the records that arrived since."""


METADATA_TEXT = 500
"""Maximum length of a text in the metadata of a commit, in characters. JSON takes up to twelve bytes for each, and the
metadata has at most 32,767 bytes in a request to a broker before Kafka 2.4."""


def commit_metadata(fields: Mapping[str, object], tag: str = COMMIT_TAG) -> str:
    """The metadata of a commit: the tag, then ``fields`` as JSON.

    The field ``start`` is the digest of JSON in ``startingOffsets``: the group started at these offsets. ``lineage`` is
    the lineage of the offset, if it has one. ``checkpoint`` is the id of the checkpoint that has logged the offset as
    the end of a batch.
    """
    cut = {name: value[:METADATA_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
    return f"{tag} {json.dumps(cut)}" if cut else tag


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A partition's committed offset as the group has it, with its leader epoch."""

    offset: int
    metadata: str = ""
    epoch: int = UNKNOWN_EPOCH

    @property
    def tagged(self) -> bool:
        """Whether this source wrote it."""
        return self.metadata.startswith(COMMIT_TAG)

    @property
    def tagged_reset(self) -> bool:
        """Whether ``resetOffsetsOnStart`` wrote it, and no logged batch had confirmed the reset."""
        return self.metadata.startswith(RESET_TAG)

    @property
    def lineage(self) -> int:
        """The lineage to which it belongs."""
        lineage = self._fields.get("lineage", NO_LINEAGE)
        return lineage if isinstance(lineage, int) else NO_LINEAGE

    @property
    def checkpoint(self) -> str:
        """The id of the checkpoint that has logged the offset as the end of a batch; empty if none is known to."""
        return str(self._fields.get("checkpoint", ""))

    def started_at(self, digest: str) -> bool:
        """Whether the query that wrote it has the ``startingOffsets`` with this digest."""
        return self._fields.get("start") == digest

    @property
    def _fields(self) -> Mapping[str, Any]:
        if not self.tagged:
            return {}
        try:
            fields = json.loads(self.metadata[self.metadata.index("{") :])
        except ValueError:  # there is only the tag
            return {}
        return fields if isinstance(fields, dict) else {}


NO_MEMBERS = (
    "With 'assign' a query can commit only to a group without members: give this query its own 'kafka.group.id', or"
    " stop the members"
)


COMMIT_BYTES = 2**17
"""Maximum bytes of one request's offsets in the coordinator's log, where they form one record batch: an eighth of the
brokers' default ``message.max.bytes``, about 1,000 partitions. A broker rejects a larger request at every retry."""

RECORD_BYTES = 64
"""Bytes of one partition's offset in that log, beside the names and the metadata."""


ERRORS_OF_ONE_PARTITION = {UNKNOWN_TOPIC_OR_PARTITION, UNSTABLE_OFFSET_COMMIT, UNKNOWN_TOPIC_ID}
"""Error codes with which the coordinator does not return the offset of one partition now, and does of the others."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit: the confirmed partitions, the errors by partition, and those without an answer.

    ``failure`` is an error of the request as a whole. An ``unanswered`` one may still be applied, after later ones.
    """

    confirmed: Partitions = frozenset()
    errors: Mapping[TopicPartition, int] = field(default_factory=dict)
    unanswered: Partitions = frozenset()
    failure: RequestFailed | None = None


def _is_of_partition(error_code: int) -> bool:
    """Whether a commit is rejected for one partition only, and those of others are accepted."""
    if error_code == TOPIC_AUTHORIZATION_FAILED:
        return True
    return error_action(error_code) in (ErrorAction.SKIP, ErrorAction.TRIM_METADATA)


class GroupOffsets:
    """The offsets of one group, over one thread's cluster."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._settings = settings
        self._client = CoordinatorClient(cluster, settings.group_id, "offsets", timings, settings.coordinator)

    def commit(
        self,
        me: Membership,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        topic_ids: Mapping[TopicPartition, str] | None = None,
    ) -> CommitResult:
        """Commits offsets as member ``me``; the broker rejects them if its generation is over.

        Without a member id, the broker rejects them if the group has members. Those of a topic that has another id than
        in ``topic_ids`` now are rejected too: by a broker of Kafka 4.1 or later, or else after a lookup of the id. Many
        partitions take several requests; the first that fails is the last one sent.
        """
        result = CommitResult()
        for chunk in self._chunks(offsets):
            latest = self._commit(me, chunk, deadline, topic_ids or {})
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
            if chunk and size + record > COMMIT_BYTES:
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
        """Commits with one request; offsets of former topics are left out and rejected."""
        if failure := self._client.connect(deadline):
            return CommitResult(failure=failure)
        if self._compares_topic_ids(offsets, topic_ids):
            return self._send(me, offsets, topic_ids, deadline)
        former = self._in_former_topics(offsets, topic_ids, deadline)
        if isinstance(former, RequestFailed):
            return CommitResult(failure=former)
        others = {tp: commit for tp, commit in offsets.items() if tp not in former}
        result = self._send(me, others, {}, deadline) if others else CommitResult()
        return replace(result, errors={**result.errors, **dict.fromkeys(former, UNKNOWN_TOPIC_ID)})

    def _compares_topic_ids(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[TopicPartition, str]
    ) -> bool:
        """Whether the coordinator itself rejects commits to a topic with another id, and all ids are known."""
        all_known = all(topic_ids.get(tp) for tp in partitions)
        return all_known and self._client.supports(ApiKey.OffsetCommit, versions.OFFSET_COMMIT_BY_TOPIC_ID)

    def _in_former_topics(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[TopicPartition, str], deadline: Deadline
    ) -> set[TopicPartition] | RequestFailed:
        """Partitions of topics that have another id by now: a commit by name would be one to the topic's successor."""
        known = {tp: topic_ids[tp] for tp in partitions if topic_ids.get(tp)}
        if not known:
            return set()
        current = self._client.topic_ids({tp.topic for tp in known}, deadline)
        if isinstance(current, RequestFailed):
            return current
        return {tp for tp, topic_id in known.items() if not may_be_same(current.get(tp.topic, ""), topic_id)}

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
            unanswered = frozenset(offsets) if response.unanswered else frozenset()
            return CommitResult(unanswered=unanswered, failure=response)
        codes = _commit_error_codes(response, topic_ids)
        result = self._interpret(offsets, {tp: codes.get(tp, UNKNOWN_SERVER_ERROR) for tp in offsets})
        if result.failure is not None and not me.member_id and UNKNOWN_MEMBER_ID in codes.values():
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
                topic_of(name=name, topic_id=UUID(topic_id) if topic_id else None, partitions=parts)
                for (name, topic_id), parts in by_topic.items()
            ],
        )

    def _commit_version(self, *, by_id: bool) -> int | None:
        """The version of OffsetCommit; ``None`` for the latest that names topics."""
        if by_id:
            return versions.OFFSET_COMMIT_BY_TOPIC_ID
        return versions.MEMBER_OFFSET_COMMIT if self._settings.consumer_protocol else None

    def _interpret(self, offsets: Iterable[TopicPartition], codes: Mapping[TopicPartition, int]) -> CommitResult:
        confirmed = frozenset(tp for tp in offsets if codes.get(tp) == 0)
        errors = {tp: error_code for tp, error_code in codes.items() if error_code}
        # An error of the group stands at every partition; with an error of one partition the others are committed.
        group_error = next((error_code for error_code in errors.values() if not _is_of_partition(error_code)), None)
        if group_error is None:
            return CommitResult(confirmed, errors)
        if group_error == FENCED_INSTANCE_ID:
            # The next join fails with this error; until then other members own the partitions.
            reason = f"OffsetCommit failed with {describe_error_code(group_error)}"
            return CommitResult(confirmed, errors, failure=RequestFailed(ErrorAction.RESET_GENERATION, reason))
        topics = {tp.topic for tp, error_code in errors.items() if error_code == group_error}
        failure = self._client.failure("OffsetCommit", group_error, topics=topics)
        return CommitResult(confirmed, errors, failure=failure)

    def committed(
        self,
        partitions: Iterable[TopicPartition] | None,
        deadline: Deadline,
        me: Membership | None = None,
        unavailable: dict[TopicPartition, RequestFailed] | None = None,
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        """The group's committed offsets, of all partitions for ``None``; partitions without a commit are left out.

        With KIP-848, a coordinator that does not know ``me`` in this epoch rejects: a former one, or it fenced ``me``.

        As a member of either protocol, it asks only the broker that knows this generation. A former coordinator, which
        was suspended or cut off, would answer with old offsets.

        Asks for stable offsets: while a transaction has pending offsets, the broker returns an error to retry for their
        partitions. If ``unavailable`` is given, it receives the failure of each such partition, and the call returns
        the others. Without it, the failure of one partition is that of the call.
        """
        deadline = deadline.at_most(self._settings.offset_fetch_timeout)
        if me is not None and me.generation != NO_GENERATION and (failure := self._client.connect_to_known(deadline)):
            return failure
        response = self._client.call(self._fetch_request(partitions, me), deadline)
        if isinstance(response, RequestFailed):
            return response
        return self._interpret_fetch(response, unavailable)

    def _fetch_request(self, partitions: Iterable[TopicPartition] | None, me: Membership | None) -> Any:
        group_of = OffsetFetchRequest.OffsetFetchRequestGroup
        as_member = self._settings.consumer_protocol and me is not None and me.generation != NO_GENERATION
        member = {"member_id": me.member_id, "member_epoch": me.generation} if me is not None and as_member else {}
        topics = (
            partitions
            if partitions is None
            else [
                group_of.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                for name, numbers in numbers_by_topic(partitions).items()
            ]
        )
        return OffsetFetchRequest(
            version=versions.MEMBER_OFFSET_FETCH if as_member else None,
            group_id=self._settings.group_id,
            topics=topics,
            groups=[group_of(group_id=self._settings.group_id, topics=topics, **member)],
            require_stable=True,
        )

    def _interpret_fetch(
        self, response: Any, unavailable: dict[TopicPartition, RequestFailed] | None
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        """As :meth:`committed`, of one response."""
        group = response.groups[0] if response.groups else response  # before version 8 there is only one
        if group.error_code:
            return self._client.failure("OffsetFetch", group.error_code)
        parts = {TopicPartition(of.name, part.partition_index): part for of in group.topics for part in of.partitions}
        offsets = {}
        for tp, part in parts.items():
            if part.error_code:  # any: without a commit the partition would start at startingOffsets
                failure = self._client.failure("OffsetFetch", part.error_code, topics=[tp.topic])
                if unavailable is None or part.error_code not in ERRORS_OF_ONE_PARTITION:
                    return failure
                unavailable[tp] = failure
            elif part.committed_offset >= 0:
                offsets[tp] = CommittedOffset(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
        return offsets

    def topic_ids(self, topics: Collection[str], deadline: Deadline) -> dict[str, str] | RequestFailed:
        """The ids that these topics have for the coordinator."""
        return self._client.topic_ids(topics, deadline) if topics else {}

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """The group's state and members."""
        return describe(self._client, self._settings.group_id, deadline)


def _commit_error_codes(response: Any, topic_ids: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
    """The error code of each partition; with ``topic_ids`` the response names topics by id only."""
    names = {UUID(topic_id): tp.topic for tp, topic_id in topic_ids.items()}
    codes = {}
    for topic in response.topics:
        name = names.get(topic.topic_id, "") if topic_ids else topic.name
        for part in topic.partitions:
            codes[TopicPartition(name, part.partition_index)] = part.error_code
    return codes
