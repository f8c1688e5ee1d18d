"""A query of Spark's own ``format("kafka")`` is killed, and moved: no record is lost or written twice."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_group_source import offsets_of_checkpoint
from spark_group_source.errors import CannotMigrate
from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import TIMEOUT_S, environment, kill, spark_submit, suspend_after_write
from tests.integration.query_process import Place, eventually
from tests.integration.standing import fill

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
"""The directory with the jars of ``format("kafka")``; see ``test_same_rows``."""

SCRIPT = Path(__file__).parent / "run_jvm_query.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not JARS, reason='SPARK_KAFKA_JARS names no jars of format("kafka")'),
]


def last_number(directory: Path) -> int:
    """The highest batch in a log of Spark's, or -1."""
    return max((int(each.name) for each in directory.glob("[0-9]*") if each.name.isdecimal()), default=-1)


class JvmQuery:
    """A query of this source, with one output and one checkpoint in ``work`` for all its runs."""

    def __init__(self, work: Path, source: dict[str, str]) -> None:
        self.output, self.checkpoint = work / "output", work / "checkpoint"
        self._work = work
        self._settings = {"source": source, "output": str(self.output), "checkpoint": str(self.checkpoint)}
        work.mkdir()

    def run(self) -> None:
        """Runs the query with ``availableNow``, to its end."""
        running = self._start(available_now=True)
        try:
            code = running.wait(TIMEOUT_S)
        finally:
            kill(running)
        assert code == 0, (self._work / "log").read_text()[-4000:]

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
        (self._work / "settings.json").write_text(json.dumps({**self._settings, "available_now": available_now}))
        jars = ",".join(str(each) for each in sorted(Path(JARS).glob("*.jar")))
        with (self._work / "log").open("wb") as log:
            # spark-submit becomes the JVM, which can be suspended.
            return subprocess.Popen(
                [spark_submit(), "--master", "local[1]", "--jars", jars, str(SCRIPT), str(self._work)],
                env=environment(), stdout=log, stderr=log,
            )  # fmt: skip


def rows(spark: SparkSession, output: Path) -> list[Place]:
    """The places of the rows in a file sink."""
    return [(row.partition, row.offset) for row in spark.read.parquet(str(output)).collect()]


def test_a_killed_query_is_moved_after_its_last_batch_and_added_partitions_are_read_from_their_first_record(
    spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], group: str
) -> None:
    name = topic(partitions=3)
    expected = fill(kafka, name, 60)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": name}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    old = JvmQuery(tmp_path / "old", options)
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
    expected |= fill(kafka, name, 15)
    moved = spark.readStream.format("kafka-group").options(**options, **{"kafka.group.id": group})
    frame = moved.option("startingOffsets", start).load().select("partition", "offset")
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "new"))
    query = writer.option("checkpointLocation", str(tmp_path / "new.checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(180)
    new = rows(spark, tmp_path / "new")
    assert min(offset for number, offset in new if number < 3) == 60
    assert sorted(rows(spark, old.output) + new) == sorted(expected)
