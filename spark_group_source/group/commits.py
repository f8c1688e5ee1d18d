"""A query's ledger of offsets: planned by the query, completed by Spark, committed to the group. Pure.

An offset is always the next one to read, so a completed batch is committed as its end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition

COMMIT_TAG = "spark-group-source"
"""Start of the metadata of every commit of this source. ``kafka-consumer-groups --reset-offsets`` writes empty
metadata. So a lower offset without the tag is an operator's rewind, and not an older commit of this source."""


RESET_TAG = f"{COMMIT_TAG} starting"
"""Start of the metadata after ``resetOffsetsOnStart`` has moved a partition, until Spark has logged a batch that says
so. If the query dies before, its restart does not reset again: it would skip the records that arrived since."""


def commit_metadata(fields: Mapping[str, object], tag: str = COMMIT_TAG) -> str:
    """The metadata of a commit: the tag, then ``fields`` as JSON.

    The field ``start`` is the digest of JSON in ``startingOffsets``: the group started at these offsets.
    """
    return f"{tag} {json.dumps(fields)}" if fields else tag


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

    def started_at(self, digest: str) -> bool:
        """Whether the query that wrote it has the ``startingOffsets`` with this digest."""
        return self.tagged and f'"start": "{digest}"' in self.metadata


def resume_at(committed: CommittedOffset | None, logged_end: int | None, starting_offset: int | None) -> int:
    """The position at which a newly assigned partition starts: the further of commit and logged end.

    A lower commit without our tag is an operator's rewind, and applies.

    Args:
        committed: the group's committed offset, if there is one.
        logged_end: the end that this query logged last for the partition, if it ever read it.
        starting_offset: needed only if the other two are ``None``.
    """
    if committed is None:
        position = starting_offset if logged_end is None else logged_end
        assert position is not None, "a partition without a commit or a logged end needs a starting offset"
        return position
    if logged_end is None or committed.offset >= logged_end or not committed.tagged:
        return committed.offset
    return logged_end


@dataclass
class Ledger:
    """Offsets of one query. Not thread-safe: its owner holds a lock.

    ``logged_ends``: the last end that Spark has logged, of every partition this query ever read. ``positions``: the
    next offset to plan, of each owned partition. ``committable``: what may be committed. ``committed``: what the group
    has. ``rejected``: partitions whose last commit the coordinator rejected, because it does not know them yet or any
    more. ``deleted``: partitions that no broker knows.
    """

    logged_ends: dict[TopicPartition, int] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    committable: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    rejected: set[TopicPartition] = field(default_factory=set)
    deleted: frozenset[TopicPartition] = frozenset()
    in_flight: frozenset[TopicPartition] = frozenset()

    def set_position(self, tp: TopicPartition, committed: CommittedOffset | None, position: int) -> None:
        """A newly assigned partition starts at ``position``, which is to be committed at once.

        If the in-flight batch reads the partition, its end is committed instead, once the batch is completed.
        """
        self.positions[tp] = position
        if committed is not None:
            self.committed[tp] = committed.offset
        if tp not in self.in_flight:
            self.committable[tp] = position

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """The query no longer owns these: it plans and commits nothing of them from here on."""
        for tp in partitions:
            for offsets in (self.positions, self.committable, self.committed):
                offsets.pop(tp, None)
            self.rejected.discard(tp)

    def forget(self, topics: Collection[str]) -> None:
        """These topics were recreated: forgets all offsets in the old ones."""
        partitions = {tp for tp in (*self.logged_ends, *self.positions) if tp.topic in topics}
        self.remove(partitions)
        for tp in partitions:
            self.logged_ends.pop(tp, None)

    def planned(self, ends: Offsets) -> None:
        """Spark gets a batch that reads up to ``ends``.

        A partition that was revoked or lost since the batch was planned gets no position: it would be out of date when
        the partition is assigned again.
        """
        self.in_flight = frozenset(ends)
        self.logged_ends.update(ends)
        self.positions.update({tp: end for tp, end in ends.items() if tp in self.positions})

    def completed(self, ends: Offsets) -> None:
        """Spark has completed the batch that ends at ``ends``.

        An end beyond the position is not committed: the partition was lost during the batch, and came back after an
        operator's rewind. The query reads it again from there.
        """
        self.in_flight = frozenset()
        for tp, end in ends.items():
            if end <= self.positions.get(tp, -1):
                self.committable[tp] = max(end, self.committable.get(tp, -1))

    def pending(self) -> dict[TopicPartition, int]:
        """Pending commits: never lower than what was committed since the partition was assigned.

        A rejected commit is pending until the group revokes the partition, or no broker knows it: a coordinator may
        have old metadata for a while. With ``assign`` no revocation would end the retries.
        """
        hopeless = self.rejected & self.deleted
        return {tp: to for tp, to in self.committable.items() if self._is_ahead(tp, to) and tp not in hopeless}

    def uncommitted(self) -> set[TopicPartition]:
        """Partitions with a pending commit for which a revocation waits. It does not wait for a rejected one: that
        topic may be deleted."""
        return self.pending().keys() - self.rejected

    def never_committed(self) -> set[TopicPartition]:
        """Partitions with a position for which the group has no committed offset at all."""
        return self.pending().keys() - self.committed.keys()

    def renew(self) -> None:
        """Makes committed offsets pending again, unchanged.

        Not so if more was logged: either the batch in flight reads that, or an operator has rewound the group. A
        rewind gets no tag before the batch after it is completed.
        """
        for tp, offset in self.committable.items():
            if self.committed.get(tp) == offset >= self.logged_ends.get(tp, offset):
                del self.committed[tp]

    def commit_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Makes the committed offsets of these pending again, to change their metadata."""
        for tp in partitions:
            self.committed.pop(tp, None)

    def _is_ahead(self, tp: TopicPartition, offset: int) -> bool:
        return tp not in self.committed or offset > self.committed[tp]

    def commits_rejected(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The coordinator has rejected commits of these partitions; returns those that were not rejected before."""
        newly = self.committable.keys() & set(partitions) - self.rejected
        self.rejected |= newly
        return newly

    def confirmed(self, offsets: Offsets) -> None:
        """The group has committed these."""
        self.rejected -= offsets.keys()
        for tp, offset in offsets.items():
            if tp in self.positions:
                self.committed[tp] = max(offset, self.committed.get(tp, -1))
