"""Every record is read as it was written, and as Spark's JVM source reads it with the same options.

The latter needs a JVM that has the JVM source, whose jars are downloaded. Spark cannot take jars into a running
session, so both read in a process of its own, which is this file. What other producers write is among the golden bytes
of the unit tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_group_source import register
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration.jvm_connector import jvm_connector

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 180
OURS, THEIRS = "kafka-group", "kafka"
AT_ONCE = 4
"""Cases that are read at the same time: most of each is waiting."""
ONE_STREAM = threading.Lock()
"""Of two streams that start at once, Spark may write a task that it cannot read back: it changes a map meanwhile."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Partition N is written with codec N."""
ISOLATIONS = ("read_committed", "read_uncommitted")
ANY_TIME = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
# Of the topic of batch queries: ten records in partitions 0 and 1, three in partition 2, record n at the time 1000 * n.
BOUNDED: dict[str, tuple[dict[str, str], int]] = {
    "default": ({}, 23),
    "offsets": ({"startingOffsets": '{"T":{"0":3,"1":-2,"2":3}}', "endingOffsets": '{"T":{"0":7,"1":-1,"2":3}}'}, 14),
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


class Record(NamedTuple):
    """A record; its timestamp is in milliseconds, or ``None`` if the broker sets it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = 1_700_000_000_123


KINDS = [
    Record(b"key", b"value"),
    Record(None, b"no key"),
    Record(b"", b""),
    *[Record(b"k%d" % number, b"v" * number, timestamp=1_700_000_000_000 + number) for number in range(70)],
    Record(b"large", b"0123456789" * 9000),
    Record(b"twice", b"v", (("twice", b"a"), ("twice", b"b"), ("twice", None))),
    Record(b"empty", b"v", (("", b""), ("null", None))),
    Record(None, b"bytes", (("\N{LATIN SMALL LETTER U WITH DIAERESIS}mlaut", bytes(range(256))),)),
    Record(b"many", b"v", tuple((f"h{number}", b"%d" % number) for number in range(40))),
    Record(b"gone", None),
    Record(b"", None),
    Record(b"headers", None, (("why", b"deleted"),)),
]
TEXTS = (None, b"", b"plain", bytes(range(256)), b"x" * 9000)
TIMES = (0, 1_700_000_000_123, 253_402_300_799_999)
OF_ALL_TIMES = [
    Record(key, value, timestamp=at) for at in TIMES for key in TEXTS for value in TEXTS if (key, value) != (None, None)
]

Expected = dict[tuple[str, int], list[Record]]
"""Records by topic and partition, in the order of their offsets."""


@dataclass(frozen=True)
class Case:
    """One read: a batch query, or a stream up to the records that exist at its start.

    ``ours`` and ``theirs`` are options for this source alone, and for the JVM source.
    """

    name: str
    options: dict[str, str]
    streaming: bool = False
    ours: dict[str, str] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a case: the number of rows, their difference, and the errors of the sources."""

    count: int = 0
    difference: str = ""
    our_error: str = ""
    their_error: str = ""


def main(work: Path, jars: str) -> None:
    """Writes the outcome of each case."""
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "1")
    spark = builder.getOrCreate()
    register(spark)
    cases = [Case(**each) for each in json.loads((work / "cases.json").read_text())]
    found = outcomes(spark, cases, work)
    spark.stop()
    (work / "outcomes.json").write_text(json.dumps({name: asdict(each) for name, each in found.items()}))


def outcomes(spark: SparkSession, cases: list[Case], work: Path) -> dict[str, Outcome]:
    """Reads all cases with both sources."""

    def outcome(case: Case) -> Outcome:
        mine, our_error = read(spark, OURS, case, work)
        other, their_error = read(spark, THEIRS, case, work)
        if mine is None:
            return Outcome(our_error=our_error, their_error=their_error)
        different = [pair for pair in zip_longest(mine, other or []) if pair[0] != pair[1]]
        return Outcome(len(mine) - 1, f"{their_error} {different[:2]}" if different else "")

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return dict(zip([case.name for case in cases], threads.map(outcome, cases), strict=True))


def read(spark: SparkSession, source: str, case: Case, work: Path) -> tuple[list[Any] | None, str]:
    """Returns the schema and the rows of one source in the order of their offsets, or its error."""
    options = case.options | (case.ours if source == OURS else case.theirs)
    try:
        frame = (spark.readStream if case.streaming else spark.read).format(source).options(**options).load()
        if case.streaming:
            path = str(work / f"{case.name}-{source}")
            writer = frame.writeStream.format("parquet").option("path", path)
            with ONE_STREAM:
                query = writer.option("checkpointLocation", f"{path}.checkpoint").trigger(availableNow=True).start()
                if not query.awaitTermination(TIMEOUT_S):
                    raise TimeoutError(f"the stream to {path} did not end within {TIMEOUT_S} s")
            frame = spark.read.schema(frame.schema).parquet(path)
        rows = sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))
    except (PySparkException, Py4JJavaError) as error:
        return None, str(error)
    return [frame.schema, *rows], ""


@contextlib.contextmanager
def written(kafka: EmbeddedKafka, prefix: str) -> Iterator[dict[str, Expected]]:
    """Topics with all kinds of records, and what is in them by isolation level. The last transactions stay open."""
    found: dict[str, Expected] = {each: {} for each in ISOLATIONS}
    opened: list[Producer] = []

    def producer(codec: str, **more: Any) -> Producer:
        # Long enough that records before a flush form one batch.
        config = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 200}
        opened.append(Producer(config | more))
        return opened[-1]

    def send(to: Producer, topic: str, partition: int, records: list[Record]) -> list[Record]:
        for each in records:
            given: dict[str, Any] = {"headers": list(each.headers), "timestamp": each.timestamp}
            to.produce(topic, each.value, each.key, partition, **given)
        assert to.flush(TIMEOUT_S) == 0, "not all was written in time"
        return records

    for kind in ("CreateTime", "LogAppendTime"):
        topic = kafka.create_topic(f"{prefix}-{kind}", config=ANY_TIME | {"message.timestamp.type": kind})
        records = OF_ALL_TIMES
        with kafka.producer() as sender:  # for librdkafka the time 0 is now
            for each in records:
                sender.send(topic, each.value, each.key, partition=0, timestamp_ms=each.timestamp)
            sender.flush(TIMEOUT_S)
        if kind == "LogAppendTime":
            records = [each._replace(timestamp=None) for each in records]
        for expected in found.values():
            expected[topic, 0] = records
    topic = kafka.create_topic(f"{prefix}-codecs", len(CODECS), ANY_TIME)
    for partition, codec in enumerate(CODECS):
        outside = producer(codec)
        every = [*send(outside, topic, partition, KINDS)]
        committed = [*every]
        # The longest time that brokers allow.
        inside = producer(codec, **{"transactional.id": f"{topic}-{codec}", "transaction.timeout.ms": 900_000})
        inside.init_transactions(TIMEOUT_S)
        for end in ("commit", "abort", "abort", "commit", "leave open"):
            inside.begin_transaction()
            some = send(inside, topic, partition, [Record(b"in it", end.encode() * 20, (("h", None),))] * 3)
            every += some
            if end == "commit":
                inside.commit_transaction(TIMEOUT_S)
                committed += some
            elif end == "abort":
                inside.abort_transaction(TIMEOUT_S)
        every += send(outside, topic, partition, [Record(None, b"behind the open transaction")])
        found["read_committed"][topic, partition], found["read_uncommitted"][topic, partition] = committed, every
    yield found
    for one in opened:
        one.purge()


def cases_of(kafka: EmbeddedKafka, prefix: str) -> list[Case]:
    """Streams of all records by isolation level, a batch query of the same, and batch queries of all kinds of ends."""
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    cases = []
    for isolation in ISOLATIONS:
        level = servers | {"includeHeaders": "true", "kafka.isolation.level": isolation}
        given = level | {"subscribePattern": f"{prefix}-(codecs|.*Time)", "startingOffsets": "earliest"}
        cases.append(Case(isolation, given, streaming=True, ours={"kafka.group.id": f"{prefix}-{isolation}"}))
        cases.append(Case(f"batch-{isolation}", level | {"subscribePattern": f"{prefix}-cod.*"}))
    topic = kafka.create_topic(f"{prefix}-bounded", partitions=3, config=ANY_TIME)
    for partition, count in enumerate((10, 10, 3)):
        rows = [{"value": b"%d" % number, "timestamp": 1000 * number} for number in range(count)]
        kafka.produce(topic, rows, partition=partition)
    for name, options in (*((name, given) for name, (given, _) in BOUNDED.items()), *REFUSED.items()):
        given = {key: value.replace('"T"', json.dumps(topic)) for key, value in options.items()}
        # The JVM source would try again to read what cannot be read, for some seconds.
        cases.append(Case(name, servers | {"subscribe": topic} | given, theirs={"fetchOffset.numRetries": "1"}))
    return cases


class Reads(NamedTuple):
    """What became of the reads by case; and by isolation level, the records of the streams and the expected ones."""

    outcomes: dict[str, Outcome]
    records: dict[str, Expected]
    expected: dict[str, Expected]


@pytest.fixture(scope="module")
def reads(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reads]:
    """All reads."""
    work = tmp_path_factory.mktemp("reads")
    prefix = f"same-{work.name}"
    with written(kafka, prefix) as expected:
        cases = cases_of(kafka, prefix)
        (work / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
        subprocess.run(
            [sys.executable, __file__, str(work), jvm_connector()],
            check=True,
            timeout=600,
            env={
                **os.environ,
                "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'jobs'}",
                "PYSPARK_PYTHON": sys.executable,
            },
        )
        given = json.loads((work / "outcomes.json").read_text())
        found = {name: Outcome(**each) for name, each in given.items()}
        yield Reads(found, {each: records_in(work / f"{each}-{OURS}") for each in ISOLATIONS}, expected)


def records_in(path: Path) -> Expected:
    """The records of a stream's Parquet."""
    found: Expected = {}
    rows = pq.read_table(path, coerce_int96_timestamp_unit="us")
    rows = rows.append_column("micros", rows["timestamp"].cast("int64"))
    for row in rows.sort_by([(each, "ascending") for each in ("topic", "partition", "offset")]).to_pylist():
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        timestamp = None if row["timestampType"] else row["micros"] // 1000
        record = Record(row["key"], row["value"], headers, timestamp)
        found.setdefault((row["topic"], row["partition"]), []).append(record)
    return found


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_stream_has_all_records_and_the_rows_and_schema_of_the_jvm_source(reads: Reads, isolation: str) -> None:
    expected = reads.expected[isolation]
    for where, records in expected.items():
        assert reads.records[isolation].get(where) == records, where
    counts = [len(records) for (topic, _), records in expected.items()]
    assert reads.outcomes[isolation] == Outcome(sum(counts))
    # And a batch query of a pattern has those of this topic.
    assert reads.outcomes[f"batch-{isolation}"] == Outcome(sum(counts[2:]))


def test_a_batch_read_has_the_rows_of_the_jvm_source_for_the_same_range(reads: Reads) -> None:
    assert {case: reads.outcomes[case] for case in BOUNDED} == {case: Outcome(n) for case, (_, n) in BOUNDED.items()}


@pytest.mark.parametrize("case", REFUSED)
def test_a_read_that_the_jvm_source_rejects_fails_and_the_error_names_the_option(reads: Reads, case: str) -> None:
    found = reads.outcomes[case]
    assert found.their_error
    assert any(f"'{name}'" in found.our_error for name in REFUSED[case]), found.our_error


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
