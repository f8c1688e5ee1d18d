"""Records the progress of a real query: python -m tests.unit.lag.recorded.record; needs Kafka and Spark.

The query reads a topic of three partitions in small batches, beside one of Spark's own sources. During the run more
records arrive; another query joins the group, takes partitions over, and leaves. Each line of the file is one progress.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql import SparkSession

from spark_group_source import register
from spark_group_source.testing import EmbeddedKafka
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC, GROUP = "orders", "orders-to-lake"


def main() -> int:
    """Writes the file of this version of PySpark."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as work:
        kafka.create_topic(TOPIC, 3)
        for number in range(3):
            kafka.produce(TOPIC, ["x"] * 30 * (number + 1), partition=number)
        rate = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
        query = start(source(spark, kafka).union(rate), Path(work) / "first", GROUP)
        eventually(lambda: sum(kafka.committed(GROUP).values()) == 180)
        kafka.produce(TOPIC, ["y"] * 15, partition=0)
        eventually(lambda: sum(kafka.committed(GROUP).values()) == 195)
        other = start(source(spark, kafka), Path(work) / "second", "other")
        eventually(lambda: sorted(each.partitions for each in kafka.members(GROUP)) == [1, 2])
        for number in range(3):
            kafka.produce(TOPIC, ["z"] * 10, partition=number)
        eventually(lambda: sum(kafka.committed(GROUP).values()) == 225)
        batches(query, 2)
        other.stop()
        eventually(lambda: [each.partitions for each in kafka.members(GROUP)] == [3])
        kafka.produce(TOPIC, ["end"], partition=0)
        eventually(lambda: sum(kafka.committed(GROUP).values()) == 226)
        batches(query, 2)
        lines = [each.json for each in query.recentProgress]
        query.stop()
    spark.stop()
    path = Path(__file__).with_name(f"pyspark-{pyspark.__version__}.jsonl")
    path.write_text("".join(f"{line}\n" for line in lines))
    print(path, len(lines))
    return 0


def source(spark: SparkSession, kafka: EmbeddedKafka) -> DataFrame:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": GROUP, "subscribe": TOPIC}
    more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40", "kafka.heartbeat.interval.ms": "200"}
    return (
        spark.readStream.format("kafka-group")
        .options(**options, **more)
        .load()
        .selectExpr("cast(value as string) as value")
    )


def start(frame: DataFrame, checkpoint: Path, name: str) -> StreamingQuery:
    writer = frame.writeStream.format("noop").queryName(name).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="500 milliseconds").start()


def batches(query: StreamingQuery, more: int) -> None:
    """Waits until the query has completed this number of further batches."""
    last = query.lastProgress
    assert last is not None
    until = last.batchId + more
    eventually(lambda: (now := query.lastProgress) is not None and now.batchId >= until)


if __name__ == "__main__":
    sys.exit(main())
