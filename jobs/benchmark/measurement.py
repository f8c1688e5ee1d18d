"""Fills and checks topics, and measures cases on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from pyspark.sql import SparkSession

from benchmark import processes, topics
from benchmark.broker_bytes import bytes_sent
from benchmark.cases import GROUP, MEMORY, TUNED, Case, Extent, Topic
from benchmark.distant_kafka import DistantKafka
from benchmark.errors import BenchError
from benchmark.queries import Run, contents, run
from benchmark.results import Result
from benchmark.source_query import SourceQuery

WARM_UPS = 1
"""Runs of each source that do not count, after the check."""


@dataclass(frozen=True, slots=True)
class FilledTopic:
    """A topic with all its records, and the number of rows in each partition."""

    name: str
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measures the sources in one Spark session and on one Kafka.

    ``jmx_port`` is the port of the broker's metrics; ``work`` holds the files with the values.
    """

    spark: SparkSession
    kafka: DistantKafka
    jmx_port: int
    sources: tuple[str, ...]
    runs: int
    work: Path

    def prepare(self, name: str, cases: list[Case]) -> FilledTopic:
        """Creates and fills the topic of the cases, and checks that both sources read the same rows.

        Raises:
            BenchError: the rows differ.
        """
        topics.write(self.kafka, name, cases[0].topic, self.work)
        rows = 0
        for columns in sorted({case.columns for case in cases}):
            rows = self._checked_rows(name, replace(cases[0], columns=columns, distance_ms=None))
        ends = self.kafka.end_offsets(name).values()
        # Gaps in the offsets have no rows.
        return FilledTopic(name, tuple(end * rows // sum(ends) for end in ends))

    def _checked_rows(self, name: str, check: Case) -> int:
        """The number of rows of a topic, after the check that all sources read the same rows."""
        topic: Topic = check.topic
        contents_of: dict[str, tuple[int, Decimal]] = {}
        for source in self.sources:
            if source != TUNED:  # which differs from the JVM source in settings only
                contents_of[source] = contents(self._source_query(source, FilledTopic(name), check))
        rows, _ = next(iter(contents_of.values()))
        are_equal = len(set(contents_of.values())) == 1
        is_complete = topic.compacted or rows == topic.records
        if not are_equal or not is_complete:
            columns = check.columns or "*"
            raise BenchError(f"Rows differ for {topic.records:,} records, columns {columns}: {contents_of}")
        return rows

    def measure(self, topic: FilledTopic, case: Case) -> Result:
        """Runs the case: first the warm-up, then pairs of runs, each with a run of the ceiling if the case has one."""
        sources = self._sources(case)
        source_queries = [self._source_query(source, topic, case) for source in sources]
        for source_query in source_queries * WARM_UPS:
            run(source_query)
        runs: dict[str, list[Run]] = {source: [] for source in sources}
        peaks: list[float] = []
        for _ in range(self.runs):
            for source_query in source_queries:
                processes.reset_peaks()
                runs[source_query.source].append(self._run(source_query))
                peak = processes.peak_mib()
                if source_query.source == GROUP and peak is not None:
                    peaks.append(peak)
            # The sources alternate as the first of a pair.
            source_queries = source_queries[::-1]
        return Result(case, runs, max(peaks, default=None))

    def _sources(self, case: Case) -> list[str]:
        sources = list(self.sources)
        if case.without_jvm:
            sources = [GROUP]
        if case.has_ceiling:
            sources.append(MEMORY)
        return sources

    def _run(self, source_query: SourceQuery) -> Run:
        if source_query.case.extent is not Extent.MICRO_BATCHES:
            cpu_before = processes.cpu_seconds(self.spark)
            measured = run(source_query)
            cpu_after = processes.cpu_seconds(self.spark)
            if cpu_before is None or cpu_after is None:
                return measured
            return replace(measured, cpu_s=cpu_after - cpu_before)
        before = bytes_sent(self.kafka, self.jmx_port, source_query.topic)
        measured = run(source_query)
        return replace(measured, received=bytes_sent(self.kafka, self.jmx_port, source_query.topic) - before)

    def _source_query(self, source: str, topic: FilledTopic, case: Case) -> SourceQuery:
        servers = self.kafka.servers(case.distance_ms)
        return SourceQuery(self.spark, servers, source, topic.name, topic.rows, case)
