"""The starts of partitions that existed when the query first started."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from spark_group_source.offsets import Partitions, PinnedOffsets, PinnedStart, TopicPartition, may_be_same
from spark_group_source.query.starts.rules import Start


@dataclass(frozen=True, slots=True)
class PinnedStarts:
    """The starts of partitions that existed when the query first started, and that no logged batch contains yet.

    ``offsets``: where they start if they have no commit.
    ``resets``: partitions that ``resetOffsetsOnStart`` is still to move, whatever the group has committed.
    ``reset_first_assignment``: all partitions of the first assignment are to be reset.

    A partition stays here after its start until a batch has logged it or its reset is committed, because it may be lost
    before.
    """

    offsets: PinnedOffsets = field(default_factory=dict)
    resets: Partitions = frozenset()
    reset_first_assignment: bool = False

    def pin(self, starts: Mapping[TopicPartition, Start]) -> PinnedStarts:
        """A copy with these starting offsets, for partitions that no logged batch contains yet."""
        offsets = dict(self.offsets)
        for tp in starts.keys() & offsets.keys():
            offsets[tp] = PinnedStart(offsets[tp].topic_id, starts[tp].offset, starts[tp].epoch)
        return replace(self, offsets=offsets)

    def without(self, partitions: Collection[TopicPartition]) -> PinnedStarts:
        """A copy without these partitions, for example because a logged batch contains them."""
        offsets = dict(self.offsets)
        for tp in offsets.keys() & partitions:
            del offsets[tp]
        return replace(self, offsets=offsets, resets=self.resets.difference(partitions))

    def without_topics(self, topics: Collection[str]) -> PinnedStarts:
        """A copy without partitions of these topics."""
        return self.without([tp for tp in self.offsets.keys() | self.resets if tp.topic in topics])

    def without_resets(self, partitions: Collection[TopicPartition]) -> PinnedStarts:
        """A copy without the resets of these partitions, because they have been committed."""
        return replace(self, resets=self.resets.difference(partitions))

    def assign(self, partitions: Partitions) -> PinnedStarts:
        """A copy after an assignment of ``partitions``. If it is the first assignment, ``resetOffsetsOnStart`` applies
        to it."""
        if not self.reset_first_assignment:
            return self
        return replace(self, resets=partitions, reset_first_assignment=False)


def with_added(pinned: PinnedOffsets, added: PinnedOffsets) -> dict[TopicPartition, PinnedStart]:
    """Pinned starts together with those of partitions that were found later.

    If a topic is pinned under another id, it was recreated in between. Its later partitions are left out, and start as
    partitions that were created after the query. All pinned starts of one topic have the same id.
    """
    ids = {tp.topic: start.topic_id for tp, start in pinned.items()}
    offsets = dict(pinned)
    for tp, start in added.items():
        topic_id = ids.get(tp.topic, start.topic_id)
        if may_be_same(topic_id, start.topic_id):
            offsets[tp] = start._replace(topic_id=topic_id)
    return offsets
