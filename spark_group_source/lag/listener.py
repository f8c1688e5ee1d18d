"""Spark's door for lag: a listener that turns the progress of queries into reports."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.progress import SourceProgress, moment, sources
from spark_group_source.lag.rates import RateWindow
from spark_group_source.lag.report import LagReport
from spark_group_source.lag.sample import Sample
from spark_group_source.lag.throttled_probe import ThrottledProbe

log = logging.getLogger(__name__)

Sink = Callable[[LagReport], None]
"""Where reports go: any function that takes one."""


@dataclass
class _Run:
    """One run of a query: what its last progress said, and the rates of its sources."""

    id: str
    query: str
    known: dict[int, SourceProgress] = field(default_factory=dict)
    windows: dict[int, RateWindow] = field(default_factory=dict)


class LagListener(StreamingQueryListener):
    """Reports lag after each batch of each query, and while a query is idle whenever Spark says so (every ten seconds).

    Without ``look`` that is what a query's progress tells (from PySpark 4.2 on): the partitions that the query owns,
    and the ends of the logs when the batch was planned, less what the batch has read. With it each event is the
    occasion to look at the group from outside: all that the group has committed, and the ends of the logs now.

    Events come one after another on a thread that is not the query's. What a sink raises is logged.

    Args:
        sinks: where reports go.
        look: at the group; it is closed when the last query has ended, and may be used again.
        query_name: of the only query to report; all are where it is ``None``. Needed with ``look`` where the session
            has other queries.
    """

    def __init__(self, *sinks: Sink, look: GroupOffsetsProbe | None = None, query_name: str | None = None) -> None:
        self._sinks = sinks
        self._looks = ThrottledProbe(look) if look else None
        self._query_name = query_name
        self._runs: dict[str, _Run] = {}
        if look is None and not hasattr(DataSourceStreamReader, "reportLatestOffset"):
            log.warning("PySpark tells the ends of logs from 4.2 on: without a look at the group no lag is reported")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query is about to start, and waits for this call."""
        self._run(event.runId, event.id, event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done."""
        progress = json.loads(event.progress.json)
        run = self._run(progress["runId"], progress["id"], progress.get("name"))
        run.known = sources(progress, run.known)
        self._tell(run, progress["timestamp"])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """A query has looked for records and found none."""
        self._tell(self._run(event.runId, event.id), event.timestamp)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended, in whatever way."""
        run = self._run(event.runId, event.id)
        del self._runs[run.id]
        if self._looks is not None:
            self._tell_group(run, self._looks, last=True)
            if not self._runs:
                self._looks.close()

    def _run(self, run_id: object, query_id: object, name: str | None = None) -> _Run:
        run = self._runs.setdefault(str(run_id), _Run(str(run_id), str(query_id)))
        if name:
            run.query = name
        return run

    def _tell(self, run: _Run, timestamp: str) -> None:
        if self._looks is not None:
            self._tell_group(run, self._looks)
            return
        for number, source in run.known.items():
            if source.ends is not None:
                self._report(run, source.sample(moment(timestamp)), number)

    def _tell_group(self, run: _Run, looks: ThrottledProbe, last: bool = False) -> None:
        if self._wanted(run) and (found := looks.sample(last)) is not None:
            self._report(run, found, group=looks.group)

    def _wanted(self, run: _Run) -> bool:
        return self._query_name in (None, run.query)

    def _report(self, run: _Run, sample: Sample, source: int = 0, group: str | None = None) -> None:
        if not self._wanted(run):
            return
        rates = run.windows.setdefault(source, RateWindow()).add(sample)
        report = LagReport(run.query, run.id, sample.at, sample.partitions(), rates, source, group, sample.unknown())
        for sink in self._sinks:
            try:
                sink(report)
            # A user's code: the next report may fare better, and the other sinks are to have this one.
            except Exception:
                log.exception("a sink of lag failed")
