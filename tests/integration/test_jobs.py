"""What the jobs do while nothing goes wrong, run by spark-submit and in the tests' own Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import TIMEOUT_S, Job, environment
from tests.integration.query_process import eventually


@pytest.fixture
def job(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path, topic: Callable[..., str], group: str) -> Job:
    return Job(kafka, tmp_path, topic(partitions=4), group, own=("--output", str(tmp_path / "output")))


def rows(job: Job, *columns: str) -> list[tuple[Any, ...]]:
    """What is in the job's output, sorted by partition and offset."""
    order = [("partition", "ascending"), ("offset", "ascending")]
    found = ds.dataset(job.output, format="parquet").to_table().sort_by(order)
    return list(zip(*(found.column(each).to_pylist() for each in columns), strict=True))


@pytest.fixture
def written(kafka: EmbeddedKafka, job: Job) -> list[tuple[int, int, bytes, bytes]]:
    """What is in the job's topic: (partition, offset, key, value), sorted."""
    records = [(f"key-{number}", f'{{"id": {number}}}') for number in range(200)]
    places = kafka.produce(job.topic, records)
    return sorted((*place, key.encode(), value.encode()) for place, (key, value) in zip(places, records, strict=True))


@pytest.mark.core
def test_records_arrive_unchanged_and_the_same_checkpoint_reads_only_new_records(
    kafka: EmbeddedKafka, job: Job, written: list[tuple[int, int, bytes, bytes]]
) -> None:
    assert "read 200 rows" in job.run()
    assert rows(job, "partition", "offset", "key", "value") == written
    assert set(rows(job, "topic")) == {(job.topic,)}
    kafka.produce(job.topic, ["more"] * 30)
    assert "read 30 rows" in job.run_here()
    found = rows(job, "partition", "offset")
    assert len(found) == len(set(found)) == 230


def test_with_a_schema_json_becomes_columns_and_other_values_are_kept(kafka: EmbeddedKafka, job: Job) -> None:
    kafka.produce(job.topic, ['{"id": 1, "name": "one"}', "no json", '{"id": "x"}', ("tombstone", None)], partition=0)
    job.run_here("--schema", "id INT, name STRING")
    assert rows(job, "offset", "id", "name", "_corrupt_record") == [
        (0, 1, "one", None),
        (1, None, None, "no json"),
        (2, None, None, '{"id": "x"}'),
        (3, None, None, None),
    ]


def test_a_job_whose_query_fails_prints_the_error_and_exits_with_1(job: Job) -> None:
    with pytest.raises(AssertionError, match=r"(?s)ended with 1: .*_parquet: .*Topic 'missing-topic' cannot be read"):
        job.run_here("--option", "subscribe=missing-topic")


@pytest.mark.slow
def test_a_signal_ends_a_running_job_and_its_membership(
    kafka: EmbeddedKafka, job: Job, group: str, written: list[object]
) -> None:
    command = [sys.executable, *job.command()]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert any(line.startswith("batch ") for line in running.stdout)
            assert len(kafka.members(group)) == 1
            running.terminate()
            said, _ = running.communicate(timeout=TIMEOUT_S)
        finally:
            running.kill()
    assert running.returncode == 0, said
    eventually(lambda: kafka.group_state(group) == "Empty")
