"""What is said in the log of a query while it runs."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock
from spark_group_source.group.counters import Counters, Timings
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership

log = logging.getLogger(__name__)

REPORT_INTERVAL = 300.0
"""Seconds between two lines that say what happened to the membership."""


class Report:
    """What was said of one query, so that it is not said again."""

    def __init__(self, settings: GroupSettings, counters: Counters, timings: Timings, clock: Clock) -> None:
        self._settings = settings
        self._counters = counters
        self._timings = timings
        self._clock = clock
        self._pace_told = False
        self._report_at = clock() + REPORT_INTERVAL
        self._reported = ""

    def membership(self, me: Membership, silence: float | None, rebalanced_at: float | None) -> None:
        """Says now and then what happened to the membership, if anything did.

        Args:
            me: the membership as it is now.
            silence: seconds since its last heartbeat, if there are any.
            rebalanced_at: when its generation began, in seconds of the clock.
        """
        if self._clock() < self._report_at:
            return
        self._report_at = self._clock() + REPORT_INTERVAL
        if str(self._counters) != self._reported:
            self._reported = str(self._counters)
            heard = "" if silence is None else f", last heartbeat {silence:.0f} s ago"
            heard += "" if rebalanced_at is None else f", last rebalance {self._clock() - rebalanced_at:.0f} s ago"
            told = self._reported + heard + self._answers()
            log.info("group %s: owns %d partition(s), %s", self._settings.group_id, len(me.owned), told)

    def end(self) -> None:
        """Says the last counts."""
        log.info("group %s: the query has ended: %s%s", self._settings.group_id, self._counters, self._answers())

    def _answers(self) -> str:
        told = self._timings.take_report()
        return told and f"; since the last such line the group's coordinator has answered {told}"

    def pace(self, took: float) -> None:
        """Warns once where a batch and the time to the next trigger, of which Spark says nothing, are too long for a
        hand-over: ``took`` seconds."""
        if self._pace_told or took <= self._settings.revocation_timeout:
            return
        self._pace_told = True
        log.warning(
            "group %s: batch and trigger interval together took %.0f s; a hand-over waits for %.0f s, and one"
            " that begins meanwhile may repeat the batch. Raise kafka.max.poll.interval.ms (now %.0f), make the trigger"
            " interval shorter, or batches smaller with maxOffsetsPerTrigger.",
            self._settings.group_id,
            took,
            self._settings.revocation_timeout,
            self._settings.rebalance_timeout * 1000,
        )
