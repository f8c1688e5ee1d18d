"""``targetBatchDuration`` with Spark and a real Kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Stream
from tests.integration.micro_batches import ADMISSION
from tests.integration.query_process import Place, eventually

RECORDS = 2000
PARTITIONS = 2


class SlowSink:
    """Batches that take 0.2 s and 1 ms for each record, with the places of their records."""

    def __init__(self) -> None:
        self.batches: list[list[Place]] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("partition", "offset").collect()
        time.sleep(0.2 + 0.001 * len(rows))
        self.batches.append([(row.partition, row.offset) for row in rows])

    @property
    def places(self) -> list[Place]:
        return [place for batch in self.batches for place in batch]

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches if batch]


@pytest.fixture
def backlog(kafka: EmbeddedKafka, topic: Callable[..., str]) -> str:
    """A topic with :data:`RECORDS` records of 100 bytes, as many in each partition."""
    name = topic(partitions=PARTITIONS)
    for number in range(PARTITIONS):
        kafka.produce(name, ["x" * 100] * (RECORDS // PARTITIONS), partition=number)
    return name


def run(source: DataFrame, sink: SlowSink, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start()


def limits(query: StreamingQuery) -> list[dict[str, Any]]:
    """What limited each batch with records, as the query's progress says."""
    sources = [each["sources"][0] for each in query.recentProgress if each["numInputRows"]]
    return [json.loads(each["latestOffset"])["#limit"] for each in sources]


EVERY_PLACE = [(number, offset) for number in range(PARTITIONS) for offset in range(RECORDS // PARTITIONS)]


@pytest.mark.core
def test_a_backlog_is_read_in_several_batches_each_record_once(stream: Stream, backlog: str, tmp_path: Path) -> None:
    sink = SlowSink()
    query = run(stream(backlog, targetBatchDuration="5 seconds"), sink, tmp_path / "checkpoint")
    try:
        eventually(lambda: len(sink.places) >= RECORDS or not query.isActive, what="the end of the backlog")
    finally:
        query.stop()
    assert sorted(sink.places) == EVERY_PLACE
    assert sink.sizes[0] == 500, "the first batch is careful"
    assert len(sink.sizes) > 1
    if ADMISSION:
        first = limits(query)[0]
        assert (first["option"], first["offsets"]) == ("targetBatchDuration", 500)
        assert first["reason"] == "no batch has been measured yet"


@pytest.mark.skipif(not ADMISSION, reason="an AvailableNow run is one batch, and its progress has no latest offset")
def test_the_lowest_limit_applies_in_an_available_now_run(stream: Stream, backlog: str, tmp_path: Path) -> None:
    sink = SlowSink()
    source = stream(backlog, targetBatchDuration="100s", maxBytesPerTrigger="40kb")
    query = run(source, sink, tmp_path / "checkpoint", availableNow=True)
    assert query.awaitTermination(120)
    assert sorted(sink.places) == EVERY_PLACE
    said = limits(query)
    assert [each["offsets"] for each in said] == sink.sizes
    assert [each["option"] for each in said] == ["maxBytesPerTrigger"] * (len(said) - 1) + [""]
    assert len(said) > 2


def test_a_duration_without_a_unit_is_an_error_that_says_what_to_write(stream: Stream) -> None:
    with pytest.raises(
        Exception, match="'targetBatchDuration' is '30'. It must be a duration above 0 with a unit, for"
    ):
        stream("t", targetBatchDuration="30")
