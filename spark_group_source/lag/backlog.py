"""How much of a query's backlog is done: the records that were there when it was first looked at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_group_source.lag.progress import SourceProgress, sources
from spark_group_source.offsets import TopicPartition

Key = tuple[int, TopicPartition]
"""A source's number in the query, and one of its partitions."""


class Backlog:
    """The backlog of one run, in offsets.

    A partition's part begins where the first batch that is seen of it begins, and ends where its log ended then.
    Records that come later are not part of it: an AvailableNow run does not read them either. What is taken away by a
    rebalance is not this query's to do any more, what is given to it is.
    """

    def __init__(self) -> None:
        self._starts: dict[Key, int] = {}
        self._targets: dict[Key, int] = {}
        self._done: dict[Key, int] = {}

    @property
    def total(self) -> int | None:
        """All offsets of it; ``None`` before the first batch."""
        return sum(end - self._starts[key] for key, end in self._targets.items()) if self._targets else None

    @property
    def done(self) -> int:
        """Offsets of it that are processed."""
        return sum(min(at, self._targets[key]) - self._starts[key] for key, at in self._done.items())

    def update(self, progress: Mapping[str, Any]) -> None:
        """Takes the progress of a batch, as its JSON has it. Batches may be passed over."""
        for number, source in sources(progress, {}).items():
            owned = self._owned(number, source)
            for key in [each for each in self._targets if each[0] == number and each not in owned]:
                self._targets[key] = self._done[key]

    def _owned(self, number: int, source: SourceProgress) -> set[Key]:
        """Enters the partitions that the query owns; without their ends (PySpark 4.1) all that it ever read."""
        owned = set()
        for tp, read in source.batch.ranges.items():
            if source.ends is not None and tp not in source.ends:
                continue
            key = number, tp
            owned.add(key)
            start = self._starts.setdefault(key, read.start)
            ends = source.ends or {}
            self._targets.setdefault(key, max(ends.get(tp, read.end), read.end, start))
            self._done[key] = max(read.end, start)
        return owned
