"""The reader of a stream, as Spark calls it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_group_source.group.counters import Counters
from spark_group_source.offsets import BatchOffset, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import driver
from spark_group_source.spark import stream
from spark_group_source.spark.input_partitions import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader

OPTIONS = {"kafka.bootstrap.servers": "b:9092", "kafka.group.id": "g", "subscribe": "t"}


class FakeDriver:
    """A driver that has seen end offsets and counted a rebalance."""

    def __init__(self, *args: object, **named: object) -> None:
        self.counters = Counters(joins=2, rebalances=1)

    def pin_starts(self) -> None:
        """Does nothing."""

    def end_offsets(self) -> Mapping[TopicPartition, int]:
        return {TopicPartition("t", 0): 5}


def test_the_reader_reports_end_offsets_and_counters_once_its_driver_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Driver", FakeDriver)
    monkeypatch.setattr(stream, "leave_on_sigterm", lambda: None)
    monkeypatch.setattr(stream, "log_to_stderr", lambda: None)
    reader = GroupStreamReader(parse_options(OPTIONS), source_schema(False), Application("app"))
    assert reader.reportLatestOffset() is None
    assert reader.initialOffset() == BatchOffset().as_json()
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["t"] == {"0": 5}
    assert (report["#counters"]["joins"], report["#counters"]["rebalances"], report["#counters"]["lost"]) == (2, 1, 0)
