"""The offsets of a group as its coordinator keeps them: reading and committing them, and who else may.

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
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership
from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition, numbers_by_topic
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster

NO_MEMBERS = (
    "What is read with 'assign' can be committed only to a group without members: give this query a"
    " 'kafka.group.id' of its own, or stop the members"
)


COMMIT_BYTES = 2**17
"""Bytes that one request's offsets may take in the coordinator's log, where they are one record batch: an eighth of the
brokers' default ``message.max.bytes``, about 1,000 partitions. One that is larger is refused whole, and for ever."""

RECORD_BYTES = 64
"""Bytes that the offset of one partition takes there, beside the names and the metadata."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """What became of a commit, by partition; ``refused`` is an error of the request as a whole."""

    confirmed: Offsets
    errors: Mapping[TopicPartition, int]
    refused: RequestFailed | None = None


class GroupOffsets:
    """The offsets of one group, over one thread's cluster."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._settings = settings
        self._channel = CoordinatorClient(cluster, settings.group_id, "offsets", timings)

    def commit(
        self, me: Membership, offsets: Offsets, metadata: str, deadline: Deadline, epochs: Offsets | None = None
    ) -> CommitAnswer:
        """Commits offsets as member ``me``; the broker refuses them if its generation is over.

        ``epochs`` are their leader epochs. Without a member id, they are refused if the group has members. Many
        partitions are several requests. After one that is refused no other is sent: the answer has what was confirmed
        until then.
        """
        answer = CommitAnswer({}, {})
        for piece in self._pieces(offsets, metadata):
            found = self._commit(me, piece, metadata, deadline, epochs or {})
            answer = CommitAnswer(
                {**answer.confirmed, **found.confirmed}, {**answer.errors, **found.errors}, found.refused
            )
            if found.refused is not None:
                break
        return answer

    def _pieces(self, offsets: Offsets, metadata: str) -> Iterator[Offsets]:
        """The offsets in parts that a coordinator can write: :data:`COMMIT_BYTES`."""
        partitions = sorted(offsets)
        longest = max((len(tp.topic) for tp in partitions), default=0)
        most = max(1, COMMIT_BYTES // (RECORD_BYTES + len(self._settings.group_id) + longest + len(metadata)))
        for at in range(0, len(partitions), most):
            yield {tp: offsets[tp] for tp in partitions[at : at + most]}

    def _commit(
        self, me: Membership, offsets: Offsets, metadata: str, deadline: Deadline, epochs: Offsets
    ) -> CommitAnswer:
        by_topic: dict[str, list[Any]] = defaultdict(list)
        topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
        for tp, offset in offsets.items():
            by_topic[tp.topic].append(
                topic_of.OffsetCommitRequestPartition(
                    version=versions.OFFSET_COMMIT,
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=epochs.get(tp, UNKNOWN_EPOCH),
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            version=versions.OFFSET_COMMIT,
            group_id=self._settings.group_id,
            generation_id_or_member_epoch=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
            topics=[
                topic_of(version=versions.OFFSET_COMMIT, name=name, partitions=parts)
                for name, parts in by_topic.items()
            ],
        )
        answer = self._channel.call(request, deadline)
        if isinstance(answer, RequestFailed):
            return CommitAnswer({}, {}, answer)
        codes = {TopicPartition(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
        found = self._interpreted(offsets, codes)
        if found.refused is not None and not me.member_id and UNKNOWN_MEMBER_ID in codes.values():
            why = f"{found.refused.why}: the group has members. {NO_MEMBERS}"
            return replace(found, refused=replace(found.refused, why=why))
        return found

    def _interpreted(self, offsets: Offsets, codes: Mapping[TopicPartition, int]) -> CommitAnswer:
        confirmed = {tp: offset for tp, offset in offsets.items() if codes.get(tp) == 0}
        errors = {tp: errno for tp, errno in codes.items() if errno}
        # Errors of the group come with every partition; those of single partitions leave the others committed.
        whole = [
            errno
            for errno in errors.values()
            if error_action(errno) not in (ErrorAction.SKIP, ErrorAction.TRIM_METADATA)
        ]
        if not whole:
            return CommitAnswer(confirmed, errors)
        if whole[0] == FENCED_INSTANCE_ID:
            # The join that follows says so to the user; until then the partitions are somebody else's.
            return CommitAnswer(
                confirmed,
                errors,
                RequestFailed(ErrorAction.RESET_GENERATION, f"OffsetCommit: {describe_error(whole[0])}"),
            )
        topics = {tp.topic for tp, errno in errors.items() if errno == whole[0]}
        return CommitAnswer(confirmed, errors, self._channel.refused("OffsetCommit", whole[0], topics=topics))

    def committed(
        self, partitions: Iterable[TopicPartition] | None, deadline: Deadline
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        """What the group has committed, in all partitions for ``None``; those without a commit are left out.

        Asks for stable offsets: a transaction that is about to commit some makes the answer wait.
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
        answer = self._channel.call(request, deadline.at_most(self._settings.offset_fetch_timeout))
        if isinstance(answer, RequestFailed):
            return answer
        group = answer.groups[0]
        found = {}
        for topic in group.topics:
            for part in topic.partitions:
                if part.error_code and error_action(part.error_code) is not ErrorAction.SKIP:
                    return self._channel.refused("OffsetFetch", part.error_code, topics=[topic.name])
                if part.committed_offset >= 0:
                    tp = TopicPartition(topic.name, part.partition_index)
                    found[tp] = CommittedOffset(part.committed_offset, part.metadata or "", part.committed_leader_epoch)
        return self._channel.refused("OffsetFetch", group.error_code) if group.error_code else found

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """State and members of the group; of a group of Kafka 4's own protocol (KIP-848) none."""
        return describe(self._channel, self._settings.group_id, deadline)
