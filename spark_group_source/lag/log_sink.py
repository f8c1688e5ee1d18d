"""Lag in the log."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, monotonic
from spark_group_source.lag.report import LagReport

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two lines about one source: small batches may come several times a second."""


class LogSink:
    """One line at INFO for each source of a query, at most every ``interval`` seconds."""

    def __init__(self, interval: float = INTERVAL, clock: Clock = monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._said_at: dict[tuple[str, int], float] = {}

    def __call__(self, report: LagReport) -> None:
        """Takes a report."""
        key = report.query, report.source
        if self._clock() - self._said_at.get(key, float("-inf")) >= self._interval:
            self._said_at[key] = self._clock()
            log.info("%s", report)
