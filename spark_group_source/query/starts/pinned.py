"""The starts of partitions that existed when the query first started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_group_source.offsets import Partitions, PinnedOffsets, PinnedStart, TopicPartition
from spark_group_source.query.starts.rules import Start


@dataclass(frozen=True, slots=True)
class PinnedStarts:
    """How partitions start that existed when the query first started, and that no logged batch holds yet.

    ``offsets``: where they start if they have no commit.
    ``resets``: partitions that ``resetOffsetsOnStart`` is still to move, whatever the group has committed.
    ``reset_first_assignment``: all partitions of the first assignment are to be reset.

    A partition stays here after its start, until a batch is logged or its reset is committed: it may be lost before.
    """

    offsets: PinnedOffsets = field(default_factory=dict)
    resets: Partitions = frozenset()
    reset_first_assignment: bool = False

    def pin(self, starts: Mapping[TopicPartition, Start]) -> PinnedStarts:
        """The same with these starting offsets, for partitions that are still to start."""
        found = {tp: starts[tp] for tp in starts.keys() & self.offsets.keys()}
        pinned = {tp: PinnedStart(self.offsets[tp].topic_id, at.offset, at.epoch) for tp, at in found.items()}
        return replace(self, offsets={**self.offsets, **pinned})

    def without(self, partitions: Iterable[TopicPartition]) -> PinnedStarts:
        """The same without partitions that a logged batch holds."""
        logged = set(partitions)
        return replace(
            self,
            offsets={tp: offset for tp, offset in self.offsets.items() if tp not in logged},
            resets=self.resets - logged,
        )

    def assign(self, partitions: Partitions) -> PinnedStarts:
        """The same after an assignment of ``partitions``: if it is the first, ``resetOffsetsOnStart`` applies to it."""
        if not self.reset_first_assignment:
            return self
        return replace(self, resets=partitions, reset_first_assignment=False)
