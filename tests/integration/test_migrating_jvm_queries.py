"""A query of Spark's own ``format("kafka")`` is killed, and moved: no record is lost or written twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_group_source import offsets_of_checkpoint
from spark_group_source.errors import CannotMigrate
from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Read, Stream
from tests.integration.job_process import SMALL, Job
from tests.integration.jvm_connector import jvm_connector
from tests.integration.query_process import eventually
from tests.integration.standing import fill

SCRIPT = Path(__file__).parent / "run_jvm_query.py"

pytestmark = pytest.mark.slow


def last_number(directory: Path) -> int:
    """The highest batch in a log of Spark's, or -1."""
    return max((int(each.name) for each in directory.glob("[0-9]*") if each.name.isdecimal()), default=-1)


def test_a_killed_query_is_moved_after_its_last_batch_and_added_partitions_are_read_from_their_first_record(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    tmp_path: Path,
    topic: Callable[..., str],
    group: str,
    stream: Stream,
    read: Read,
) -> None:
    name = topic(partitions=3)
    expected = fill(kafka, name, 60)
    own = ("--output", str(tmp_path / "output"), *SMALL)
    old = Job(kafka, tmp_path, name, group, str(SCRIPT), own, spark=("--jars", jvm_connector()))
    checkpoint = tmp_path / "checkpoint"
    batch = old.kill_after_write(lambda: last_number(old.output / "_spark_metadata"))
    assert last_number(checkpoint / "offsets") == batch
    with pytest.raises(CannotMigrate, match=rf"Batch {batch} of .* is not complete"):
        offsets_of_checkpoint(spark, checkpoint)
    old.run()
    start = offsets_of_checkpoint(spark, checkpoint)
    assert json.loads(start) == {name: {"0": 60, "1": 60, "2": 60}, "*": -2}
    with kafka.admin() as admin:
        admin.create_partitions({name: 4})
    eventually(lambda: len(kafka.end_offsets(name)) == 4, what="the brokers to know of it")
    expected |= fill(kafka, name, 15)
    moved = stream(name, startingOffsets=start, maxOffsetsPerTrigger="20")
    new = read(moved, availableNow=True).to_end().places
    assert min(offset for number, offset in new if number < 3) == 60
    written = [(row.partition, row.offset) for row in spark.read.parquet(str(old.output)).collect()]
    assert sorted(written + new) == sorted(expected)
