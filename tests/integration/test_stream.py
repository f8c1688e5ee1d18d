"""A query from end to end: real Kafka, real Spark, the reader in its own process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import __version__ as pyspark_version
from pyspark.errors import AnalysisException, StreamingQueryException

from spark_group_source.group.commits import COMMIT_TAG
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process
from tests.integration.conftest import Read, Stream
from tests.integration.standing import caught_up, fill, partitions_per_member

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE = 120
eventually = partial(query_process.eventually, deadline=DEADLINE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of four partitions."""
    return kafka.create_topic(unique("topic"), partitions=4)


@pytest.mark.skipif(pyspark_version.startswith(("4.0.", "4.1.")), reason="PySpark 4.1 runs AvailableNow as one batch")
def test_max_offsets_per_trigger_limits_each_batch_and_all_records_are_read(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, read: Read
) -> None:
    values = [f"v{number}" for number in range(100)]
    kafka.produce(topic, [(f"k{value}", value) for value in values])
    frame = stream(topic, maxOffsetsPerTrigger="30")
    limited = read(frame, "kept", availableNow=True).to_end()
    assert sorted(limited.values) == sorted(values)
    assert max(progress["numInputRows"] for progress in limited.query.recentProgress) <= 30
    assert caught_up(kafka, topic, group)
    kafka.produce(topic, [f"v{number}" for number in range(100)])
    once = read(frame, "kept", once=True).to_end()
    assert len(once.values) == 100
    assert max(progress["numInputRows"] for progress in once.query.recentProgress) == 100, "once knows no limit"
    eventually(lambda: caught_up(kafka, topic, group))


def test_the_cells_of_the_notebooks_page_run_again_and_show_all_rows_each_time(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "notebooks.md").read_text()
    page = page.replace('"orders"', f'"{topic}"').replace('"notebook"', f'"{group}"')
    cells = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(cells) == 6
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # the first cell sets it
    names: dict[str, Any] = {"kafka": kafka}
    for rows in (100, 200):
        for cell in cells:
            exec(cell, names)
        assert spark.table("latest").count() == rows


@pytest.mark.core
def test_assigned_partitions_are_read_and_committed_by_an_available_now_run(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, read: Read
) -> None:
    fill(kafka, topic, 5)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": group}
    options |= {"assign": f'{{"{topic}": [1]}}', "startingOffsets": "earliest"}
    frame = spark.readStream.format("kafka-group").options(**options).load()
    assert read(frame, availableNow=True).to_end().places == [(1, offset) for offset in range(5)]
    eventually(lambda: kafka.committed(group, topic) == {(topic, 1): 5})
    assert kafka.group_state(group) in ("Empty", "Dead")


@pytest.mark.core
def test_one_member_named_after_the_query_owns_all_and_leaves_soon_after_stop(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, read: Read
) -> None:
    reader = read(stream(topic, **{"kafka.client.id": "orders-to-lake"}))
    eventually(lambda: caught_up(kafka, topic, group))
    assert [(each.client_id, each.partitions) for each in kafka.members(group)] == [("orders-to-lake", 4)]
    kafka.produce(topic, ["one", "two"])
    # Idle again: the last batch is committed without another one to push it.
    eventually(lambda: caught_up(kafka, topic, group))
    reader.stop()
    eventually(lambda: kafka.group_state(group) == "Empty", deadline=20.0)


def test_commits_and_the_default_client_id_name_the_application_and_a_user_class_may_be_the_assignor(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, read: Read
) -> None:
    strategy = "kafka.coordinator.assignors.roundrobin:RoundRobinPartitionAssignor"
    options = {"commitMetadata": "true", "kafka.partition.assignment.strategy": strategy}
    read(stream(topic, **options))
    eventually(lambda: caught_up(kafka, topic, group))
    with kafka.admin() as admin:
        found = admin.list_group_offsets(group)[group].values()
    told = {each.metadata.removeprefix(COMMIT_TAG) for each in found}
    assert [json.loads(each)["application"] for each in told] == [spark.conf.get("spark.app.id")]
    application = re.sub(r"[^A-Za-z0-9._-]+", "-", spark.conf.get("spark.app.name") or "")
    assert kafka.members(group)[0].client_id.startswith(f"{application}-{topic}-")


@pytest.mark.core
def test_invalid_and_missing_options_fail_at_load(spark: SparkSession, topic: str, stream: Stream) -> None:
    for options, says in (
        ({"kafka.group.id": ""}, "'kafka.group.id' is ''"),
        ({"subscribes": "t"}, "Did you mean 'subscribe'"),
        ({"maxOffsetsPerTrigger": "many"}, "'maxOffsetsPerTrigger' is 'many'"),
    ):
        with pytest.raises(AnalysisException, match=re.escape(says)) as refused:
            stream(topic, **options)
        assert "Traceback" not in str(refused.value)
    with pytest.raises(AnalysisException, match=re.escape("'kafka.bootstrap.servers' is missing")):
        spark.readStream.format("kafka-group").option("subscribe", "t").option("kafka.group.id", "g").load()


def failure_of(frame: DataFrame) -> str:
    """The error a query ends with, which must come by itself and before any batch."""
    batches: list[int] = []
    query = frame.writeStream.foreachBatch(lambda _, number: batches.append(number)).start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(90)
    assert not batches
    assert "Traceback" not in str(failed.value)
    return str(failed.value)


def test_a_topic_that_does_not_exist_is_an_error_and_nothing_is_created(
    kafka: EmbeddedKafka, group: str, stream: Stream
) -> None:
    before = kafka.topics()
    said = failure_of(stream("no-such-topic"))
    assert "Topic 'no-such-topic' cannot be read" in said.splitlines()[0]
    assert kafka.topics() == before
    assert kafka.group_state(group) == "Dead"


@pytest.mark.core
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingTimestamp": "1"}, "'endingTimestamp' is set, but a stream has no end"),
        ({"startingOffsets": '{"no-such-topic":{"0":1}}'}, "not in the subscription"),
    ],
    ids=["end of a stream", "other partitions"],
)
def test_a_stream_that_cannot_start_fails_at_once_and_names_the_option(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, options: dict[str, str], says: str
) -> None:
    assert says in failure_of(stream(topic, **options))
    assert kafka.group_state(group) == "Dead"


def test_a_stream_without_a_group_fails_at_its_start(spark: SparkSession, kafka: EmbeddedKafka, topic: str) -> None:
    frame = spark.readStream.format("kafka-group").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    assert "'kafka.group.id' is missing" in failure_of(frame.option("subscribe", topic).load())


@pytest.mark.core
def test_two_queries_of_one_group_split_the_topic_between_them(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, read: Read
) -> None:
    queries = [read(stream(topic)) for _ in range(2)]
    eventually(lambda: partitions_per_member(kafka, group) == [2, 2])
    values = [f"v{number}" for number in range(400)]
    kafka.produce(topic, [(f"k{value}", value) for value in values])
    eventually(lambda: caught_up(kafka, topic, group))
    for query in queries:
        query.stop()
    assert sorted(queries[0].values + queries[1].values) == sorted(values)
    assert all(query.values for query in queries)


def test_spark_rejects_a_continuous_trigger_and_real_time_mode(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, tmp_path: Path
) -> None:
    writer = stream(topic).writeStream.option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="kafka-group does not support continuous processing"):
        writer.format("noop").trigger(continuous="1 second").start()
    trigger: dict[str, Any] = {"realTime": "5 seconds"}  # from PySpark 4.2 on
    query = writer.format("console").outputMode("update").trigger(**trigger).start()
    with pytest.raises(StreamingQueryException, match="REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED"):
        query.awaitTermination(DEADLINE)
    assert not kafka.members(group)
