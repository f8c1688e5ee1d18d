"""Reads with Spark's JVM source and with this one, and compares; run as a process by test_same_rows."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chispa import assert_df_equality
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_group_source import register

TIMEOUT_S = 180


@dataclass(frozen=True)
class Case:
    """One read: up to what there is when a stream begins, or a bounded read.

    ``ours`` and ``theirs`` are options for this source alone, and for the JVM source.
    """

    name: str
    options: dict[str, str]
    streaming: bool = False
    ours: dict[str, str] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a case: how many rows both read, how these differ, and the errors of those that read none."""

    count: int = 0
    difference: str = ""
    our_error: str = ""
    their_error: str = ""


def save(cases: list[Case], path: Path) -> None:
    """Writes the file that :func:`main` reads."""
    path.write_text(json.dumps([asdict(case) for case in cases]))


def load(path: Path) -> dict[str, Outcome]:
    """Reads the file that :func:`main` writes."""
    return {name: Outcome(**found) for name, found in json.loads(path.read_text()).items()}


def main(cases: str, outcomes: str, jars: str) -> None:
    """Writes what became of each case."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    register(spark)
    given = [Case(**each) for each in json.loads(Path(cases).read_text())]
    found = {case.name: asdict(read_both(spark, case, Path(outcomes).parent)) for case in given}
    spark.stop()
    Path(outcomes).write_text(json.dumps(found))


def read_both(spark: SparkSession, case: Case, work: Path) -> Outcome:
    """Reads and compares one case."""
    ours, our_error = read(spark, "kafka-group", case.options | case.ours, work / case.name if case.streaming else None)
    theirs, their_error = read(spark, "kafka", case.options | case.theirs, work / case.name if case.streaming else None)
    if ours is None or theirs is None:
        return Outcome(our_error=our_error, their_error=their_error)
    try:
        assert_df_equality(ours, theirs, ignore_row_order=True)
    except Exception as error:  # chispa has one for each kind of difference
        return Outcome(ours.count(), str(error))
    return Outcome(ours.count())


def read(
    spark: SparkSession, source: str, options: dict[str, str], stream_to: Path | None
) -> tuple[DataFrame | None, str]:
    """The rows of one source, read once; or its error."""
    try:
        reader = (spark.readStream if stream_to else spark.read).format(source)
        frame = reader.options(**options).load()
        if stream_to:
            frame = streamed(frame, f"{stream_to}-{source}")
        frame = frame.cache()
        frame.count()
    except (PySparkException, Py4JJavaError) as error:
        return None, str(error)
    return frame, ""


def streamed(frame: DataFrame, place: str) -> DataFrame:
    """What a stream reads of what there is."""
    writer = frame.writeStream.format("parquet").option("path", place)
    query = writer.option("checkpointLocation", f"{place}.checkpoint").trigger(availableNow=True).start()
    if not query.awaitTermination(TIMEOUT_S):
        raise TimeoutError(f"the stream to {place} did not end within {TIMEOUT_S} s")
    return frame.sparkSession.read.schema(frame.schema).parquet(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
