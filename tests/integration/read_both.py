"""Reads with this source and with Spark's JVM source, and compares; for test_same_rows."""

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
OURS, THEIRS = "kafka-group", "kafka"


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


def save(cases: list[Case], path: Path) -> None:
    """Writes the file that :func:`main` reads."""
    path.write_text(json.dumps([asdict(case) for case in cases]))


def load(path: Path) -> dict[str, Outcome]:
    """Reads the file that :func:`main` writes."""
    return {name: Outcome(**found) for name, found in json.loads(path.read_text()).items()}


def main(cases: str, outcomes: str, jars: str) -> None:
    """Writes the outcome of each case."""
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


def read_one(spark: SparkSession, case: Case, work: Path) -> Outcome:
    """Reads one case with this source alone."""
    ours, error = read(spark, OURS, case, work)
    return Outcome(our_error=error) if ours is None else Outcome(ours.count())


def read_both(spark: SparkSession, case: Case, work: Path) -> Outcome:
    """Reads one case with both and compares."""
    ours, our_error = read(spark, OURS, case, work)
    theirs, their_error = read(spark, THEIRS, case, work)
    if ours is None or theirs is None:
        return Outcome(our_error=our_error, their_error=their_error)
    try:
        assert_df_equality(ours, theirs, ignore_row_order=True)
    except Exception as error:  # chispa has an exception class for each kind of difference
        return Outcome(ours.count(), str(error))
    return Outcome(ours.count())


def read(spark: SparkSession, source: str, case: Case, work: Path) -> tuple[DataFrame | None, str]:
    """Returns the rows of one source, read once, or its error."""
    options = case.options | (case.ours if source == OURS else case.theirs)
    try:
        frame = (spark.readStream if case.streaming else spark.read).format(source).options(**options).load()
        if case.streaming:
            frame = streamed(frame, str(place(work, case, source)))
        frame = frame.cache()
        frame.count()
    except (PySparkException, Py4JJavaError) as error:
        return None, str(error)
    return frame, ""


def place(work: Path, case: Case, source: str) -> Path:
    """The Parquet of what a stream has read."""
    return work / f"{case.name}-{source}"


def streamed(frame: DataFrame, path: str) -> DataFrame:
    """What a stream reads of what there is."""
    writer = frame.writeStream.format("parquet").option("path", path)
    query = writer.option("checkpointLocation", f"{path}.checkpoint").trigger(availableNow=True).start()
    if not query.awaitTermination(TIMEOUT_S):
        raise TimeoutError(f"the stream to {path} did not end within {TIMEOUT_S} s")
    return frame.sparkSession.read.schema(frame.schema).parquet(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
