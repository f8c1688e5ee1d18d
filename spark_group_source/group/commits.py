"""What a query has planned, what Spark has completed, and what the group was told: the ledger of offsets. Pure.

An offset is always the next one to read, so a completed batch is committed as its end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from spark_group_source.offsets import UNKNOWN_EPOCH, Offsets, TopicPartition

MARK = "spark-group-source"
"""Start of the metadata of every commit of this source. ``kafka-consumer-groups --reset-offsets`` writes empty
metadata, so a lower offset without the mark is somebody's decision and not a commit of ours that failed."""


STARTING = f"{MARK} starting"
"""Start of the metadata where ``resetOffsetsOnStart`` has just moved a partition, and no batch is logged yet that says
so. A query that dies before is moved no second time: what arrived since then would be skipped."""


def marked(facts: Mapping[str, object], mark: str = MARK) -> str:
    """Metadata that says this source wrote it, and what else is to be known: the mark, then JSON."""
    return f"{mark} {json.dumps(facts)}" if facts else mark


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A partition's committed offset as the group has it, with its leader epoch."""

    offset: int
    metadata: str = ""
    epoch: int = UNKNOWN_EPOCH

    @property
    def marked(self) -> bool:
        """Whether this source wrote it."""
        return self.metadata.startswith(MARK)

    @property
    def starting(self) -> bool:
        """Whether a query wrote it that was reset, and died before its checkpoint knew of that."""
        return self.metadata.startswith(STARTING)


def resume_at(committed: CommittedOffset | None, logged: int | None, start: int | None) -> int:
    """Where a newly owned partition starts.

    Args:
        committed: the group's commit, if there is one.
        logged: the end that this query logged for the partition last, if it ever read it.
        start: what ``startingOffsets`` resolves to; needed only where the other two are ``None``.
    """
    if committed is None:
        position = start if logged is None else logged
        assert position is not None, "a partition without a commit or a logged end needs a start"
        return position
    if logged is None or committed.offset >= logged or not committed.marked:
        return committed.offset
    return logged


@dataclass
class Ledger:
    """Offsets of one query. Not thread-safe: its owner holds a lock.

    ``logged``: ends that Spark has logged for this query, of every partition it ever read. ``positions``: next
    offset to plan, of each partition owned now. ``done``: what may be committed. ``committed``: what the group has.
    """

    logged: dict[TopicPartition, int] = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    done: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    in_flight: frozenset[TopicPartition] = frozenset()

    def partitions_assigned(self, tp: TopicPartition, committed: CommittedOffset | None, position: int) -> None:
        """A newly owned partition starts at ``position``, which becomes its committed offset at once.

        Except where the batch in flight ends there: that is not completed yet.
        """
        self.positions[tp] = position
        if committed is not None:
            self.committed[tp] = committed.offset
        if tp not in self.in_flight:
            self.done[tp] = position

    def dropped(self, partitions: Iterable[TopicPartition]) -> None:
        """These are not owned any more: nothing of them is planned or committed from here on."""
        for tp in partitions:
            for book in (self.positions, self.done, self.committed):
                book.pop(tp, None)

    def forget(self, topics: Collection[str]) -> None:
        """These topics are others now, under the same names."""
        gone = {tp for tp in (*self.logged, *self.positions) if tp.topic in topics}
        self.dropped(gone)
        for tp in gone:
            self.logged.pop(tp, None)

    def planned(self, ends: Offsets) -> None:
        """Spark is given a batch that reads up to ``ends``.

        What was taken away since it was planned has no position: one left behind would be gone on with when it is back.
        """
        self.in_flight = frozenset(ends)
        self.logged.update(ends)
        self.positions.update({tp: end for tp, end in ends.items() if tp in self.positions})

    def completed(self, ends: Offsets) -> None:
        """Spark has completed the batch that ends at ``ends``.

        An end beyond the position of the present ownership is not committed: the partition was taken away in
        mid-batch and came back further down, by somebody's decision, and will be read again from there.
        """
        self.in_flight = frozenset()
        for tp, end in ends.items():
            if end <= self.positions.get(tp, -1):
                self.done[tp] = max(end, self.done.get(tp, -1))

    def pending(self) -> dict[TopicPartition, int]:
        """What is completed and not committed: never lower than what this ownership has committed."""
        return {tp: offset for tp, offset in self.done.items() if self._is_news(tp, offset)}

    def unstarted(self) -> set[TopicPartition]:
        """Partitions with a position of which the group has no commit at all."""
        return self.done.keys() - self.committed.keys()

    def renew(self) -> None:
        """What the group has is to be committed once more as it is.

        Not so where more was logged: that is being read, or an operator has gone back, whose commit gets no mark before
        what comes after it is completed.
        """
        for tp, offset in self.done.items():
            if self.committed.get(tp) == offset >= self.logged.get(tp, offset):
                del self.committed[tp]

    def commit_again(self, partitions: Iterable[TopicPartition]) -> None:
        """What the group has of these is to be committed once more, with other metadata."""
        for tp in partitions:
            self.committed.pop(tp, None)

    def _is_news(self, tp: TopicPartition, offset: int) -> bool:
        return tp not in self.committed or offset > self.committed[tp]

    def uncommittable(self, partitions: Iterable[TopicPartition]) -> None:
        """The group refuses these for what they are (a deleted topic): the next batch that reads them tries again."""
        for tp in partitions:
            self.done.pop(tp, None)

    def confirmed(self, offsets: Offsets) -> None:
        """The group has these now."""
        for tp, offset in offsets.items():
            if tp in self.positions:
                self.committed[tp] = max(offset, self.committed.get(tp, -1))
