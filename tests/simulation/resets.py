"""Which queries move partitions to their starting offsets: those with ``resetOffsetsOnStart`` and a new checkpoint."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.simulation.positions import Key, Partition, Positions

if TYPE_CHECKING:
    from tests.simulation.spark import Query


class Resets:
    """The resets of one run. A query moves what it is assigned first, also after a restart before that is logged.

    Attributes:
        resetting: the queries whose present run does so.
        left: of these, the partitions that each has still to move. There is no entry before its first assignment.
        accepted: the partitions of which the group has accepted each query's move, which its checkpoint may not know.
        assigned_at: when the coordinator first sent each query an assignment after its start, if only an empty one.
    """

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self.resetting: set[str] = set()
        self.left: dict[str, set[Key]] = {}
        self.accepted: defaultdict[str, set[Key]] = defaultdict(set)
        self.assigned_at: dict[str, float] = {}

    def started(self, query: Query) -> None:
        """A query starts. With ``assign`` its first assignment is all that it names."""
        logged = query.logged
        if logged.is_empty:
            self.accepted.pop(query.name, None)
        self.left.pop(query.name, None)
        self.assigned_at.pop(query.name, None)
        self.resetting.discard(query.name)
        if "resetOffsetsOnStart" not in query.options or (logged.ranges and not logged.resets):
            return
        self.resetting.add(query.name)
        first = {self.positions.key(*tp) for tp in logged.resets}
        if "assign" in query.options and not first:
            first = {self.positions.key(*tp) for tp in self.positions.ends() if query.subscribes(*tp)}
        if first:
            self.left[query.name] = first

    def assigned(self, query: Query, owned: set[Key], now: float) -> None:
        """The coordinator has sent a query what it owns."""
        self.assigned_at.setdefault(query.name, now)
        if owned and query.name in self.resetting:
            self.left.setdefault(query.name, owned)

    def committed(self, query: Query, key: Key, at: Partition, offset: int) -> None:
        """The group has accepted the commit of a partition: its owner may resume there after a restart."""
        self.moved(query, key, at, offset)
        if query.name in self.resetting:
            self.accepted[query.name].add(key)

    def owed(self, query: Query) -> set[Key]:
        """The partitions that a query has to move before its run ends, if it owns them."""
        return self.left.get(query.name, set()) - self.accepted[query.name]

    def moved(self, query: Query, key: Key, at: Partition, start: int) -> None:
        """A query reads or commits a partition from ``start`` on: again if it was expelled before it logged that."""
        if query.name not in self.resetting:
            return
        left = self.left.get(query.name, set())
        if key in left or not query.logged.ranges:
            left.discard(key)
            at.reads.clear()
            if at.committed is not None:
                at.done.update(range(start))
