"""Lag as Prometheus metrics: a text file for node_exporter's textfile collector, or any registry.

Needs the extra ``prometheus``. Names follow Prometheus' conventions: gauges with their base unit at the end, and labels
for what may be summed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from spark_group_source.lag.report import LagReport
from spark_group_source.lag.sample import PartitionLag

PREFIX = "kafka_group_source_"
SOURCE = ("query", "source", "group")

OF_PARTITIONS: dict[str, tuple[str, Callable[[PartitionLag], int]]] = {
    "lag_offsets": ("Offsets still to be processed.", lambda each: each.lag),
    "position_offset": ("Next offset to be processed.", lambda each: each.position),
    "log_end_offset": ("Next offset to be written, or with read_committed the last stable one.", lambda each: each.end),
}
OF_SOURCES: dict[str, tuple[str, Callable[[LagReport], float | None]]] = {
    "lag_sum_offsets": (
        "Offsets still to be processed in all partitions.",
        lambda each: None if each.unknown else each.total,
    ),
    "lag_max_offsets": (
        "Offsets still to be processed where most are.",
        lambda each: each.largest.lag if each.largest and not each.unknown else None,
    ),
    "unknown_lag_partitions": (
        "Partitions whose lag is unknown, as no leader told the end of the log.",
        lambda each: len(each.unknown),
    ),
    "processed_offsets_per_second": ("Processed a second, over the last minute.", lambda each: each.rates.processed),
    "arrived_offsets_per_second": ("Arrived a second, over the last minute.", lambda each: each.rates.arrived),
    "catch_up_seconds": ("Until nothing is left at these rates; +Inf: never.", lambda each: each.catch_up),
    "report_timestamp_seconds": ("When the other figures were so, since 1970.", lambda each: each.at),
}
"""Name to help text and value; ``None`` is left out."""


class LagCollector(Collector):
    """Holds the newest report of each source of each query; for a registry that metrics are served from.

    A query that has ended keeps its last figures, with the time they are of.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], LagReport] = {}

    def __call__(self, report: LagReport) -> None:
        """Takes a report."""
        # A new dictionary: another thread may be collecting.
        self._newest = {**self._newest, (report.query, report.source): report}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All metrics."""
        reports = list(self._newest.values())
        for name, (text, partition_value) in OF_PARTITIONS.items():
            family = GaugeMetricFamily(PREFIX + name, text, labels=(*SOURCE, "topic", "partition"))
            for report in reports:
                for each in report.partitions:
                    labels = (*_labels(report), each.tp.topic, str(each.tp.partition))
                    family.add_metric(labels, partition_value(each))
            yield family
        for name, (text, value_of) in OF_SOURCES.items():
            family = GaugeMetricFamily(PREFIX + name, text, labels=SOURCE)
            for report in reports:
                value = value_of(report)
                if value is not None:
                    family.add_metric(_labels(report), value)
            yield family


class PrometheusFile:
    """Writes all metrics to a file after each report, for node_exporter's textfile collector.

    The file is replaced in one step, so that none is read half written.

    Args:
        path: in the directory that node_exporter is given with ``--collector.textfile.directory``; it reads files
            that end in ``.prom``, and each process needs one of its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._collector = LagCollector()
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)

    def __call__(self, report: LagReport) -> None:
        """Takes a report.

        Raises:
            OSError: the file cannot be written.
        """
        self._collector(report)
        write_to_textfile(self._path, self._registry)


def _labels(report: LagReport) -> tuple[str, str, str]:
    return report.query, str(report.source), report.group or ""
