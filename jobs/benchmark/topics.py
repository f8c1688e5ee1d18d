"""Fills topics with Kafka's command-line producers, which are faster than a Python producer."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import time
from pathlib import Path

from benchmark.cases import Topic
from benchmark.errors import BenchError
from benchmark.values import headers, key, values
from spark_group_source.clock import Deadline
from spark_group_source.offsets import TopicPartition
from spark_group_source.records.batches import find_record_batches
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import java_command

TOOLS = "org.apache.kafka.tools"
HEAP = "512m"
PRODUCE_TIMEOUT_S = 300.0
ERROR_TAIL = 2000
TRANSACTION_MS = "200"
COMPACTION = {
    "cleanup.policy": "compact",
    "segment.bytes": str(2**20),  # the last segment is never compacted
    "min.cleanable.dirty.ratio": "0.01",
}
COMPACTED_RATIO, COMPACTION_TIMEOUT_S, SETTLED_S, POLL_S = 0.9, 180.0, 5.0, 0.5
"""Compaction is complete when the size of the topic is at most this ratio of the written values, and constant for a
while. It starts during the writes."""
LINGER_MS, BUFFER_BYTES = "100", str(2**26)
"""Settings of the producer that fill record batches of a given size: a long linger, and memory for all partitions."""
MIN_FILLED, MAX_FILLED, MAX_FILLED_COMPRESSED = 0.5, 1.1, 2.0
"""Limits on the mean size of the values in a record batch, as fractions of the producer's ``batch.size``."""


def write(kafka: EmbeddedKafka, name: str, topic: Topic, work: Path) -> None:
    """Creates and fills a topic.

    Raises:
        BenchError: Kafka's producer failed, records are missing in the topic, or its record batches have another size.
    """
    settings: dict[str, str] | None = None
    if topic.compacted:
        settings = COMPACTION
    kafka.create_topic(name, topic.partitions, settings)
    _fill(kafka, name, topic, work)
    if topic.batch_bytes:
        _check_record_batches(kafka, name, topic, topic.batch_bytes)
    if topic.compacted:
        _wait_until_compacted(kafka, name, topic.records * topic.value_bytes)


def _fill(kafka: EmbeddedKafka, name: str, topic: Topic, work: Path) -> None:
    properties = [f"{key}={value}" for key, value in _producer_properties(kafka, topic).items()]
    if topic.headers or topic.compacted:
        _produce_lines(kafka, name, topic, properties)
    else:
        _produce(kafka, name, topic, properties, work)
    written = sum(kafka.end_offsets(name).values())
    if written != topic.records and not topic.transactional:
        raise BenchError(f"Topic {name} has {written:,} of {topic.records:,} records.")


def _producer_properties(kafka: EmbeddedKafka, topic: Topic) -> dict[str, str]:
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": topic.codec}
    # An idempotent producer that waits: with thousands of new partitions responses come late, and a retry would write
    # records twice.
    properties |= {"acks": "all", "delivery.timeout.ms": str(int(PRODUCE_TIMEOUT_S * 1000))}
    if not topic.batched:
        properties |= {"linger.ms": "0", "batch.size": "1"}
    elif topic.batch_bytes:
        properties |= {"linger.ms": LINGER_MS, "batch.size": str(topic.batch_bytes), "buffer.memory": BUFFER_BYTES}
    return properties


def _check_record_batches(kafka: EmbeddedKafka, name: str, topic: Topic, batch_bytes: int) -> None:
    """Counts the record batches in the broker's files."""
    count = 0
    for path in kafka.directory.glob(f"node-*/data/{name}-*/*.log"):
        count += len(find_record_batches(TopicPartition(name, 0), memoryview(path.read_bytes())))
    mean = topic.records * topic.mean_value_bytes / max(count, 1)
    # The producer's limit applies to its estimate of the compressed size.
    most = MAX_FILLED_COMPRESSED
    if topic.codec == "none":
        most = MAX_FILLED
    if not MIN_FILLED * batch_bytes <= mean <= most * batch_bytes:
        raise BenchError(f"The record batches of topic {name} have {mean:,.0f} bytes on average, not {batch_bytes:,}.")


def _wait_until_compacted(kafka: EmbeddedKafka, name: str, written: int) -> None:
    deadline = Deadline.after(COMPACTION_TIMEOUT_S)
    size = _size(kafka, name)
    settled = Deadline.after(SETTLED_S)
    while size > written * COMPACTED_RATIO or not settled.expired():
        if deadline.expired():
            raise BenchError(f"Topic {name} has {size:,} of {written:,} bytes after {COMPACTION_TIMEOUT_S:.0f} s.")
        time.sleep(POLL_S)
        before, size = size, _size(kafka, name)
        if size != before:
            settled = Deadline.after(SETTLED_S)


def _size(kafka: EmbeddedKafka, name: str) -> int:
    with kafka.admin() as admin:
        answers = admin.describe_log_dirs([name])
    size = 0
    for answer in answers:
        for directory in answer["log_dirs"]:
            for topic in directory["topics"]:
                size += sum(partition["partition_size"] for partition in topic["partitions"])
    return size


def _produce(kafka: EmbeddedKafka, name: str, topic: Topic, properties: list[str], work: Path) -> None:
    lines = work / f"{name}.values"
    lines.write_text("\n".join(values(topic)), encoding="ascii")
    arguments = ["--topic", name, "--num-records", str(topic.records), "--throughput", "-1"]
    arguments += ["--payload-file", str(lines), "--producer-props", *properties]
    if topic.transactional:
        arguments += ["--transactional-id", name, "--transaction-duration-ms", TRANSACTION_MS]
    with subprocess.Popen(
        java_command(kafka.libs, HEAP, f"{TOOLS}.ProducerPerformance", arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        _finish(process)


def _produce_lines(kafka: EmbeddedKafka, name: str, topic: Topic, properties: list[str]) -> None:
    """Uses the console producer, because the performance producer writes neither headers nor keys."""
    rng = random.Random(name)
    parsed = "parse.key"
    if topic.headers:
        parsed = "parse.headers"

    def line(number: int, value: str) -> str:
        if topic.headers:
            return f"{','.join(f'{name}:{text}' for name, text in headers(number).items())}\t{value}\n"
        return f"{key(rng, topic)}\t{value}\n"

    arguments = ["--topic", name, "--bootstrap-server", kafka.bootstrap_servers]
    arguments += ["--property", f"{parsed}=true", "--compression-codec", topic.codec]
    arguments += itertools.chain.from_iterable(("--producer-property", each) for each in properties)
    with subprocess.Popen(
        java_command(kafka.libs, HEAP, f"{TOOLS}.ConsoleProducer", arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        texts = values(topic)
        with contextlib.suppress(BrokenPipeError):  # the producer failed; _finish reports the reason
            for start in range(0, topic.records, len(texts)):
                chunk = itertools.islice(enumerate(texts), topic.records - start)
                process.stdin.write("".join(line(*each) for each in chunk).encode("ascii"))
        _finish(process)


def _finish(process: subprocess.Popen[bytes]) -> None:
    try:
        _, stderr = process.communicate(timeout=PRODUCE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise BenchError(f"Kafka's producer did not end within {PRODUCE_TIMEOUT_S:.0f} s.") from error
    if process.returncode != 0:
        raise BenchError(f"Kafka's producer failed: {stderr.decode(errors='replace')[-ERROR_TAIL:]}")
