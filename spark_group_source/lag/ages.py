"""The age of a lag: how long ago the first record that a group has still to read was written.

That is the first record at or after the committed offset that a consumer of the group gets. The producer
(``CreateTime``) or the broker (``LogAppendTime``) sets its timestamp, as the topic is configured. The age is the
difference to this machine's clock. If no record is left to read, the age is 0. Unknown ages are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.fetch.first_records import first_records
from spark_group_source.offsets import OffsetRange, Offsets, TopicPartition
from spark_group_source.wire.cluster import Cluster

KEEP = 60.0
"""Seconds until the first record after an unchanged commit is looked up again, because retention may have deleted
it."""

DENIED_AGAIN = 300.0
"""Seconds until the next lookup in a topic that this client may not read, because the broker logs each rejection."""

MAX_CLOCK_DIFFERENCE = 60.0
"""Maximum seconds by which a timestamp may be later than this machine's clock. Such a record counts as just written. An
even later timestamp is wrong (for example, in microseconds) and says nothing about the age."""


@dataclass(frozen=True, slots=True)
class _OldestRecord:
    """The first record at or after ``position`` and before ``end``.

    ``timestamp`` is in milliseconds since 1970, or ``None`` without a record for a consumer.
    """

    position: int
    end: int
    timestamp: int | None
    looked_up_at: float

    def is_of(self, position: int, end: int) -> bool:
        """Whether this is still the first record between ``position`` and ``end``, unless retention has deleted it."""
        if self.position != position:
            return False
        return self.timestamp is not None or self.end == end


class OldestRecords:
    """Looks up the oldest records that a group has not committed, and remembers them until the group commits.

    ``denied`` are the topics that this client may not read.
    """

    def __init__(self, cluster: Cluster, *, read_committed: bool, clock: Clock = monotonic) -> None:
        self.denied: set[str] = set()
        self._cluster = cluster
        self._read_committed = read_committed
        self._clock = clock
        self._known: dict[TopicPartition, _OldestRecord] = {}
        self._denied_until = clock()

    def look_up(self, positions: Offsets, ends: Offsets, deadline: Deadline) -> None:
        """Looks up the unknown oldest records between these offsets, those of the largest backlogs first.

        A lookup may fail for some partitions. Their records stay unknown until the next lookup.
        """
        now = self._clock()
        if now >= self._denied_until:
            self.denied = set()
        self._forget_former(positions, ends, now)
        backlogs = []
        for tp, position in positions.items():
            end = ends.get(tp, position)
            if end > position and tp not in self._known and tp.topic not in self.denied:
                backlogs.append(OffsetRange(*tp, position, end))
        if backlogs:
            backlogs.sort(key=lambda each: each.size, reverse=True)
            self._fetch(backlogs, deadline)

    def ages(self, positions: Offsets, ends: Offsets, at: float) -> dict[TopicPartition, float]:
        """The known ages of the partitions in seconds, at the time ``at`` in seconds since 1970."""
        ages: dict[TopicPartition, float] = {}
        for tp in positions.keys() & ends.keys():
            if ends[tp] <= positions[tp]:
                ages[tp] = 0.0
            elif tp in self._known:
                age = age_at(at, self._known[tp].timestamp)
                if age is not None:
                    ages[tp] = age
        return ages

    def _forget_former(self, positions: Offsets, ends: Offsets, now: float) -> None:
        """Forgets the records that may no longer be the oldest."""
        kept: dict[TopicPartition, _OldestRecord] = {}
        for tp, known in self._known.items():
            is_fresh = now - known.looked_up_at < KEEP
            if is_fresh and tp in ends and known.is_of(positions.get(tp, -1), ends[tp]):
                kept[tp] = known
        self._known = kept

    def _fetch(self, backlogs: list[OffsetRange], deadline: Deadline) -> None:
        found = first_records(self._cluster, backlogs, read_committed=self._read_committed, deadline=deadline)
        now = self._clock()
        for each in backlogs:
            if each.tp in found.timestamps:
                self._known[each.tp] = _OldestRecord(each.start, each.end, found.timestamps[each.tp], now)
            elif each.tp in found.empty:
                self._known[each.tp] = _OldestRecord(each.start, each.end, None, now)
        if found.denied:
            self.denied |= found.denied
            self._denied_until = now + DENIED_AGAIN


def age_at(at: float, timestamp: int | None) -> float | None:
    """The age in seconds of the record with this timestamp, in milliseconds since 1970; 0 if ``timestamp`` is ``None``,
    which stands for no record.

    Returns ``None`` if the record has no timestamp, or a timestamp that is later than :data:`MAX_CLOCK_DIFFERENCE`
    allows.
    """
    if timestamp is None:
        return 0.0
    if timestamp < 0:
        return None
    age = at - timestamp / 1000
    if age < -MAX_CLOCK_DIFFERENCE:
        return None
    return max(0.0, age)
