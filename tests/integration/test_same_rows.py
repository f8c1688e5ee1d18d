"""Every record is read as it was written, and as Spark's JVM source reads it with the same options.

The latter needs a JVM that has the JVM source: SPARK_KAFKA_JARS names a directory of its jars (spark-sql-kafka-0-10,
its token provider, kafka-clients, commons-pool2). Spark cannot take jars into a running session, so both then read in
a process of its own, one for all tests. Otherwise this source alone reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from spark_group_source.offsets import TopicPartition
from spark_group_source.records.batches import CODEC, HEADER, find_record_batches
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration.read_both import OURS, Case, Outcome, load, place, read_one, save
from tests.integration.same_topics import ANY_TIME, CODECS, ISOLATIONS, Expected, Topics, by_kind
from tests.integration.writers import PRODUCERS, Record, writers

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
REPOSITORY = Path(__file__).resolve().parents[2]
READ_BOTH = Path(__file__).parent / "read_both.py"
# Of timed_topic(): ten records in partitions 0 and 1, three in partition 2, record n at the time 1000 * n.
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


def timed_topic(kafka: EmbeddedKafka) -> str:
    """A topic for the cases of batch queries."""
    topic = kafka.create_topic(f"timed-{uuid.uuid4().hex[:8]}", partitions=3, config=ANY_TIME)
    with kafka.producer() as producer:
        for partition, count in enumerate((10, 10, 3)):
            for number in range(count):
                producer.send(topic, value=b"%d" % number, timestamp_ms=1000 * number, partition=partition)
        producer.flush()
    return topic


def cases_of(kafka: EmbeddedKafka, topics: Topics) -> list[Case]:
    """All reads: streams and batch queries of all kinds of records, and batch queries between all kinds of ends."""
    servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    cases = []
    for isolation in ISOLATIONS:
        level = servers | {"includeHeaders": "true", "kafka.isolation.level": isolation}
        every = level | {"startingOffsets": "earliest", "subscribePattern": f"{topics.prefix}-.*"}
        some = level | {"subscribePattern": f"{topics.prefix}-(none|zstd)"}
        group = {"kafka.group.id": f"{topics.prefix}-{isolation}"}
        cases.append(Case(isolation, every, streaming=True, ours=group))
        cases.append(Case(f"batch-{isolation}", some))
    timed = timed_topic(kafka)
    for name, options in (*((name, given) for name, (given, _) in BOUNDED.items()), *REFUSED.items()):
        given = {key: value.replace('"T"', json.dumps(timed)) for key, value in options.items()}
        # The JVM source would try again to read what cannot be read, for some seconds.
        cases.append(Case(name, servers | {"subscribe": timed} | given, theirs={"fetchOffset.numRetries": "1"}))
    return cases


@pytest.fixture(scope="module")
def topics(kafka: EmbeddedKafka) -> Iterator[Topics]:
    """The topics, with transactions that stay open as long as they are read."""
    with writers(kafka) as opened:
        written = Topics(kafka, opened, f"same-{uuid.uuid4().hex[:8]}")
        for kind in ("CreateTime", "LogAppendTime"):
            written.write_timestamps(kind)
        for codec in CODECS:
            written.write(codec)
        yield written


class Reads(NamedTuple):
    """What became of the reads by case, and the records of the streams by isolation level."""

    outcomes: dict[str, Outcome]
    records: dict[str, Expected]


@pytest.fixture(scope="module")
def reads(
    kafka: EmbeddedKafka, topics: Topics, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reads:
    """All reads."""
    work = tmp_path_factory.mktemp("reads")
    cases = cases_of(kafka, topics)
    if JARS:
        save(cases, work / "cases.json")
        jars = ",".join(str(each) for each in sorted(Path(JARS).glob("*.jar")))
        subprocess.run(
            [sys.executable, str(READ_BOTH), str(work / "cases.json"), str(work / "outcomes.json"), jars],
            check=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable},
        )
        outcomes = load(work / "outcomes.json")
    else:
        spark = request.getfixturevalue("spark")
        outcomes = {case.name: read_one(spark, case, work) for case in cases}
    return Reads(outcomes, {case.name: records_in(place(work, case, OURS)) for case in cases if case.streaming})


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


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_all_produced_records_are_read(
    topics: Topics, reads: Reads, kafka: EmbeddedKafka, producer: str, codec: str
) -> None:
    where = (topics.name(codec), PRODUCERS.index(producer))
    for isolation in ISOLATIONS:
        assert by_kind(reads.records[isolation][where]) == by_kind(topics.expected[isolation][where]), isolation
    used = set()  # otherwise this would not show what it is there for
    for segment in kafka.directory.rglob(f"{where[0]}-{where[1]}/*.log"):
        raw = segment.read_bytes()
        begins = find_record_batches(TopicPartition("t", 0), memoryview(raw)).boundaries[:-1]
        used |= {np.frombuffer(raw, HEADER, 1, begin)["attributes"][0] & CODEC for begin in begins}
    assert CODECS.index(codec) in used


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_stream_has_all_records_and_the_rows_and_schema_of_the_jvm_source(
    topics: Topics, reads: Reads, isolation: str
) -> None:
    assert reads.records[isolation] == topics.expected[isolation]
    counts = {where[0]: 0 for where in topics.expected[isolation]}
    for (topic, _), records in topics.expected[isolation].items():
        counts[topic] += len(records)
    assert reads.outcomes[isolation] == Outcome(sum(counts.values()))
    # And a batch query of a pattern has those of these topics.
    assert reads.outcomes[f"batch-{isolation}"] == Outcome(counts[topics.name("none")] + counts[topics.name("zstd")])


def test_a_batch_read_has_the_rows_of_the_jvm_source_for_the_same_range(reads: Reads) -> None:
    assert {case: reads.outcomes[case] for case in BOUNDED} == {case: Outcome(n) for case, (_, n) in BOUNDED.items()}


@pytest.mark.parametrize("case", REFUSED)
def test_a_read_that_the_jvm_source_rejects_fails_and_the_error_names_the_option(reads: Reads, case: str) -> None:
    found = reads.outcomes[case]
    assert found.their_error or not JARS
    assert any(f"'{name}'" in found.our_error for name in REFUSED[case]), found.our_error
