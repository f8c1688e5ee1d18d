"""A running query's lines in the log: its membership every few minutes, slow batches, and its end."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock
from spark_group_source.group.membership import Membership
from spark_group_source.group.settings import Counters, GroupSettings, Timings

log = logging.getLogger(__name__)

REPORT_INTERVAL = 300.0
"""Seconds between two lines about the membership."""

SLOW_BATCH_INTERVAL = 1800.0
"""Minimum seconds between two warnings about slow batches: a query may have one every few minutes."""


class QueryLog:
    """Logs what happens to one query, and repeats it rarely."""

    def __init__(self, settings: GroupSettings, counters: Counters, timings: Timings, clock: Clock) -> None:
        self._settings = settings
        self._counters = counters
        self._timings = timings
        self._clock = clock
        self._warn_of_slow_batch_at = float("-inf")
        self._report_at = clock() + REPORT_INTERVAL
        self._reported = ""

    def membership(self, me: Membership, since_heartbeat: float | None, rebalanced_at: float | None) -> None:
        """Logs the counters every :data:`REPORT_INTERVAL`, if one has changed.

        Args:
            me: the membership as it is now.
            since_heartbeat: seconds since its last heartbeat, if it has heartbeats.
            rebalanced_at: when its generation began, in seconds of the clock.
        """
        if self._clock() < self._report_at:
            return
        self._report_at = self._clock() + REPORT_INTERVAL
        if str(self._counters) != self._reported:
            self._reported = str(self._counters)
            times = "" if since_heartbeat is None else f", last heartbeat {since_heartbeat:.0f} s ago"
            times += "" if rebalanced_at is None else f", last rebalance {self._clock() - rebalanced_at:.0f} s ago"
            report = self._reported + times + self._responses()
            log.info("group %s: owns %d partition(s), %s", self._settings.group_id, len(me.owned), report)

    def end(self) -> None:
        """Logs the last counters."""
        log.info("group %s: the query has ended: %s%s", self._settings.group_id, self._counters, self._responses())

    def _responses(self) -> str:
        counts = self._timings.take_report()
        return counts and f"; since the last such line the coordinator answered {counts}"

    def warn_if_slow(self, seconds: float) -> None:
        """Warns if a batch was in flight for longer than a revocation waits, at most every :data:`SLOW_BATCH_INTERVAL`.

        ``seconds`` includes the time to the next trigger if completed batches are not reported.
        """
        settings = self._settings
        no_revocations = bool(settings.subscription.partitions)  # with assign, there is no membership
        if seconds <= settings.revocation_timeout or no_revocations or self._clock() < self._warn_of_slow_batch_at:
            return
        self._warn_of_slow_batch_at = self._clock() + SLOW_BATCH_INTERVAL
        log.warning(
            "group %s: a batch took %.0f s until its commit, but a revocation waits for at most %.0f s: a rebalance in"
            " this time makes the next owner repeat the batch. Make batches smaller with maxOffsetsPerTrigger, or raise"
            " kafka.max.poll.interval.ms (now %.0f) above %.0f. If this query commits each batch when Spark plans the"
            " next one, use batchInterval instead of processingTime.",
            settings.group_id,
            seconds,
            settings.revocation_timeout,
            settings.rebalance_timeout * 1000,
            settings.rebalance_timeout_for(seconds) * 1000,
        )
