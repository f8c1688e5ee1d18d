"""Log lines about one query as a whole: its membership, slow batches, and offsets that it could not commit at its end.

:func:`.starts.rules.log_starts` logs where its partitions start.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, LogEvery
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.query.owned_partition import Owned
from spark_group_source.text import some

log = logging.getLogger(__name__)

REPORT_INTERVAL = 300.0
"""Seconds between two lines about the membership."""

SLOW_BATCH_INTERVAL = 1800.0
"""Minimum seconds between two warnings about slow batches: a query may have one every few minutes."""

UNKNOWN_OFFSET_INTERVAL = 600.0
"""Seconds between two warnings that Spark continues at another offset."""

SLOWDOWN = 2.0
"""Factor by which a batch may exceed ``targetBatchDuration`` after the sink has become slower."""


class QueryLog:
    """Logs the events of one query, and limits how often a line is repeated."""

    def __init__(
        self,
        settings: GroupSettings,
        target: float | None,
        member: Member | ManualAssignment,
        timings: Timings,
        clock: Clock,
    ) -> None:
        """``target`` is ``targetBatchDuration`` in seconds, if it is set."""
        self._settings = settings
        self._target = target
        self._member = member
        self._counters = member.counters
        self._timings = timings
        self._clock = clock
        self._slow_batches = LogEvery(SLOW_BATCH_INTERVAL, clock)
        self._unknown_offsets = LogEvery(UNKNOWN_OFFSET_INTERVAL, clock)
        self._reports = LogEvery(REPORT_INTERVAL, clock, clock() + REPORT_INTERVAL)
        self._reported = ""

    def membership(self) -> None:
        """Logs the counters every :data:`REPORT_INTERVAL`, if one has changed.

        Raises:
            GroupSourceError: the membership failed.
        """
        if not self._reports.try_acquire():
            return
        counters = str(self._counters)
        if counters == self._reported:
            return
        self._reported = report = counters
        owned = self._member.snapshot().owned
        since_heartbeat = self._member.time_since_heartbeat
        rebalanced_at = self._member.rebalanced_at
        if since_heartbeat is not None:
            report += f"; last heartbeat {since_heartbeat:.0f} s ago"
        if rebalanced_at is not None:
            report += f", last rebalance {self._clock() - rebalanced_at:.0f} s ago"
        report += self._responses()
        log.info(
            "group %s: owns %d partition(s). Counts since the query began: %s",
            self._settings.group_id,
            len(owned),
            report,
        )

    def end(self) -> None:
        """Logs the last counters."""
        log.info("group %s: the query has ended: %s%s", self._settings.group_id, self._counters, self._responses())

    def uncommitted(self, offsets: Owned, why: str) -> None:
        """Warns of completed offsets that the query could not commit before its end."""
        if not offsets:
            return
        if not why:
            why = "another commit was in progress, or the group had removed this member"
        log.warning(
            "group %s: the query ended without committing %s: %s. The next owner continues at the last commits, and"
            " reads the records after them again.",
            self._settings.group_id,
            some([f"{tp} at {owned.completed}" for tp, owned in sorted(offsets.items())]),
            why,
        )

    def warn_of_unknown_offset(self) -> None:
        """Warns that Spark does not continue at the end of the batch in flight, so that this batch is never committed.

        No release of Spark does so. It would mean that Spark has logged another offset than it was given.
        """
        if self._unknown_offsets.try_acquire():
            log.warning(
                "group %s: Spark continues at another offset than the end of the batch that it was given, so the group"
                " does not commit that batch. Please report this with the newest files of the checkpoint's 'offsets'"
                " directory.",
                self._settings.group_id,
            )

    def _responses(self) -> str:
        counts = self._timings.take_report()
        if not counts:
            return ""
        return f"; since the last such line the coordinator answered {counts}"

    def warn_if_slow(self, seconds: float) -> None:
        """Warns if a batch took longer than a revocation waits for it, at most every :data:`SLOW_BATCH_INTERVAL`.

        Args:
            seconds: from the plan of the batch to its completion. If Spark does not report completed batches, this
                includes the wait for the next trigger.
        """
        settings = self._settings
        if seconds <= settings.revocation_timeout:
            return
        if settings.subscription.partitions:  # with assign there is no membership, and nothing is revoked
            return
        if not self._slow_batches.try_acquire():
            return
        log.warning(
            "group %s: a batch took %.0f s until its commit, but a revocation waits for at most %.0f s: a rebalance in"
            " this time makes the next owner repeat the batch. %s raise kafka.max.poll.interval.ms (now %.0f) above"
            " %.0f. If this query commits each batch when Spark plans the next one, use minBatchInterval instead of"
            " processingTime.",
            settings.group_id,
            seconds,
            settings.revocation_timeout,
            self._how_to_shorten(),
            settings.rebalance_timeout * 1000,
            settings.rebalance_timeout_for(seconds) * 1000,
        )

    def _how_to_shorten(self) -> str:
        """How to make batches short enough: the part of the log line before the second remedy."""
        longest = self._settings.revocation_timeout / SLOWDOWN
        if self._target is None or self._target > longest:
            return f"Make batches shorter with targetBatchDuration={longest:g}s, or"
        return f"targetBatchDuration={self._target:g}s makes the next ones shorter. If this happens often,"

    def warn_of_long_target(self) -> None:
        """Warns of a ``targetBatchDuration`` with which batches may last longer than a revocation waits."""
        settings, target = self._settings, self._target
        if target is None or target <= settings.revocation_timeout:
            return
        if settings.subscription.partitions:
            return
        log.warning(
            "group %s: targetBatchDuration is %.0f s, but a revocation waits for at most %.0f s: a rebalance during a"
            " batch may make the next owner repeat the batch. Set targetBatchDuration to %gs, or raise"
            " kafka.max.poll.interval.ms (now %.0f) above %.0f.",
            settings.group_id,
            target,
            settings.revocation_timeout,
            settings.revocation_timeout / SLOWDOWN,
            settings.rebalance_timeout * 1000,
            settings.rebalance_timeout_for(target * SLOWDOWN) * 1000,
        )
