"""The backlog of one run: its size, and how much of it is processed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_group_source.lag.source_progress import SourceProgress, source_progress
from spark_group_source.offsets import TopicPartition

Key = tuple[int, TopicPartition]
"""A source's number in the query, and one of its partitions."""


class Backlog:
    """The backlog of one run, in offsets.

    In each partition, the backlog starts where the first batch that this object sees starts, and ends at the end offset
    of that time. It excludes later records, as an AvailableNow run does. A rebalance removes revoked partitions from
    the query's backlog, and adds assigned partitions.
    """

    def __init__(self) -> None:
        self._starts: dict[Key, int] = {}
        self._targets: dict[Key, int] = {}
        self._positions: dict[Key, int] = {}

    @property
    def total(self) -> int | None:
        """The number of offsets in the backlog; ``None`` before the first batch."""
        if not self._targets:
            return None
        return sum(end - self._starts[key] for key, end in self._targets.items())

    @property
    def done(self) -> int:
        """The number of offsets of the backlog that are processed."""
        return sum(min(at, self._targets[key]) - self._starts[key] for key, at in self._positions.items())

    def update(self, progress: Mapping[str, Any]) -> None:
        """Adds the progress of a batch, parsed from its JSON. The caller may skip batches."""
        for number, source in source_progress(progress, {}).items():
            owned = self._update_owned(number, source)
            for key in self._targets:
                if key[0] == number and key not in owned:
                    self._targets[key] = self._positions[key]

    def _update_owned(self, number: int, source: SourceProgress) -> set[Key]:
        """Updates the partitions that the query owns, and returns them.

        Without end offsets (PySpark 4.1), these are all partitions that the query has ever read.
        """
        owned = set()
        for tp, offsets in source.batch.ranges.items():
            log_end = offsets.end
            if source.end_offsets is not None:
                if tp not in source.end_offsets:
                    continue
                log_end = source.end_offsets[tp]
            key = number, tp
            owned.add(key)
            start = self._starts.setdefault(key, offsets.start)
            self._targets.setdefault(key, max(log_end, offsets.end, start))
            self._positions[key] = max(offsets.end, start)
        return owned
