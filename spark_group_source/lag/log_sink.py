"""A sink that writes lag to the log."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, monotonic
from spark_group_source.lag.report import LagReport

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Minimum time between two lines about one source, in seconds: small batches may end several times a second."""


class LogSink:
    """Logs one line at ``INFO`` for each source of a query, at most every ``interval`` seconds."""

    def __init__(self, interval: float = INTERVAL, clock: Clock = monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._logged_at: dict[tuple[str, int], float] = {}

    def __call__(self, report: LagReport) -> None:
        """Logs a report if a line is due."""
        key = report.query, report.source
        if self._clock() - self._logged_at.get(key, float("-inf")) >= self._interval:
            self._logged_at[key] = self._clock()
            log.info("%s", report)
