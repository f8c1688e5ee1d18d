"""Lag as Prometheus metrics: a text file for node_exporter's textfile collector, or any registry.

Needs the extra ``prometheus``. Names follow Prometheus' conventions: gauges end with their base unit, counters with
``_total``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spark_group_source.group.counters import Counters
from spark_group_source.lag.model import LagReport, PartitionLag

PREFIX = "kafka_group_source_"
SOURCE_LABELS = ("query", "source", "group")

PARTITION_GAUGES: dict[str, tuple[str, Callable[[PartitionLag], float | None]]] = {
    "lag_offsets": ("Offsets left to process.", lambda each: each.lag),
    "position_offset": ("Next offset to process.", lambda each: each.position),
    "log_end_offset": ("High watermark, or with read_committed the last stable offset.", lambda each: each.end),
    "age_seconds": (
        "Seconds since the first record left to process was written; 0: no record is left.",
        lambda each: each.age,
    ),
}
"""Name to help text and value. A gauge whose value is ``None`` is left out."""


def _total_lag(report: LagReport) -> float | None:
    if report.unknown:
        return None
    return report.total


def _largest_lag(report: LagReport) -> float | None:
    if report.unknown or report.largest is None:
        return None
    return report.largest.lag


def _largest_age(report: LagReport) -> float | None:
    if report.unknown_ages or report.oldest is None:
        return None
    return report.oldest.age


SOURCE_GAUGES: dict[str, tuple[str, Callable[[LagReport], float | None]]] = {
    "lag_sum_offsets": ("Offsets left to process in all partitions.", _total_lag),
    "lag_max_offsets": ("Offsets left to process in the partition with the largest lag.", _largest_lag),
    "unknown_lag_partitions": (
        "Partitions whose lag is unknown, because no leader returned the end offset.",
        lambda each: len(each.unknown),
    ),
    "age_max_seconds": ("Age in the partition with the largest age.", _largest_age),
    "unknown_age_partitions": ("Partitions whose age is unknown.", lambda each: len(each.unknown_ages)),
    "processed_offsets_per_second": ("Processed per second over the last minute.", lambda each: each.rates.processed),
    "arrived_offsets_per_second": ("Arrived per second over the last minute.", lambda each: each.rates.arrived),
    "catch_up_seconds": ("Seconds until the lag is 0 at these rates; +Inf: never.", lambda each: each.catch_up),
    "report_timestamp_seconds": ("Time of the other gauges, in seconds since 1970.", lambda each: each.at),
}
"""Name to help text and value, as :data:`PARTITION_GAUGES`."""

COUNTERS: dict[str, tuple[str, Callable[[Counters], int]]] = {
    "batches": ("Batches completed.", lambda each: each.batches),
    "processed_offsets": ("Offsets of completed batches.", lambda each: each.offsets),
    "joins": ("Times the query's member asked to join the group.", lambda each: each.joins),
    "rebalances": (
        "Rebalances completed; with KIP-848, changes of the member's assignment.",
        lambda each: each.rebalances,
    ),
    "revoked_partitions": ("Partitions revoked.", lambda each: each.revoked),
    "revocation_timed_out_partitions": (
        "Partitions revoked before their batch was committed: the next owner repeats it.",
        lambda each: each.revocation_timed_out,
    ),
    "lost_partitions": ("Partitions lost without a revocation.", lambda each: each.lost),
    "commits": ("Commits that the group accepted.", lambda each: each.commits),
    "failed_commits": ("Commits that failed.", lambda each: each.failed_commits),
}
"""Name without ``_total`` to help text and value, counted since the run of the query began."""


class LagCollector(Collector):
    """Holds the newest report of each source of each query, for a registry that serves metrics.

    After a query has ended, its last report stays, with the time of that report.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], LagReport] = {}

    def __call__(self, report: LagReport) -> None:
        """Stores a report."""
        # A new dictionary, because another thread may be collecting.
        self._newest = {**self._newest, (report.query, report.source): report}

    def collect(self) -> Iterator[Metric]:
        """All metrics of the newest reports."""
        reports = list(self._newest.values())
        yield from _partition_gauges(reports)
        yield from _source_gauges(reports)
        yield from _counters(reports)


def _partition_gauges(reports: Sequence[LagReport]) -> Iterator[Metric]:
    for name, (help_text, lag_value) in PARTITION_GAUGES.items():
        gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=(*SOURCE_LABELS, "topic", "partition"))
        for report in reports:
            for lag in report.partitions:
                value = lag_value(lag)
                if value is not None:
                    gauge.add_metric((*_labels(report), lag.tp.topic, str(lag.tp.partition)), value)
        yield gauge


def _source_gauges(reports: Sequence[LagReport]) -> Iterator[Metric]:
    for name, (help_text, source_value) in SOURCE_GAUGES.items():
        gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=SOURCE_LABELS)
        for report in reports:
            value = source_value(report)
            if value is not None:
                gauge.add_metric(_labels(report), value)
        yield gauge


def _counters(reports: Sequence[LagReport]) -> Iterator[Metric]:
    for name, (help_text, count) in COUNTERS.items():
        counter = CounterMetricFamily(PREFIX + name, help_text, labels=SOURCE_LABELS)
        for report in reports:
            if report.counters is not None:
                counter.add_metric(_labels(report), count(report.counters))
        yield counter


def _labels(report: LagReport) -> tuple[str, str, str]:
    group = report.group
    if group is None:
        group = ""
    return report.query, str(report.source), group


class PrometheusFile:
    """Writes all metrics to a file after each report, for node_exporter's textfile collector.

    The file is replaced in one step, so node_exporter never reads an incomplete file.

    Args:
        path: a file in the directory of node_exporter's ``--collector.textfile.directory``. Its name must end in
            ``.prom``, and each process needs its own file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._collector = LagCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)

    def __call__(self, report: LagReport) -> None:
        """Stores a report and writes the file.

        Raises:
            OSError: the file is not writable.
        """
        self._collector(report)
        write_to_textfile(self._path, self._registry)
