"""The frame equals, in schema and content, what Spark's JVM source reads from the same topic with the same options.

A JVM is needed that has the JVM source: SPARK_KAFKA_JARS names a directory of its jars (spark-sql-kafka-0-10, its token
provider, kafka-clients, commons-pool2). Spark cannot take jars into a running session, so reading and comparing is done
by a process of its own, one for all tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration.read_both import Case, Outcome, load, save

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
REPOSITORY = Path(__file__).resolve().parents[2]
READ_BOTH = Path(__file__).parent / "read_both.py"
ANY_TIME = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}

pytestmark = pytest.mark.skipif(not JARS, reason="SPARK_KAFKA_JARS names no directory with Spark's JVM Kafka source")

# Of timed_topic(): ten records in partitions 0 and 1, three in partition 2, record n at the time 1000 * n.
BOUNDED: dict[str, tuple[dict[str, str], int]] = {
    "default": ({}, 23),
    "offsets": (
        {"startingOffsets": '{"T":{"0":3,"1":-2,"2":3}}', "endingOffsets": '{"T":{"0":7,"1":-1,"2":3}}'},
        14,
    ),
    "times": ({"startingTimestamp": "1500", "endingTimestamp": "4000"}, 5),
    "times-by-partition": (
        {
            "startingOffsetsByTimestamp": '{"T":{"0":0,"1":8001,"2":99999}}',
            "endingOffsetsByTimestamp": '{"T":{"0":1,"1":99999,"2":99999}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
        2,
    ),
    "one-time-goes-first": (
        {
            "startingTimestamp": "2000",
            "startingOffsetsByTimestamp": '{"T":{"0":0,"1":0,"2":0}}',
            "startingOffsets": '{"T":{"0":9,"1":9,"2":0}}',
            "endingTimestamp": "3000",
            "endingOffsetsByTimestamp": '{"T":{"0":9000,"1":9000,"2":9000}}',
            "endingOffsets": '{"T":{"0":10,"1":10,"2":3}}',
        },
        3,
    ),
    "times-by-partition-go-before-offsets": (
        {
            "startingOffsetsByTimestamp": '{"T":{"0":8000,"1":8000,"2":2000}}',
            "startingOffsets": "earliest",
            "endingOffsetsByTimestamp": '{"T":{"0":9000,"1":9000,"2":9000}}',
            "endingOffsets": '{"T":{"0":0,"1":0,"2":0}}',
        },
        3,
    ),
    "split": (
        {"minPartitions": "7", "maxRecordsPerPartition": "3", "startingOffsets": '{"T":{"0":1,"1":1,"2":1}}'},
        20,
    ),
    "ignored": ({"maxOffsetsPerTrigger": "2", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1s"}, 23),
}
REFUSED: dict[str, dict[str, str]] = {
    "starts-at-latest": {"startingOffsets": "latest"},
    "ends-at-a-beginning": {"endingOffsets": '{"T":{"0":-2,"1":1,"2":1}}'},
    "too-few-partitions": {"startingOffsets": '{"T":{"0":1,"1":1}}'},
    "ends-before-it-starts": {
        "startingOffsets": '{"T":{"0":5,"1":1,"2":1}}',
        "endingOffsets": '{"T":{"0":4,"1":1,"2":1}}',
    },
    "no-record-as-late": {"startingTimestamp": "5000"},
}


def write_every_kind_of_record(kafka: EmbeddedKafka, topic: str, codec: str | None) -> int:
    """Null, empty and plain keys and values, headers of all kinds, timestamps at both ends; returns how many."""
    texts: list[bytes | None] = [None, b"", b"plain", "größer".encode(), bytes(range(256)), b"x" * 9000]
    headers = [
        [],
        [("one", b"1")],
        [("twice", b"a"), ("twice", b"b"), ("", b""), ("ümlaut", b"\x00\xff")],
    ]
    count = 0
    with kafka.producer(compression_type=codec) as producer:
        for key in texts:
            for value in texts:
                for number, having in enumerate(headers):
                    if key is None and value is None:
                        continue
                    when = (0, 1_700_000_000_123, 253_402_300_799_999)[number]
                    producer.send(topic, key=key, value=value, headers=having, timestamp_ms=when, partition=count % 3)
                    count += 1
        producer.flush()
    return count


def every_kind(kafka: EmbeddedKafka) -> tuple[list[str], int]:
    """Topics with every kind of record in every codec, and how many records these are."""
    count, topics = 0, []
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        topics.append(kafka.create_topic(new(f"same-{codec}"), partitions=3, config=ANY_TIME))
        count += write_every_kind_of_record(kafka, topics[-1], codec)
    append_time = ANY_TIME | {"message.timestamp.type": "LogAppendTime"}
    topics.append(kafka.create_topic(new("same-append-time"), partitions=3, config=append_time))
    count += write_every_kind_of_record(kafka, topics[-1], None)
    return topics, count


def timed_topic(kafka: EmbeddedKafka) -> str:
    """A topic for the cases of bounded reads."""
    topic = kafka.create_topic(new("timed"), partitions=3, config=ANY_TIME)
    with kafka.producer() as producer:
        for partition, count in enumerate((10, 10, 3)):
            for number in range(count):
                producer.send(topic, value=b"%d" % number, timestamp_ms=1000 * number, partition=partition)
        producer.flush()
    return topic


def transactional_topic(kafka: EmbeddedKafka) -> str:
    """Two records of a transaction that was committed, two of one that was aborted, two of one that is open."""
    topic = kafka.create_topic(new("transactional"))
    for end in ("commit", "abort", None):
        with kafka.producer(transactional_id=new("producer")) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(2):
                producer.send(topic, value=f"{end}-{number}".encode())
            producer.flush()
            if end is not None:
                getattr(producer, f"{end}_transaction")()
    return topic


def new(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


class Both(NamedTuple):
    """What became of the cases, and how many records of every kind there are."""

    outcomes: dict[str, Outcome]
    every_kind: int


@pytest.fixture(scope="module")
def both(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What became of all cases."""
    work = tmp_path_factory.mktemp("both")
    topics, count = every_kind(kafka)
    timed, transactional = timed_topic(kafka), transactional_topic(kafka)
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    everything = servers | {"startingOffsets": "earliest", "includeHeaders": "true"}
    group = {"kafka.group.id": new("readers-of-both")}
    cases = [
        Case("stream", everything | {"subscribe": ",".join(topics)}, streaming=True, ours=group),
        Case("bounded", everything | {"subscribePattern": "^same-(append-time|zstd)-"}),
    ]
    for name, options in (*((name, given) for name, (given, _) in BOUNDED.items()), *REFUSED.items()):
        given = {key: value.replace('"T"', json.dumps(timed)) for key, value in options.items()}
        # The JVM source would try again to read what cannot be read, for some seconds.
        cases.append(Case(name, servers | {"subscribe": timed} | given, theirs={"fetchOffset.numRetries": "1"}))
    for level in ("read_committed", "read_uncommitted"):
        cases.append(Case(level, servers | {"subscribe": transactional, "kafka.isolation.level": level}))
    save(cases, work / "cases.json")
    jars = ",".join(str(each) for each in sorted(Path(JARS).glob("*.jar")))
    subprocess.run(
        [sys.executable, str(READ_BOTH), str(work / "cases.json"), str(work / "outcomes.json"), jars],
        check=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable},
    )
    return Both(load(work / "outcomes.json"), count)


def test_a_stream_has_the_rows_and_schema_of_the_jvm_source_with_every_codec(both: Both) -> None:
    assert both.outcomes["stream"] == Outcome(both.every_kind)


def test_a_bounded_read_of_a_pattern_has_the_rows_and_schema_of_the_jvm_source(both: Both) -> None:
    assert both.outcomes["bounded"] == Outcome(both.every_kind // 3)  # two of six topics


@pytest.mark.parametrize("case", BOUNDED)
def test_a_bounded_read_has_the_rows_of_the_jvm_source_from_the_same_start_to_the_same_end(
    both: Both, case: str
) -> None:
    assert both.outcomes[case] == Outcome(BOUNDED[case][1])


@pytest.mark.parametrize(("level", "count"), [("read_committed", 2), ("read_uncommitted", 6)])
def test_a_bounded_read_sees_of_transactions_what_the_jvm_source_does(both: Both, level: str, count: int) -> None:
    assert both.outcomes[level] == Outcome(count)


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_jvm_source_refuses_to_read_is_refused_here_with_the_option_to_change(both: Both, case: str) -> None:
    found = both.outcomes[case]
    assert found.their_error
    assert any(f"'{name}'" in found.our_error for name in REFUSED[case]), found.our_error
