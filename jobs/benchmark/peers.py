"""Other clients that read a topic into Python or Arrow without Spark, and Kafka's own Java client."""

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
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import java_command
from spark_group_source.wire.wire_options import WireOptions

RUNS = 3
MAX_RECORDS = 400_000
"""Maximum number of records to read, from one partition."""
RECORDS_PER_POLL = 10_000
TIMEOUT_MS = 30_000
COLUMNS = ALL_COLUMNS.names[:-1]

Rows = Iterator[tuple[object, ...]]
ReadFunction = Callable[[EmbeddedKafka, str, int], tuple[int, float]]
"""Reads at least a number of records from a topic's first partition; returns the number and the seconds."""


def measure(kafka: EmbeddedKafka, topic: str) -> list[tuple[str, float]]:
    """Rows per second of one process with each client, as the median of some runs.

    Raises:
        BenchError: a client read too few records.
    """
    clients: dict[str, ReadFunction] = {
        "this source's reader, to Arrow": _reader,
        "confluent-kafka, messages to Arrow": _confluent,
        "kafka-python, records to Arrow": _kafka_python,
        "kafka-consumer-perf-test (Java)": _java,
    }
    count = min(MAX_RECORDS, kafka.end_offsets(topic)[0])
    return [
        (name, median(_rate(read_records, kafka, topic, count) for _ in range(RUNS)))
        for name, read_records in clients.items()
    ]


def _rate(read_records: ReadFunction, kafka: EmbeddedKafka, topic: str, count: int) -> float:
    rows, seconds = read_records(kafka, topic, count)
    if rows < count:
        raise BenchError(f"A client read {rows:,} of {count:,} records.")
    return rows / seconds


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
        # consume() waits for all records that it is asked for.
        while messages := consumer.consume(min(RECORDS_PER_POLL, left), TIMEOUT_MS / 1000):
            left -= len(messages)
            for message in messages:
                kind, timestamp = message.timestamp()
                key, value, offset = message.key(), message.value(), message.offset()
                yield key, value, message.topic(), message.partition(), offset, timestamp, kind

    try:
        return _to_arrow(rows(), count), time.monotonic() - began
    finally:
        consumer.close()


def _kafka_python(kafka: EmbeddedKafka, topic: str, count: int) -> tuple[int, float]:
    began = time.monotonic()
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, max_poll_records=RECORDS_PER_POLL)
    partition = KafkaTopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)

    def rows() -> Rows:
        while records := consumer.poll(TIMEOUT_MS).get(partition):
            for record in records:
                key, value, offset = record.key, record.value, record.offset
                yield key, value, topic, record.partition, offset, record.timestamp, record.timestamp_type

    try:
        return _to_arrow(rows(), count), time.monotonic() - began
    finally:
        consumer.close()


def _to_arrow(rows: Rows, count: int) -> int:
    done = 0
    while done < count:
        chunk = list(islice(rows, min(RECORDS_PER_POLL, count - done)))
        if not chunk:
            break
        columns = zip(*chunk, strict=True)
        kinds = [pa.binary(), pa.binary(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.int32()]
        batch = pa.RecordBatch.from_arrays([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], COLUMNS)
        done += batch.num_rows
    return done


def _java(kafka: EmbeddedKafka, topic: str, count: int) -> tuple[int, float]:
    """Reads all partitions in one thread; the time is the fetch time, without the start."""
    arguments = ["--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--messages", str(count)]
    arguments += ["--hide-header", "--timeout", str(TIMEOUT_MS)]
    command = java_command(kafka.libs, HEAP, f"{TOOLS}.ConsumerPerformance", arguments)
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    fields = process.stdout.strip().splitlines()[-1:]
    if not fields or process.returncode:
        raise BenchError(f"kafka-consumer-perf-test failed: {process.stderr[-ERROR_TAIL:]}")
    # Start, end, MB, MB/s, records, records/s, rebalance time in ms, fetch time in ms, and more rates.
    values = fields[0].split(",")
    return int(values[4]), int(values[7]) / 1000
