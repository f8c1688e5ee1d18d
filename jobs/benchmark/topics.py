"""Fills topics with Kafka's own command-line producers, which are faster than one in Python."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path

from benchmark.cases import Topic
from benchmark.errors import BenchError
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.broker import java_command

TOOLS = "org.apache.kafka.tools"
HEAP = "512m"
PRODUCE_TIMEOUT_S = 300.0
ERROR_TAIL = 2000
LINES, MOST_BYTES = 10_000, 20_000_000
"""Different values of a topic: so many, or so many bytes of them."""
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "ledge")
HEADERS = "trace:{trace:08x},origin:sensor-{origin}"


def write(kafka: EmbeddedKafka, name: str, topic: Topic, work: Path) -> None:
    """Creates and fills a topic.

    Raises:
        BenchError: Kafka's producer failed, or the topic does not hold what was written.
    """
    kafka.create_topic(name, topic.partitions)
    properties = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": topic.codec, "acks": "1"}
    if not topic.batched:
        properties |= {"linger.ms": "0", "batch.size": "1"}
    produce = _produce_with_headers if topic.headers else _produce
    produce(kafka, name, topic, [f"{key}={value}" for key, value in properties.items()], work)
    held = sum(kafka.end_offsets(name).values())
    if held != topic.records:
        raise BenchError(f"{held:,} of {topic.records:,} records are in topic {name}.")


def values(topic: Topic) -> list[str]:
    """Lines of JSON, all of the topic's ``value_bytes``; the same ones every time."""
    chance = random.Random(topic.value_bytes)
    return [_value(chance, topic.value_bytes) for _ in range(min(LINES, MOST_BYTES // topic.value_bytes))]


def _value(chance: random.Random, size: int) -> str:
    event = {"id": f"{chance.getrandbits(32):08x}", "at": 1_700_000_000_000 + chance.randrange(10**9), "note": ""}
    missing = size - len(json.dumps(event, separators=(",", ":")))
    note = " ".join(chance.choices(WORDS, k=missing // 6 + 1))[:missing]
    return json.dumps(event | {"note": note.ljust(missing, ".")}, separators=(",", ":"))


def _produce(kafka: EmbeddedKafka, name: str, topic: Topic, properties: list[str], work: Path) -> None:
    lines = work / f"{name}.values"
    lines.write_text("\n".join(values(topic)), encoding="ascii")
    arguments = ["--topic", name, "--num-records", str(topic.records), "--throughput", "-1"]
    arguments += ["--payload-file", str(lines), "--producer-props", *properties]
    with subprocess.Popen(
        java_command(kafka.libs, HEAP, f"{TOOLS}.ProducerPerformance", arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        _finish(process)


def _produce_with_headers(kafka: EmbeddedKafka, name: str, topic: Topic, properties: list[str], work: Path) -> None:
    """Through the console producer: the one for performance writes no headers."""
    lines = [
        f"{HEADERS.format(trace=number * 2_654_435_761 % 2**32, origin=number % 50)}\t{value}"
        for number, value in enumerate(values(topic))
    ]
    arguments = ["--topic", name, "--bootstrap-server", kafka.bootstrap_servers]
    arguments += ["--reader-property", "parse.headers=true", "--compression-codec", topic.codec]
    arguments += itertools.chain.from_iterable(("--producer-property", each) for each in properties)
    with subprocess.Popen(
        java_command(kafka.libs, HEAP, f"{TOOLS}.ConsoleProducer", arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        for start in range(0, topic.records, len(lines)):
            process.stdin.write("".join(f"{line}\n" for line in lines[: topic.records - start]).encode("ascii"))
        _finish(process)


def _finish(process: subprocess.Popen[bytes]) -> None:
    try:
        _, said = process.communicate(timeout=PRODUCE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise BenchError(f"Kafka's producer did not end within {PRODUCE_TIMEOUT_S:.0f} s.") from error
    if process.returncode != 0:
        raise BenchError(f"Kafka's producer failed: {said.decode(errors='replace')[-ERROR_TAIL:]}")
