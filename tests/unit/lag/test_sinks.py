"""Reports in the log, and as Prometheus metrics."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_fd_to_metric_families

from spark_group_source.group.counters import Counters
from spark_group_source.lag.listener import LogSink
from spark_group_source.lag.model import Rates
from spark_group_source.lag.prometheus import PrometheusFile
from spark_group_source.offsets import TopicPartition
from tests.unit.hand_clock import Hand
from tests.unit.lag.events import report, with_ages

Sample = tuple[str, tuple[tuple[str, str], ...]]


def labels(query: str = "q", source: int = 0, group: str = "", **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"query": query, "source": str(source), "group": group, **more}.items()))


class File(PrometheusFile):
    """The sink, and what Prometheus would read from its file."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "lag.prom"
        super().__init__(self.path)

    def families(self) -> list[Metric]:
        with self.path.open(encoding="utf-8") as text:
            return list(text_fd_to_metric_families(text))

    def samples(self) -> dict[Sample, float]:
        """The samples by name and labels."""
        return {
            (each.name.removeprefix("kafka_group_source_"), tuple(sorted(each.labels.items()))): each.value
            for family in self.families()
            for each in family.samples
        }

    def of_query(self) -> dict[str, float]:
        """The figures of the whole query "q", by name."""
        return {name: value for (name, which), value in self.samples().items() if which == labels()}


@pytest.fixture
def sink(tmp_path: Path) -> File:
    return File(tmp_path)


def test_the_log_has_one_line_per_interval_for_each_source(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sink = LogSink(interval=10.0, clock=hand)
    for _ in range(21):
        sink(report(3))
        sink(report(3, query="other"))
        hand.sleep(1)
    assert caplog.messages.count("q: lag 3 in 1 partition(s), most in orders-0 (3)") == 3
    assert caplog.messages.count("other: lag 3 in 1 partition(s), most in orders-0 (3)") == 3


def test_prometheus_reads_all_figures_of_a_report(sink: File) -> None:
    first, second = labels(topic="orders", partition="0"), labels(topic="orders", partition="1")
    sink(report(30, 0, rates=Rates(20.0, 5.0)))
    samples = sink.samples()
    assert [samples[name, first] for name in ("lag_offsets", "position_offset", "log_end_offset")] == [30, 100, 130]
    assert samples["lag_offsets", second] == 0
    figures = {
        "lag_sum_offsets": 30,
        "lag_max_offsets": 30,
        "processed_offsets_per_second": 20,
        "arrived_offsets_per_second": 5,
        "catch_up_seconds": 2,
        "unknown_lag_partitions": 0,
        "unknown_age_partitions": 2,
        "report_timestamp_seconds": 5,
    }
    assert sink.of_query() == figures
    # While the lag of a partition is unknown, the sum is left out.
    sink(replace(report(30, rates=Rates(20.0, 5.0)), unknown=(TopicPartition("orders", 1),)))
    samples = sink.samples()
    assert (samples["lag_offsets", first], second in {which for _, which in samples}) == (30, False)
    for name in ("lag_sum_offsets", "lag_max_offsets", "catch_up_seconds"):
        del figures[name]
    assert sink.of_query() == figures | {"unknown_lag_partitions": 1}


def test_prometheus_reads_the_ages_that_are_known(sink: File) -> None:
    first, second, third = (labels(topic="orders", partition=str(number)) for number in range(3))
    sink(with_ages(report(30, 0, 4), 12.5, 0.0, 300.0))
    samples = sink.samples()
    assert [samples["age_seconds", each] for each in (first, second, third)] == [12.5, 0.0, 300.0]
    assert (samples["age_max_seconds", labels()], samples["unknown_age_partitions", labels()]) == (300.0, 0)
    sink(with_ages(report(30, 0, 4), 12.5, 0.0, None))
    samples = sink.samples()
    assert samples["age_seconds", first] == 12.5
    assert ("age_seconds", third) not in samples
    assert ("age_max_seconds", labels()) not in samples, "a larger one may be unknown"
    assert samples["unknown_age_partitions", labels()] == 1


def test_prometheus_reads_the_counters_of_a_report(sink: File) -> None:
    sink(report(1))
    assert not [name for name, _ in sink.samples() if name.endswith("_total")]
    sink(replace(report(1), counters=Counters(7, 70, 2, 3, 4, 1, 5, 6, 8)))
    assert {name: value for name, value in sink.of_query().items() if name.endswith("_total")} == {
        "batches_total": 7,
        "processed_offsets_total": 70,
        "joins_total": 2,
        "rebalances_total": 3,
        "revoked_partitions_total": 4,
        "revocation_timed_out_partitions_total": 1,
        "lost_partitions_total": 5,
        "commits_total": 6,
        "failed_commits_total": 8,
    }


def test_an_unknown_time_to_catch_up_is_left_out_and_never_is_infinite(sink: File) -> None:
    sink(report(1))
    assert ("catch_up_seconds", labels()) not in sink.samples()
    sink(report(1, rates=Rates(1.0, 1.0)))
    assert sink.samples()["catch_up_seconds", labels()] == math.inf


def test_each_query_and_source_has_its_newest_figures(sink: File) -> None:
    for each in (report(9, 9), report(1), report(2, source=1), report(3, query="other")):
        sink(each)
    assert {which: value for (name, which), value in sink.samples().items() if name == "lag_offsets"} == {
        labels(topic="orders", partition="0"): 1,
        labels(source=1, group="g", topic="orders", partition="0"): 2,
        labels(query="other", topic="orders", partition="0"): 3,
    }


def test_every_metric_has_help_and_a_type_and_no_timestamp(sink: File) -> None:
    sink(report(1, rates=Rates(1.0, 0.0)))
    assert sink.path.read_text().endswith("\n")
    families = sink.families()
    assert Counter(each.type for each in families) == {"gauge": 13, "counter": 9}
    assert all(each.documentation for each in families)
    # node_exporter rejects a file in which a sample has a timestamp.
    assert all(each.timestamp is None for family in families for each in family.samples)
