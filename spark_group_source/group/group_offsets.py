"""Fetches and commits a group's offsets at its coordinator.

One :class:`GroupOffsets` belongs to one thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetFetchRequest

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import FENCED_INSTANCE_ID, UNKNOWN_MEMBER_ID
from spark_group_source.error_codes import describe as describe_error
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.coordinator_client import CoordinatorClient
from spark_group_source.group.counters import Timings
from spark_group_source.group.description import GroupDescription, describe
from spark_group_source.group.error_actions import ErrorAction, error_action
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.membership import Membership
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition, numbers_by_topic
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster

NO_MEMBERS = (
    "With 'assign' a query can commit only to a group without members: give this query its own 'kafka.group.id', or"
    " stop the members"
)


COMMIT_BYTES = 2**17
"""Maximum bytes of one request's offsets in the coordinator's log, where they form one record batch: an eighth of the
brokers' default ``message.max.bytes``, about 1,000 partitions. A broker rejects a larger request at every retry."""

RECORD_BYTES = 64
"""Bytes of one partition's offset in that log, beside the names and the metadata."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit, by partition; ``failure`` is an error of the request as a whole."""

    confirmed: Offsets
    errors: Mapping[TopicPartition, int]
    failure: RequestFailed | None = None


class GroupOffsets:
    """The offsets of one group, over one thread's cluster."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._settings = settings
        self._client = CoordinatorClient(cluster, settings.group_id, "offsets", timings)

    def commit(
        self, me: Membership, offsets: Offsets, metadata: str, deadline: Deadline, epochs: Offsets | None = None
    ) -> CommitResult:
        """Commits offsets as member ``me``; the broker rejects them if its generation is over.

        ``epochs`` are the leader epochs of the offsets. Without a member id, the broker rejects them if the group has
        members. Many partitions take several requests; the first that fails is the last one sent.
        """
        result = CommitResult({}, {})
        for chunk in self._chunks(offsets, metadata):
            latest = self._commit(me, chunk, metadata, deadline, epochs or {})
            result = CommitResult(
                {**result.confirmed, **latest.confirmed}, {**result.errors, **latest.errors}, latest.failure
            )
            if latest.failure is not None:
                break
        return result

    def _chunks(self, offsets: Offsets, metadata: str) -> Iterator[Offsets]:
        """Splits the offsets into requests of at most :data:`COMMIT_BYTES`."""
        partitions = sorted(offsets)
        longest = max((len(tp.topic) for tp in partitions), default=0)
        size = max(1, COMMIT_BYTES // (RECORD_BYTES + len(self._settings.group_id) + longest + len(metadata)))
        for start in range(0, len(partitions), size):
            yield {tp: offsets[tp] for tp in partitions[start : start + size]}

    def _commit(
        self, me: Membership, offsets: Offsets, metadata: str, deadline: Deadline, epochs: Offsets
    ) -> CommitResult:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        version = versions.MEMBER_OFFSET_COMMIT if self._settings.consumer_protocol else versions.OFFSET_COMMIT
        topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
        for tp, offset in offsets.items():
            by_topic[tp.topic].append(
                topic_of.OffsetCommitRequestPartition(
                    version=version,
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=epochs.get(tp, UNKNOWN_EPOCH),
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            version=version,
            group_id=self._settings.group_id,
            generation_id_or_member_epoch=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
            topics=[topic_of(version=version, name=name, partitions=parts) for name, parts in by_topic.items()],
        )
        response = self._client.call(request, deadline)
        if isinstance(response, RequestFailed):
            return CommitResult({}, {}, response)
        codes = {TopicPartition(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
        result = self._interpret(offsets, codes)
        if result.failure is not None and not me.member_id and UNKNOWN_MEMBER_ID in codes.values():
            reason = f"{result.failure.reason}: the group has members. {NO_MEMBERS}"
            return replace(result, failure=replace(result.failure, reason=reason))
        return result

    def _interpret(self, offsets: Offsets, codes: Mapping[TopicPartition, int]) -> CommitResult:
        confirmed = {tp: offset for tp, offset in offsets.items() if codes.get(tp) == 0}
        errors = {tp: errno for tp, errno in codes.items() if errno}
        # An error of the group stands at every partition; with an error of one partition the others are committed.
        of_partition = ErrorAction.SKIP, ErrorAction.TRIM_METADATA
        group_error = next((errno for errno in errors.values() if error_action(errno) not in of_partition), None)
        if group_error is None:
            return CommitResult(confirmed, errors)
        if group_error == FENCED_INSTANCE_ID:
            # The next join fails with this error; until then other members own the partitions.
            reason = f"OffsetCommit failed with {describe_error(group_error)}"
            return CommitResult(confirmed, errors, RequestFailed(ErrorAction.RESET_GENERATION, reason))
        topics = {tp.topic for tp, errno in errors.items() if errno == group_error}
        return CommitResult(confirmed, errors, self._client.failure("OffsetCommit", group_error, topics=topics))

    def committed(
        self, partitions: Iterable[TopicPartition] | None, deadline: Deadline
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        """The group's committed offsets, of all partitions for ``None``; partitions without a commit are left out.

        Asks for stable offsets: while a transaction has pending offsets, the broker returns an error to retry.
        """
        group_of = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = (
            partitions
            if partitions is None
            else [
                group_of.OffsetFetchRequestTopics(version=versions.OFFSET_FETCH, name=name, partition_indexes=numbers)
                for name, numbers in numbers_by_topic(partitions).items()
            ]
        )
        request = OffsetFetchRequest(
            version=versions.OFFSET_FETCH,
            groups=[group_of(version=versions.OFFSET_FETCH, group_id=self._settings.group_id, topics=topics)],
            require_stable=True,
        )
        response = self._client.call(request, deadline.at_most(self._settings.offset_fetch_timeout))
        if isinstance(response, RequestFailed):
            return response
        group = response.groups[0]
        offsets = {}
        for topic in group.topics:
            for part in topic.partitions:
                if part.error_code:  # any: without a commit the partition would start at startingOffsets
                    return self._client.failure("OffsetFetch", part.error_code, topics=[topic.name])
                if part.committed_offset >= 0:
                    tp = TopicPartition(topic.name, part.partition_index)
                    offsets[tp] = CommittedOffset(
                        part.committed_offset, part.metadata or "", part.committed_leader_epoch
                    )
        return self._client.failure("OffsetFetch", group.error_code) if group.error_code else offsets

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """The group's state and members."""
        return describe(self._client, self._settings.group_id, deadline)
