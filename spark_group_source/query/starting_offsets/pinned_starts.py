"""Starting offsets that a new query pins once, and keeps in its checkpoint until each partition has started. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_group_source.offsets import Offsets, Partitions, TopicPartition


@dataclass(frozen=True, slots=True)
class PinnedStarts:
    """How partitions start that existed when the query first started, and that no logged batch holds yet.

    ``offsets``: where they start if they have no commit. ``None``: ``startingOffsets`` is still to be looked up.
    ``resets``: partitions that ``resetOffsetsOnStart`` is still to move, whatever the group has committed.
    ``reset_first_assignment``: all partitions of the first assignment are to be reset.

    A partition stays here after its start, until a batch is logged or its reset is committed: it may be lost before.
    """

    offsets: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    resets: Partitions = frozenset()
    reset_first_assignment: bool = False

    def pin(self, offsets: Offsets) -> PinnedStarts:
        """The same with these starting offsets, for partitions that are still to start."""
        return replace(self, offsets={tp: offsets.get(tp, offset) for tp, offset in self.offsets.items()})

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
