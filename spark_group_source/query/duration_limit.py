"""Batches that last about ``targetBatchDuration``: measures completed batches, and limits the next one.

A duration is the time from the plan of a batch to the report that Spark has completed it. Time without records, the
wait for a trigger and ``minBatchInterval`` are therefore not included. Without reports (see ``docs/guarantees.md``) the
source learns of a completion when Spark plans the next batch, and may have waited for the trigger in between. Only the
time of the plan shows such a wait: Spark's ``ProcessingTimeExecutor`` starts batches at multiples of the interval since
1970, which are whole seconds, and at once after a batch that lasted longer. A batch that may have waited then counts as
one of unknown duration.
"""

from __future__ import annotations

import logging
import math
import time

from spark_group_source.clock import Clock, LogEvery, suspended_seconds
from spark_group_source.offsets import BatchOffset, Offsets, TopicPartition
from spark_group_source.query.limits import backlogs, exact_portions
from spark_group_source.query.pace import MeasuredBatch, aimed_seconds, first_pace, next_pace, pace_after_wait

log = logging.getLogger(__name__)

TRIGGER_DELAY = 0.1
"""How many seconds after a trigger a plan may begin and still seem to have waited for it."""

MAX_SUSPENSION = 0.5
"""Maximum seconds for which the machine may be suspended during a batch that counts. In longer suspensions, connections
may break."""

UNREACHABLE_BATCHES = 5
"""Number of batches in a row with too high fixed costs after which a warning is logged."""

UNREACHABLE_INTERVAL = 1800.0
"""Minimum seconds between two such warnings."""


class DurationLimit:
    """The pace of one query, and the measurement of its batch in flight. Only the query's thread may call it."""

    def __init__(self, target: float, group_id: str, clock: Clock, wall_clock: Clock = time.time) -> None:
        """``target`` is the wanted duration of a batch, in seconds."""
        self._target = target
        self._group_id = group_id
        self._clock = clock
        self._wall_clock = wall_clock
        self._pace = first_pace(target)
        self._planned: BatchOffset | None = None
        self._planned_at = 0.0
        self._suspended = 0.0
        self._unreachable = 0
        self._warnings = LogEvery(UNREACHABLE_INTERVAL, clock)

    @property
    def reason(self) -> str:
        """The reason for the limit of the next batch."""
        last = self._pace.last
        if last is None:
            return "no batch has been measured yet"
        measured = f"the last batch took {last.seconds:.1f} s for {last.offsets:,} offsets"
        if self._pace.probed is not None:
            return f"{measured}, and a small one shows what a batch costs without records"
        return measured

    def limit(self, positions: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """``ends``, or earlier offsets if a batch from ``positions`` would take longer than the target.

        Each partition then reads the same fraction of its offsets, at least one.
        """
        counts = backlogs(positions, ends)
        total = sum(counts.values())
        if total == 0:
            return dict(ends)
        portions = exact_portions(counts, min(self._allowed(counts), total))
        return {tp: position + portions.get(tp, 0) for tp, position in positions.items()}

    def _allowed(self, counts: Offsets) -> int:
        """The number of offsets with which neither the batch nor its largest portion exceeds its limit."""
        largest, least = max(counts.values()), len(counts)
        largest_portion = max(1.0, self._pace.largest)
        if largest <= largest_portion:
            return self._pace.offsets
        # Beyond its obligatory offset, each partition gets the same share of its backlog.
        share = (int(largest_portion) - 1) / (largest - 1)
        further = math.ceil(share * (sum(counts.values()) - least))
        return min(self._pace.offsets, least + further)

    def planned(self, batch: BatchOffset) -> None:
        """Notes that the batch begins now."""
        self._planned = batch
        self._planned_at = self._clock()
        self._suspended = suspended_seconds()

    def requested_again(self) -> None:
        """Notes that Spark requests the batch in flight again, so that its real beginning is unknown."""
        self._planned = None

    def completed(self, *, may_have_waited: bool) -> None:
        """Notes that the planned batch was completed.

        Args:
            may_have_waited: whether Spark may have completed it long ago, and then waited for the trigger.
        """
        batch = self._measured()
        self._planned = None
        if batch is None:
            return
        aim = aimed_seconds(self._target, self._pace.fixed)
        if may_have_waited and batch.seconds > aim and self._is_time_of_trigger():
            self._pace = pace_after_wait(self._pace, batch)
            return
        self._pace = next_pace(self._pace, self._target, batch)
        self._warn_if_unreachable()

    def _measured(self) -> MeasuredBatch | None:
        """The batch with its duration until now; ``None`` if the duration shows nothing about the costs."""
        if self._planned is None:
            return None
        if suspended_seconds() - self._suspended > MAX_SUSPENSION:
            return None
        sizes = [read.size for read in self._planned.reads()]
        if not sizes:
            return None
        seconds = max(self._clock() - self._planned_at, 0.001)
        return MeasuredBatch(sum(sizes), max(sizes), seconds)

    def _is_time_of_trigger(self) -> bool:
        """Whether a trigger with an interval of whole seconds has just started a batch."""
        return self._wall_clock() % 1.0 < TRIGGER_DELAY

    def _warn_if_unreachable(self) -> None:
        aim = aimed_seconds(self._target, self._pace.fixed)
        if aim <= self._target:
            self._unreachable = 0
            return
        self._unreachable += 1
        if self._unreachable < UNREACHABLE_BATCHES or not self._warnings.try_acquire():
            return
        log.warning(
            "group %s: targetBatchDuration is %.1f s, but a batch takes about %.1f s before it reads a record. Batches"
            " take about %.1f s instead: raise targetBatchDuration, or lower what each batch costs in the sink.",
            self._group_id,
            self._target,
            self._pace.fixed,
            aim,
        )
