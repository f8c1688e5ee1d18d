"""Spark's entry point for lag: a listener that turns the progress of queries into reports."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_group_source.clock import Clock, LogEvery, monotonic
from spark_group_source.lag.client import GroupLagClient, ThrottledLagClient
from spark_group_source.lag.model import LagReport, Sample
from spark_group_source.lag.rate_window import RateWindow
from spark_group_source.lag.source_progress import SourceProgress, epoch_seconds, source_progress

log = logging.getLogger(__name__)

LOG_INTERVAL = 10.0
"""Minimum seconds between two lines about one source: small batches may end several times a second."""


class LogSink:
    """Logs one line at ``INFO`` for each source of a query, at most every ``interval`` seconds."""

    def __init__(self, interval: float = LOG_INTERVAL, clock: Clock = monotonic) -> None:
        self._lines: defaultdict[tuple[str, int], LogEvery] = defaultdict(partial(LogEvery, interval, clock))

    def __call__(self, report: LagReport) -> None:
        """Logs a report if a line is due."""
        if self._lines[report.query, report.source].try_acquire():
            log.info("%s", report)


Sink = Callable[[LagReport], None]
"""A function that receives each report."""


@dataclass
class _Run:
    """One run of a query, with its last progress and the rates of its sources."""

    id: str
    query: str
    sources: dict[int, SourceProgress] = field(default_factory=dict)
    rates: dict[int, RateWindow] = field(default_factory=dict)

    def source_of(self, group: str) -> SourceProgress | None:
        """The query's source that is a member of this group."""
        for source in self.sources.values():
            if source.batch.group == group:
                return source
        return None


class LagListener(StreamingQueryListener):
    """Reports lag after each batch of each query, and about every ten seconds while a query is idle.

    Without ``client`` the figures come from the query's progress (PySpark 4.2 or later): the partitions that the query
    owns, and their end offsets when it planned the batch. With ``client`` each event looks up the group from outside:
    all committed offsets of the group, and the current end offsets.

    Spark delivers events one after another, on a thread that never blocks a query. Exceptions of sinks are logged.

    Args:
        sinks: functions that receive the reports.
        client: looks up the group. The listener closes it when the last query ends; it can be used again.
        query_name: the only query to report; ``None`` reports all. With ``client``, name the query of the client's
            group.
    """

    def __init__(self, *sinks: Sink, client: GroupLagClient | None = None, query_name: str | None = None) -> None:
        self._sinks = sinks
        self._client: ThrottledLagClient | None = None
        if client is not None:
            self._client = ThrottledLagClient(client)
        self._query_name = query_name
        self._runs: dict[str, _Run] = {}
        if client is None and not hasattr(DataSourceStreamReader, "reportLatestOffset"):
            log.warning(
                "cannot report the lag: PySpark before 4.2 shows no end offsets; pass a lag client to LagListener"
            )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Notes a query that is about to start. The query's start waits for this call."""
        self._run(event.runId, event.id, event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Reports a batch that is complete."""
        progress = json.loads(event.progress.json)
        run = self._run(progress["runId"], progress["id"], progress.get("name"))
        run.sources = source_progress(progress, run.sources)
        self._report_run(run, progress["timestamp"])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Reports a query that found no records."""
        self._report_run(self._run(event.runId, event.id), event.timestamp)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Reports a query that has stopped or failed, for the last time."""
        run = self._run(event.runId, event.id)
        del self._runs[run.id]
        if self._client is not None:
            self._report_group(run, self._client, last=True)
            if not self._runs:
                self._client.close()

    def _run(self, run_id: object, query_id: object, name: str | None = None) -> _Run:
        run = self._runs.setdefault(str(run_id), _Run(str(run_id), str(query_id)))
        if name:
            run.query = name
        return run

    def _report_run(self, run: _Run, timestamp: str) -> None:
        if self._client is not None:
            self._report_group(run, self._client)
            return
        for number, source in run.sources.items():
            if source.end_offsets is not None:
                self._report(run, source.sample(epoch_seconds(timestamp)), source, number, group=source.group)

    def _report_group(self, run: _Run, client: ThrottledLagClient, last: bool = False) -> None:
        if not self._is_selected(run):
            return
        sample = client.sample(last)
        if sample is not None:
            self._report(run, sample, run.source_of(client.group), group=client.group)

    def _is_selected(self, run: _Run) -> bool:
        return self._query_name in (None, run.query)

    def _report(
        self, run: _Run, sample: Sample, progress: SourceProgress | None, source: int = 0, group: str | None = None
    ) -> None:
        if not self._is_selected(run):
            return
        rates = run.rates.setdefault(source, RateWindow()).add(sample)
        partitions, unknown = sample.partitions(), sample.unknown()
        counters, limit = None, None
        if progress is not None:
            counters, limit = progress.counters, progress.limit
        report = LagReport(run.query, run.id, sample.at, partitions, rates, source, group, unknown, counters, limit)
        for sink in self._sinks:
            try:
                sink(report)
            # A sink is the user's code: its failure must not keep the report from the other sinks.
            except Exception:
                log.exception("a lag sink failed; the query and the other sinks continue")
