"""Queries of Spark's own ``format("kafka")`` are stopped or killed, and moved: no record is lost or written twice."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from spark_group_source import offsets_of_checkpoint
from spark_group_source.errors import CannotMigrate
from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import TIMEOUT_S, environment, kill, spark_submit, suspend_after_write
from tests.integration.query_process import eventually

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
"""The directory with the jars of ``format("kafka")``; see ``test_same_rows``."""

SCRIPT = Path(__file__).parent / "run_jvm_query.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not JARS, reason='SPARK_KAFKA_JARS names no jars of format("kafka")'),
]

Row = tuple[int, str, int, int]
"""Number of the source, topic, partition and offset."""


def last_number(directory: Path) -> int:
    """The highest batch in a log of Spark's, or -1."""
    return max((int(each.name) for each in directory.glob("[0-9]*") if each.name.isdecimal()), default=-1)


class JvmQuery:
    """A query of these sources, with one output and one checkpoint in ``work`` for all its runs."""

    def __init__(self, work: Path, sources: list[dict[str, str]]) -> None:
        self.output, self.checkpoint = work / "output", work / "checkpoint"
        self._work = work
        self._settings = {"sources": sources, "output": str(self.output), "checkpoint": str(self.checkpoint)}
        work.mkdir()

    def run(self) -> None:
        """Runs the query with ``availableNow``, to its end."""
        running = self._start(available_now=True)
        self._await_end(running)

    def run_and_stop(self, batch: int) -> None:
        """Runs the query until this batch is complete, and stops it."""
        running = self._start(available_now=False)
        try:
            eventually(lambda: running.poll() is not None or last_number(self.checkpoint / "commits") >= batch)
            (self._work / "stop").touch()
            self._await_end(running)
        finally:
            kill(running)

    def run_and_kill(self) -> int:
        """Kills the query with all its processes when the sink has a batch that Spark has not completed.

        Returns:
            The number of that batch.
        """
        running = self._start(available_now=False)
        try:
            return suspend_after_write(
                running,
                lambda: last_number(self.output / "_spark_metadata"),
                lambda: last_number(self.checkpoint / "commits"),
                self._work / "log",
            )
        finally:
            kill(running)

    def _start(self, available_now: bool) -> subprocess.Popen[bytes]:
        (self._work / "stop").unlink(missing_ok=True)
        (self._work / "settings.json").write_text(json.dumps({**self._settings, "available_now": available_now}))
        jars = ",".join(str(each) for each in sorted(Path(JARS).glob("*.jar")))
        with (self._work / "log").open("wb") as log:
            # spark-submit becomes the JVM, which can be suspended.
            return subprocess.Popen(
                [spark_submit(), "--master", "local[1]", "--jars", jars, str(SCRIPT), str(self._work)],
                env=environment(), stdout=log, stderr=log,
            )  # fmt: skip

    def _await_end(self, running: subprocess.Popen[bytes]) -> None:
        try:
            code = running.wait(TIMEOUT_S)
        finally:
            kill(running)
        assert code == 0, (self._work / "log").read_text()[-4000:]


def options(kafka: EmbeddedKafka, topic: str) -> dict[str, str]:
    small = {"maxOffsetsPerTrigger": "20"}
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **small,
    }


def fill(kafka: EmbeddedKafka, topic: str, partitions: int, count: int, source: int = 0) -> list[Row]:
    """Writes ``count`` records to each partition; returns the rows that a query writes of them."""
    return [
        (source, topic, *place)
        for number in range(partitions)
        for place in kafka.produce(topic, ["value"] * count, partition=number)
    ]


def rows(spark: SparkSession, output: Path) -> list[Row]:
    """The rows in a file sink."""
    return sorted(
        (row.source, row.topic, row.partition, row.offset) for row in spark.read.parquet(str(output)).collect()
    )


def again(written: list[Row], name: str) -> list[Row]:
    """The rows of a third source that reads this topic."""
    return [(2, topic, number, offset) for _, topic, number, offset in written if topic == name]


def moved(spark: SparkSession, work: Path, sources: list[dict[str, str]]) -> list[Row]:
    """The rows of a new query with these sources."""
    loads = [spark.readStream.format("kafka-group").options(**each).load() for each in sources]
    chosen = [load.select(lit(at).alias("source"), "topic", "partition", "offset") for at, load in enumerate(loads)]
    writer = functools.reduce(DataFrame.union, chosen).writeStream.format("parquet").option("path", str(work / "new"))
    query = writer.option("checkpointLocation", str(work / "new.checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    return rows(spark, work / "new")


def test_a_killed_query_is_moved_after_its_last_batch_and_added_partitions_are_read_from_their_first_record(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], group: str
) -> None:
    name = topic(partitions=3)
    expected = fill(kafka, name, 3, 60)
    old = JvmQuery(tmp_path / "old", [options(kafka, name)])
    batch = old.run_and_kill()
    assert last_number(old.checkpoint / "offsets") == batch
    with pytest.raises(CannotMigrate, match=rf"Batch {batch} of .* is not complete"):
        offsets_of_checkpoint(spark, old.checkpoint)
    old.run()
    start = offsets_of_checkpoint(spark, old.checkpoint)
    assert json.loads(start) == {name: {"0": 60, "1": 60, "2": 60}, "*": -2}
    with kafka.admin() as admin:
        admin.create_partitions({name: 4})
    eventually(lambda: len(kafka.end_offsets(name)) == 4, what="the brokers to know of it")
    expected += fill(kafka, name, 4, 15)
    new = moved(spark, tmp_path, [{**options(kafka, name), "kafka.group.id": group, "startingOffsets": start}])
    assert min(offset for _, _, number, offset in new if number < 3) == 60
    assert sorted(rows(spark, old.output) + new) == sorted(expected)


def test_each_source_of_a_query_is_moved_with_its_own_offsets(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    orders, payments = topic(partitions=2), topic(partitions=1)
    expected = [*fill(kafka, orders, 2, 30), *fill(kafka, payments, 1, 25, source=1)]
    # The second read of a topic starts later than the first, so that each has its own offsets.
    late = json.dumps({orders: {"0": 10, "1": 0}})
    sources = [options(kafka, orders), options(kafka, payments), {**options(kafka, orders), "startingOffsets": late}]
    read_again = [row for row in again(expected, orders) if row[2] == 1 or row[3] >= 10]
    expected += read_again
    old = JvmQuery(tmp_path / "old", sources)
    old.run_and_stop(batch=1)
    old.run()
    assert rows(spark, old.output) == sorted(expected)
    more = [*fill(kafka, orders, 2, 7), *fill(kafka, payments, 1, 9, source=1)]
    expected += [*more, *again(more, orders)]
    with pytest.raises(CannotMigrate, match="2 sources of"):
        offsets_of_checkpoint(spark, old.checkpoint, source=orders)
    starts = [offsets_of_checkpoint(spark, old.checkpoint, source=each) for each in (0, payments, 2)]
    groups = [{"kafka.group.id": unique("group"), "startingOffsets": start} for start in starts]
    new = moved(spark, tmp_path, [{**source, **own} for source, own in zip(sources, groups, strict=True)])
    assert sorted(rows(spark, old.output) + new) == sorted(expected)
