"""A query from end to end: real Kafka, real Spark, the reader in its own process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from spark_group_source.group.offsets import COMMIT_TAG
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE = 120
eventually = partial(query_process.eventually, deadline=DEADLINE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of four partitions."""
    return kafka.create_topic(unique("topic"), partitions=4)


def stream(spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka-group").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    reader = reader.option("subscribe", topic).option("kafka.group.id", group).option("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def read_all(frame: DataFrame, output: Path, checkpoint: Path) -> StreamingQuery:
    """Runs until all that is there has been read, into Parquet."""
    writer = frame.writeStream.format("parquet").option("path", str(output)).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(DEADLINE), "the run did not end"
    return query


def lag(kafka: EmbeddedKafka, topic: str, group: str) -> int:
    ends, committed = kafka.end_offsets(topic), kafka.committed(group, topic)
    assert {partition for _, partition in committed} == set(ends), "every partition has a committed offset"
    return sum(end - committed[topic, partition] for partition, end in ends.items())


@pytest.mark.core
def test_available_now_reads_everything_once(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [(f"k{number}", f"v{number}") for number in range(1000)])
    read_all(stream(spark, kafka, topic, group), tmp_path / "out", tmp_path / "checkpoint")
    values = [row.value.decode() for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(values) == sorted(f"v{number}" for number in range(1000))


def test_available_now_leaves_lag_zero(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [f"v{number}" for number in range(100)])
    read_all(stream(spark, kafka, topic, group), tmp_path / "out", tmp_path / "checkpoint")
    assert lag(kafka, topic, group) == 0


def test_a_new_checkpoint_resumes_at_the_groups_offsets(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [f"a{number}" for number in range(500)])
    read_all(stream(spark, kafka, topic, group), tmp_path / "1", tmp_path / "checkpoint-1")
    read_all(stream(spark, kafka, topic, group), tmp_path / "2", tmp_path / "checkpoint-2")
    kafka.produce(topic, [f"b{number}" for number in range(100)])
    read_all(stream(spark, kafka, topic, group), tmp_path / "3", tmp_path / "checkpoint-3")
    counts = [spark.read.schema("value binary").parquet(str(tmp_path / run)).count() for run in "123"]
    assert counts == [500, 0, 100]
    assert lag(kafka, topic, group) == 0


def test_max_offsets_per_trigger_limits_each_batch_and_all_records_are_read(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    kafka.produce(topic, [f"v{number}" for number in range(100)])
    frame = stream(spark, kafka, topic, group, maxOffsetsPerTrigger="30")
    query = read_all(frame, tmp_path / "out", tmp_path / "checkpoint")
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(sizes) == 100
    assert max(sizes) <= 30
    assert lag(kafka, topic, group) == 0


@pytest.mark.core
def test_one_member_named_after_the_query_owns_all_and_leaves_soon_after_stop(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    frame = stream(spark, kafka, topic, group, **{"kafka.client.id": "orders-to-lake"})
    query = frame.writeStream.format("noop").start()
    try:
        eventually(lambda: len(kafka.committed(group, topic)) == len(kafka.end_offsets(topic)))
        members = kafka.members(group)
        assert [member.client_id for member in members] == ["orders-to-lake"]
        assert members[0].partitions == len(kafka.end_offsets(topic))
        kafka.produce(topic, ["one", "two"])
        # Idle again: the last batch is committed without another one to push it.
        eventually(lambda: lag(kafka, topic, group) == 0 and sum(kafka.end_offsets(topic).values()) == 2)
    finally:
        query.stop()
    eventually(lambda: kafka.group_state(group) == "Empty", deadline=20.0)


def test_the_default_client_id_has_application_and_topic(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    query = stream(spark, kafka, topic, group).writeStream.format("noop").start()
    try:
        eventually(lambda: kafka.group_state(group) == "Stable")
        application = re.sub(r"[^A-Za-z0-9._-]+", "-", spark.conf.get("spark.app.name") or "")
        assert kafka.members(group)[0].client_id.startswith(f"{application}-{topic}-")
    finally:
        query.stop()


def test_commits_name_the_application_and_a_user_class_may_be_the_assignor(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    strategy = "kafka.coordinator.assignors.roundrobin:RoundRobinPartitionAssignor"
    options = {"commitMetadata": "true", "kafka.partition.assignment.strategy": strategy}
    query = stream(spark, kafka, topic, group, **options).writeStream.format("noop").start()
    try:
        eventually(lambda: len(kafka.committed(group, topic)) == len(kafka.end_offsets(topic)))
        with kafka.admin() as admin:
            found = admin.list_group_offsets(group)[group].values()
        told = {each.metadata.removeprefix(COMMIT_TAG) for each in found}
        assert [json.loads(each)["application"] for each in told] == [spark.conf.get("spark.app.id")]
    finally:
        query.stop()


@pytest.mark.core
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.group.id": ""}, "'kafka.group.id' is ''"),
        ({"subscribes": "t"}, "Did you mean 'subscribe'"),
        ({"maxOffsetsPerTrigger": "many"}, "'maxOffsetsPerTrigger' is 'many'"),
    ],
)
def test_invalid_options_fail_at_load(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(AnalysisException, match=re.escape(says)) as refused:
        stream(spark, kafka, topic, group, **options)
    assert "Traceback" not in str(refused.value)


def test_a_missing_option_fails_at_load(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=re.escape("'kafka.bootstrap.servers' is missing")):
        spark.readStream.format("kafka-group").option("subscribe", "t").option("kafka.group.id", "g").load()


def failure_of(frame: DataFrame) -> str:
    """The error a query ends with, which must come by itself and before any batch."""
    batches: list[int] = []
    query = frame.writeStream.foreachBatch(lambda _, number: batches.append(number)).start()
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(90)
    assert not batches
    return str(failed.value)


def test_a_topic_that_does_not_exist_is_an_error_and_nothing_is_created(
    spark: SparkSession, kafka: EmbeddedKafka, group: str
) -> None:
    before = kafka.topics()
    said = failure_of(stream(spark, kafka, "no-such-topic", group))
    assert "Topic 'no-such-topic' cannot be read" in said.splitlines()[0]
    assert "Traceback" not in said
    assert kafka.topics() == before
    assert group not in kafka.consumer_groups("--list").split()


@pytest.mark.core
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingTimestamp": "1"}, "'endingTimestamp' is set, and a stream has no end"),
        ({"startingOffsets": '{"no-such-topic":{"0":1}}'}, "not in the subscription"),
    ],
)
def test_end_options_and_offsets_of_other_partitions_fail_at_the_start_of_a_stream(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, options: dict[str, str], says: str
) -> None:
    assert says in failure_of(stream(spark, kafka, topic, group, **options))
    assert kafka.group_state(group) == "Dead"


def test_a_stream_without_a_group_fails_at_its_start(spark: SparkSession, kafka: EmbeddedKafka, topic: str) -> None:
    frame = spark.readStream.format("kafka-group").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    assert "'kafka.group.id' is missing" in failure_of(frame.option("subscribe", topic).load())


def test_the_error_of_unreachable_brokers_names_them(spark: SparkSession, group: str) -> None:
    nowhere = "127.0.0.1:1"
    frame = spark.readStream.format("kafka-group").option("kafka.bootstrap.servers", nowhere)
    said = failure_of(frame.option("subscribe", "t").option("kafka.group.id", group).load())
    assert nowhere in said
    assert "kafka.bootstrap.servers" in said


@pytest.mark.core
def test_two_queries_of_one_group_split_the_topic_between_them(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str
) -> None:
    rows: dict[str, list[str]] = {"one": [], "other": []}

    def keep(name: str) -> Callable[[DataFrame, int], None]:
        return lambda batch, _: rows[name].extend(row.value.decode() for row in batch.collect())

    queries = [stream(spark, kafka, topic, group).writeStream.foreachBatch(keep(name)).start() for name in rows]
    try:
        half = len(kafka.end_offsets(topic)) // 2
        eventually(lambda: kafka.group_state(group) == "Stable")
        eventually(lambda: sorted(member.partitions for member in kafka.members(group)) == [half, half])
        kafka.produce(topic, [(f"k{number}", f"v{number}") for number in range(400)])
        eventually(lambda: sum(map(len, rows.values())) >= 400)
        eventually(lambda: lag(kafka, topic, group) == 0)
    finally:
        for query in queries:
            query.stop()
    assert sorted(rows["one"] + rows["other"]) == sorted(f"v{number}" for number in range(400))
    assert all(rows.values())
