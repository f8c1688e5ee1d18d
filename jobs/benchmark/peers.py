"""Other ways to get a topic's records into Python or Arrow, without Spark, and what Kafka's own client alone can do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median

import pyarrow as pa
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from benchmark.errors import BenchError
from benchmark.topics import ERROR_TAIL, HEAP, TOOLS
from spark_group_source.fetch.fetch_task import FetchTask
from spark_group_source.fetch.task_reader import read
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.broker_process import java_command
from spark_group_source.wire.settings import WireOptions

ROUNDS = 3
MOST_RECORDS = 400_000
"""Records read by the slow ones, of one partition: they are not faster with more."""
AT_ONCE = 10_000
TIMEOUT_MS = 30_000
COLUMNS = ALL_COLUMNS.names[:-1]

Rows = Iterator[tuple[object, ...]]
Way = Callable[[EmbeddedKafka, str, int], tuple[int, float]]
"""Reads at least so many records of a topic's first partition; how many they were, and the seconds that took."""


def measure(kafka: EmbeddedKafka, topic: str) -> list[tuple[str, float]]:
    """Rows per second of one process over a part of the topic, by the name of the way; medians of some rounds.

    Raises:
        BenchError: one of them read other records than it should.
    """
    ways: dict[str, Way] = {
        "this source's reader, to Arrow": _reader,
        "confluent-kafka, messages to Arrow": _confluent,
        "kafka-python, records to Arrow": _kafka_python,
        "kafka-consumer-perf-test (Java)": _java,
    }
    count = min(MOST_RECORDS, kafka.end_offsets(topic)[0])
    return [(name, median(_rate(way, kafka, topic, count) for _ in range(ROUNDS))) for name, way in ways.items()]


def _rate(way: Way, kafka: EmbeddedKafka, topic: str, count: int) -> float:
    found, seconds = way(kafka, topic, count)
    if found < count:
        raise BenchError(f"{found:,} of {count:,} records were read.")
    return found / seconds


def _reader(kafka: EmbeddedKafka, topic: str, count: int) -> tuple[int, float]:
    began = time.monotonic()
    host, _, port = kafka.bootstrap_servers.partition(",")[0].rpartition(":")
    wire = WireOptions(((host, int(port)),), "bench")
    task = FetchTask((OffsetRange(topic, 0, 0, count),), wire, arrow_schema(COLUMNS))
    return sum(batch.num_rows for batch in read(task)), time.monotonic() - began


def _confluent(kafka: EmbeddedKafka, topic: str, count: int) -> tuple[int, float]:
    import confluent_kafka

    began = time.monotonic()

    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "bench"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def rows() -> Rows:
        left = count
        # It waits for as many as it is asked for.
        while found := consumer.consume(min(AT_ONCE, left), TIMEOUT_MS / 1000):
            left -= len(found)
            for each in found:
                kind, stamp = each.timestamp()
                yield each.key(), each.value(), each.topic(), each.partition(), each.offset(), stamp, kind

    try:
        return _to_arrow(rows(), count), time.monotonic() - began
    finally:
        consumer.close()


def _kafka_python(kafka: EmbeddedKafka, topic: str, count: int) -> tuple[int, float]:
    began = time.monotonic()
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, max_poll_records=AT_ONCE)
    place = KafkaTopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)

    def rows() -> Rows:
        while found := consumer.poll(TIMEOUT_MS).get(place):
            for each in found:
                yield each.key, each.value, topic, each.partition, each.offset, each.timestamp, each.timestamp_type

    try:
        return _to_arrow(rows(), count), time.monotonic() - began
    finally:
        consumer.close()


def _to_arrow(rows: Rows, count: int) -> int:
    done = 0
    while done < count:
        some = list(islice(rows, min(AT_ONCE, count - done)))
        if not some:
            break
        columns = zip(*some, strict=True)
        kinds = [pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32()]
        batch = pa.RecordBatch.from_arrays([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], COLUMNS)
        done += batch.num_rows
    return done


def _java(kafka: EmbeddedKafka, topic: str, count: int) -> tuple[int, float]:
    """Of all partitions, in one thread; the time in which it fetched, without its start."""
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--messages", str(count)]
    arguments += ["--hide-header", "--timeout", str(TIMEOUT_MS)]
    command = java_command(kafka.libs, HEAP, f"{TOOLS}.ConsumerPerformance", arguments)
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    fields = ended.stdout.strip().splitlines()[-1:]
    if not fields or ended.returncode:
        raise BenchError(f"kafka-consumer-perf-test failed: {ended.stderr[-ERROR_TAIL:]}")
    # Start, end, MB, MB/s, records, records/s, ms to rebalance, ms to fetch, and rates again.
    values = fields[0].split(",")
    return int(values[4]), int(values[7]) / 1000
