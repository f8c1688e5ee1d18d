"""A topic filled and checked, and cases measured on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from benchmark import memory, topics
from benchmark.cases import Case, Topic
from benchmark.errors import BenchError
from benchmark.figures import Result
from benchmark.queries import Run, contents, run
from benchmark.reading import Reading
from spark_group_source.testing import EmbeddedKafka

WARM_UPS = 1
"""Runs of each source before those that count, beside the reading of the check."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """Both sources, or one, in one Spark session and on one Kafka; ``work`` takes what topics are made of."""

    spark: SparkSession
    kafka: EmbeddedKafka
    sources: tuple[str, ...]
    runs: int
    work: Path

    def prepare(self, name: str, cases: list[Case]) -> None:
        """Creates and fills the topic that the cases share, and checks that all sources read the same rows of it.

        Raises:
            BenchError: they do not.
        """
        topic: Topic = cases[0].topic
        topics.write(self.kafka, name, topic, self.work)
        for columns in sorted({case.columns for case in cases}):
            check = replace(cases[0], columns=columns)
            found = {source: contents(self._reading(source, name, check)) for source in self.sources}
            rows = {number for number, _ in found.values()}
            if len(set(found.values())) != 1 or (rows != {topic.records} and not topic.compacted):
                raise BenchError(f"Rows differ for {topic.records:,} records, columns {columns or '*'}: {found}")

    def measure(self, name: str, case: Case) -> Result:
        """Runs the case: first to warm up, then in pairs."""
        readings = [self._reading(source, name, case) for source in self.sources]
        memory.forget_peaks()
        for reading in readings * WARM_UPS:
            run(reading)
        runs: dict[str, list[Run]] = {source: [] for source in self.sources}
        for number in range(self.runs):
            # Neither source is always the first of its pair.
            for reading in readings[:: -1 if number % 2 else 1]:
                runs[reading.source].append(run(reading))
        return Result(case, runs, memory.peak_mib())

    def _reading(self, source: str, topic: str, case: Case) -> Reading:
        return Reading(self.spark, self.kafka.bootstrap_servers, source, topic, case)
