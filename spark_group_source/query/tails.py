"""Whether records lie between the group's commits and the target of an AvailableNow run.

A consumer that commits the offset after its last record (librdkafka, Spring) never commits the later offsets that have
no record: markers of transactions, aborted transactions, and records that compaction or retention removed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from spark_group_source.clock import Clock
from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import OffsetRange, Offsets, TopicPartition
from spark_group_source.text import names
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.wire_options import WireOptions

log = logging.getLogger(__name__)

FIRST_SCAN, MAX_SCAN = 100, 10_000
"""Minimum and maximum number of offsets of a partition that one call reads. Most tails consist of one transaction
marker. If there are records, the first offsets show that."""

SCAN_TIMEOUT = 5.0
"""Seconds without a response after which a scan fails; also the seconds until the next scan."""

MAX_PARTITIONS = 20
"""Maximum number of partitions that one call scans."""

SCAN_AGAIN = 60.0
"""Seconds after which a tail that had a record is scanned again: retention or compaction may have removed it, and then
its owner commits nothing either."""


class Tail(NamedTuple):
    """The offsets ``[start, end)`` of a partition, as a consumer sees them.

    ``read_committed``: whether the consumer gets committed records only, or all records.
    """

    start: int
    end: int
    read_committed: bool


NOTHING = Tail(-1, -1, read_committed=False)


class TailScan:
    """Scans the offsets after the commits of partitions, a part at each call, and remembers what it has found.

    ``_empty`` holds the part of each partition in which no record is visible. ``_with_records`` holds tails that began
    with a visible record, and the time of that scan. ``_failures`` counts how often in a row a partition could not be
    read.
    """

    def __init__(self, wire: WireOptions, identity: ClusterIdentity, clock: Clock) -> None:
        self._wire = wire
        self._identity = identity
        self._clock = clock
        self._empty: dict[TopicPartition, Tail] = {}
        self._with_records: dict[TopicPartition, tuple[Tail, float]] = {}
        self._failures: Counter[TopicPartition] = Counter()
        self._retry_at = clock()

    def is_empty(self, tp: TopicPartition, start: int, end: int) -> bool:
        """Whether it is known that a partition has no visible record from ``start`` to before ``end``."""
        part = self._empty.get(tp)
        if part is None:
            return False
        return part.start <= start and end <= part.end

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets the scans of these partitions, because their logs have changed."""
        for tp in partitions:
            self._empty.pop(tp, None)
            self._with_records.pop(tp, None)

    def due(self, tails: Mapping[TopicPartition, Tail]) -> dict[TopicPartition, Tail]:
        """The tails to scan now. Earlier scans have shown whether the others have records."""
        if self._clock() < self._retry_at:
            return {}
        due: dict[TopicPartition, Tail] = {}
        for tp, tail in tails.items():
            if not self._had_records(tp, tail) and not self.is_empty(tp, tail.start, tail.end):
                due[tp] = tail
        return due

    def failed(self) -> None:
        """Notes that some leaders do not answer, so that the next scan is due after :data:`SCAN_TIMEOUT`."""
        self._retry_at = self._clock() + SCAN_TIMEOUT

    def _had_records(self, tp: TopicPartition, tail: Tail) -> bool:
        known, scanned_at = self._with_records.get(tp, (NOTHING, 0.0))
        if known != tail:
            return False
        return self._clock() - scanned_at < SCAN_AGAIN

    def scan(self, tails: Mapping[TopicPartition, Tail], begins: Offsets) -> None:
        """Reads a part of some of these tails.

        Args:
            begins: the first offset of the log of each partition whose leader has just answered.
        """
        ranges = {tp: self._next_range(tp, tails[tp], begin) for tp, begin in begins.items()}
        for read_committed in (True, False):
            in_view: list[OffsetRange] = []
            for tp, each in ranges.items():
                if each.size > 0 and tails[tp].read_committed is read_committed:
                    in_view.append(each)
            if in_view:
                self._read(self._selected(in_view), tails, read_committed=read_committed)

    def _next_range(self, tp: TopicPartition, tail: Tail, begin: int) -> OffsetRange:
        """The range to read next. It follows the part that is known to be empty, or that retention has deleted."""
        known = self._empty.get(tp, NOTHING)
        same_view = known.read_committed is tail.read_committed
        if not same_view or not known.start <= tail.start <= known.end:
            known = Tail(tail.start, tail.start, tail.read_committed)
        known = self._empty[tp] = known._replace(end=max(known.end, begin))
        size = min(max(FIRST_SCAN, 10 * (known.end - tail.start)), MAX_SCAN)
        return OffsetRange(*tp, known.end, max(known.end, min(known.end + size, tail.end)))

    def _selected(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """The ranges to read now. A partition that has failed comes last and alone, because it could fail the others
        again."""
        sound = [each for each in ranges if self._failures[each.tp] == 0]
        if sound:
            return sound[:MAX_PARTITIONS]
        return [min(ranges, key=lambda each: self._failures[each.tp])]

    def _read(self, ranges: list[OffsetRange], tails: Mapping[TopicPartition, Tail], *, read_committed: bool) -> None:
        from spark_group_source.fetch.visible import with_records  # noqa: PLC0415 -- numpy takes 0.1 s

        try:
            found = with_records(
                ranges, self._wire, read_committed=read_committed, timeout=SCAN_TIMEOUT, identity=self._identity
            )
        except GroupSourceError as error:
            partitions = names(each.tp for each in ranges)
            log.debug("cannot check %s for records after the group's commits, will retry: %s", partitions, error)
            self.failed()
            self._failures.update(each.tp for each in ranges)
            return
        for each in ranges:
            self._failures.pop(each.tp, None)
            if each.tp in found:
                self._with_records[each.tp] = tails[each.tp], self._clock()
            else:
                self._empty[each.tp] = self._empty[each.tp]._replace(end=each.end)
