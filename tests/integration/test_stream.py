"""A query from end to end: real Kafka, real Spark, the reader in its own process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import __version__ as pyspark_version
from pyspark.errors import AnalysisException, StreamingQueryException

from spark_group_source.group.offsets import COMMIT_TAG
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process
from tests.integration.standing import caught_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE = 120
OF_MEMBERS = ("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms")
eventually = partial(query_process.eventually, deadline=DEADLINE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of four partitions."""
    return kafka.create_topic(unique("topic"), partitions=4)


def stream(spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, **options: str) -> DataFrame:
    given = query_process.source_options(kafka, topic, group) | options
    if "assign" in options:
        given = {name: value for name, value in given.items() if name not in ("subscribe", *OF_MEMBERS)}
    return spark.readStream.format("kafka-group").options(**given).load()


def read_all(frame: DataFrame, work: Path, **trigger: Any) -> tuple[StreamingQuery, list[str]]:
    """Runs until all that is there has been read: the query, and the values that the run has read."""
    rows: list[str] = []

    def keep(batch: DataFrame, number: int) -> None:
        rows.extend(row.value.decode() for row in batch.select("value").collect())

    writer = frame.writeStream.foreachBatch(keep).trigger(**trigger or {"availableNow": True})
    query = writer.option("checkpointLocation", str(work)).start()
    assert query.awaitTermination(DEADLINE), "the run did not end"
    return query, rows


@pytest.mark.skipif(pyspark_version.startswith(("4.0.", "4.1.")), reason="PySpark 4.1 runs AvailableNow as one batch")
def test_max_offsets_per_trigger_limits_each_batch_and_all_records_are_read(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    values = [f"v{number}" for number in range(100)]
    kafka.produce(topic, [(f"k{value}", value) for value in values])
    frame = stream(spark, kafka, topic, group, maxOffsetsPerTrigger="30")
    query, rows = read_all(frame, tmp_path)
    assert sorted(rows) == sorted(values)
    assert max(progress["numInputRows"] for progress in query.recentProgress) <= 30
    assert caught_up(kafka, topic, group)
    kafka.produce(topic, [f"v{number}" for number in range(100)])
    query, rows = read_all(frame, tmp_path, once=True)
    assert len(rows) == 100
    assert max(progress["numInputRows"] for progress in query.recentProgress) == 100, "once knows no limit"
    eventually(lambda: caught_up(kafka, topic, group))


@pytest.mark.core
def test_assigned_partitions_are_read_and_committed_by_an_available_now_run(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    for partition in (0, 1):
        kafka.produce(topic, [f"v{partition}"] * 5, partition=partition)
    assert read_all(stream(spark, kafka, topic, group, assign=f'{{"{topic}": [1]}}'), tmp_path)[1] == ["v1"] * 5
    assert kafka.group_state(group) in ("Empty", "Dead")


@pytest.mark.core
def test_one_member_named_after_the_query_owns_all_and_leaves_soon_after_stop(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    frame = stream(spark, kafka, topic, group, **{"kafka.client.id": "orders-to-lake"})
    query = frame.writeStream.format("noop").start()
    try:
        eventually(lambda: caught_up(kafka, topic, group))
        assert [(each.client_id, each.partitions) for each in kafka.members(group)] == [("orders-to-lake", 4)]
        kafka.produce(topic, ["one", "two"])
        # Idle again: the last batch is committed without another one to push it.
        eventually(lambda: caught_up(kafka, topic, group))
    finally:
        query.stop()
    eventually(lambda: kafka.group_state(group) == "Empty", deadline=20.0)


def test_commits_and_the_default_client_id_name_the_application_and_a_user_class_may_be_the_assignor(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    strategy = "kafka.coordinator.assignors.roundrobin:RoundRobinPartitionAssignor"
    options = {"commitMetadata": "true", "kafka.partition.assignment.strategy": strategy}
    query = stream(spark, kafka, topic, group, **options).writeStream.format("noop").start()
    try:
        eventually(lambda: caught_up(kafka, topic, group))
        with kafka.admin() as admin:
            found = admin.list_group_offsets(group)[group].values()
        told = {each.metadata.removeprefix(COMMIT_TAG) for each in found}
        assert [json.loads(each)["application"] for each in told] == [spark.conf.get("spark.app.id")]
        application = re.sub(r"[^A-Za-z0-9._-]+", "-", spark.conf.get("spark.app.name") or "")
        assert kafka.members(group)[0].client_id.startswith(f"{application}-{topic}-")
    finally:
        query.stop()


@pytest.mark.core
def test_invalid_and_missing_options_fail_at_load(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    for options, says in (
        ({"kafka.group.id": ""}, "'kafka.group.id' is ''"),
        ({"subscribes": "t"}, "Did you mean 'subscribe'"),
        ({"maxOffsetsPerTrigger": "many"}, "'maxOffsetsPerTrigger' is 'many'"),
    ):
        with pytest.raises(AnalysisException, match=re.escape(says)) as refused:
            stream(spark, kafka, topic, group, **options)
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
    spark: SparkSession, kafka: EmbeddedKafka, group: str
) -> None:
    before = kafka.topics()
    said = failure_of(stream(spark, kafka, "no-such-topic", group))
    assert "Topic 'no-such-topic' cannot be read" in said.splitlines()[0]
    assert kafka.topics() == before
    assert kafka.group_state(group) == "Dead"


@pytest.mark.core
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingTimestamp": "1"}, "'endingTimestamp' is set, and a stream has no end"),
        ({"startingOffsets": '{"no-such-topic":{"0":1}}'}, "not in the subscription"),
    ],
    ids=["end of a stream", "other partitions"],
)
def test_a_stream_that_cannot_start_fails_at_once_and_names_the_option(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, options: dict[str, str], says: str
) -> None:
    assert says in failure_of(stream(spark, kafka, topic, group, **options))
    assert kafka.group_state(group) == "Dead"


def test_a_stream_without_a_group_fails_at_its_start(spark: SparkSession, kafka: EmbeddedKafka, topic: str) -> None:
    frame = spark.readStream.format("kafka-group").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    assert "'kafka.group.id' is missing" in failure_of(frame.option("subscribe", topic).load())


@pytest.mark.core
def test_two_queries_of_one_group_split_the_topic_between_them(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    rows: dict[str, list[str]] = {"one": [], "other": []}

    def keep(name: str) -> Callable[[DataFrame, int], None]:
        return lambda batch, _: rows[name].extend(row.value.decode() for row in batch.collect())

    queries = [stream(spark, kafka, topic, group).writeStream.foreachBatch(keep(name)).start() for name in rows]
    try:
        eventually(lambda: [member.partitions for member in kafka.members(group)] == [2, 2])
        kafka.produce(topic, [(f"k{number}", f"v{number}") for number in range(400)])
        eventually(lambda: sum(map(len, rows.values())) >= 400)
        eventually(lambda: caught_up(kafka, topic, group))
    finally:
        for query in queries:
            query.stop()
    assert sorted(rows["one"] + rows["other"]) == sorted(f"v{number}" for number in range(400))
    assert all(rows.values())


def test_spark_rejects_a_continuous_trigger_and_real_time_mode(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    writer = stream(spark, kafka, topic, group).writeStream.option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="kafka-group does not support continuous processing"):
        writer.format("noop").trigger(continuous="1 second").start()
    trigger: dict[str, Any] = {"realTime": "5 seconds"}  # from PySpark 4.2 on
    query = writer.format("console").outputMode("update").trigger(**trigger).start()
    with pytest.raises(StreamingQueryException, match="REAL_TIME_MODE.INPUT_STREAM_NOT_SUPPORTED"):
        query.awaitTermination(DEADLINE)
    assert not kafka.members(group)
