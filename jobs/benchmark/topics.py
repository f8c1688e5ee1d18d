"""Fills topics with Kafka's command-line producers, which are faster than a Python producer."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
import time
from pathlib import Path

from benchmark.cases import Topic
from benchmark.errors import BenchError
from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.broker_process import java_command

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
MAX_VALUES, MAX_VALUE_BYTES = 10_000, 20_000_000
"""Maximum number of distinct values of a topic, and their maximum size in bytes."""
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "ledge")
HEADERS = "trace:{trace:08x},origin:sensor-{origin}"


def write(kafka: EmbeddedKafka, name: str, topic: Topic, work: Path) -> None:
    """Creates and fills a topic.

    Raises:
        BenchError: Kafka's producer failed, or records are missing in the topic.
    """
    kafka.create_topic(name, topic.partitions, COMPACTION if topic.compacted else None)
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": topic.codec}
    properties["acks"] = "all" if topic.transactional else "1"
    if not topic.batched:
        properties |= {"linger.ms": "0", "batch.size": "1"}
    settings = [f"{key}={value}" for key, value in properties.items()]
    if topic.headers or topic.compacted:
        _produce_lines(kafka, name, topic, settings)
    else:
        _produce(kafka, name, topic, settings, work)
    written = sum(kafka.end_offsets(name).values())
    if written != topic.records and not topic.transactional:
        raise BenchError(f"Topic {name} has {written:,} of {topic.records:,} records.")
    if topic.compacted:
        _wait_until_compacted(kafka, name, topic.records * topic.value_bytes)


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
    return sum(
        partition["partition_size"]
        for answer in answers
        for directory in answer["log_dirs"]
        for topic in directory["topics"]
        for partition in topic["partitions"]
    )


def values(topic: Topic) -> list[str]:
    """Lines of JSON with the size ``value_bytes`` of the topic, the same in every run."""
    rng = random.Random(topic.value_bytes)
    return [_value(rng, topic.value_bytes) for _ in range(min(MAX_VALUES, MAX_VALUE_BYTES // topic.value_bytes))]


def _value(rng: random.Random, size: int) -> str:
    event = {"id": f"{rng.getrandbits(32):08x}", "at": 1_700_000_000_000 + rng.randrange(10**9), "note": ""}
    missing = size - len(json.dumps(event, separators=(",", ":")))
    note = " ".join(rng.choices(WORDS, k=missing // 6 + 1))[:missing]
    return json.dumps(event | {"note": note.ljust(missing, ".")}, separators=(",", ":"))


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
    parsed = "parse.headers" if topic.headers else "parse.key"

    def line(number: int, value: str) -> str:
        if topic.headers:
            return f"{HEADERS.format(trace=number * 2_654_435_761 % 2**32, origin=number % 50)}\t{value}\n"
        return f"{rng.randrange(topic.records):08x}\t{value}\n"

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
