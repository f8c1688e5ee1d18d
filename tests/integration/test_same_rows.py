"""The frame equals, in schema and content, what Spark's JVM source reads from the same topic.

A JVM is needed that has the JVM source: SPARK_KAFKA_JARS names a directory of its jars (spark-sql-kafka-0-10, its token
provider, kafka-clients, commons-pool2). Spark cannot take jars into a running session, so the reading is done by
processes of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chispa import assert_df_equality

from spark_group_source.testing.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JARS = os.environ.get("SPARK_KAFKA_JARS", "")
REPOSITORY = Path(__file__).resolve().parents[2]
READ_BOTH = Path(__file__).parent / "read_both.py"

pytestmark = pytest.mark.skipif(not JARS, reason="SPARK_KAFKA_JARS names no directory with Spark's JVM Kafka source")


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


def test_rows_and_schema_are_those_of_the_jvm_source_with_every_codec(
    spark: SparkSession, kafka: EmbeddedKafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    any_time = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
    count, topics = 0, []
    for codec in (None, "gzip", "snappy", "lz4", "zstd"):
        topics.append(kafka.create_topic(unique(f"same-{codec}"), partitions=3, config=any_time))
        count += write_every_kind_of_record(kafka, topics[-1], codec)
    append_time = any_time | {"message.timestamp.type": "LogAppendTime"}
    topics.append(kafka.create_topic(unique("same-append-time"), partitions=3, config=append_time))
    count += write_every_kind_of_record(kafka, topics[-1], None)
    jars = ",".join(str(each) for each in sorted(Path(JARS).glob("*.jar")))
    subprocess.run(
        [sys.executable, str(READ_BOTH), kafka.bootstrap_servers, ",".join(topics), str(tmp_path), jars],
        check=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable},
    )
    ours, theirs = (spark.read.parquet(str(tmp_path / name)) for name in ("kafka-group", "kafka"))
    assert ours.count() == count
    assert_df_equality(ours, theirs, ignore_row_order=True)
    assert (tmp_path / "kafka-group.schema").read_text() == (tmp_path / "kafka.schema").read_text()
