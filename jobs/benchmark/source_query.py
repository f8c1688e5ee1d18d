"""The streaming DataFrame of a source for a case."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from benchmark import rows_from_memory
from benchmark.cases import GROUP, JVM, MEMORY, TUNED, Case

TUNING = {
    "kafka.receive.buffer.bytes": "-1",
    "kafka.max.partition.fetch.bytes": str(8 * 2**20),
    "kafka.max.poll.records": "50000",
}
"""The JVM source as some of its users tune it: a socket buffer that grows, larger fetches of a partition, and more
records for each poll, after which it asks for the begin and the end of the log."""
TYPES = {"value": "binary", "offset": "long"}


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """One source that reads one topic for one case; ``rows`` are the numbers of rows in the topic's partitions."""

    spark: SparkSession
    servers: str
    source: str
    topic: str
    rows: tuple[int, ...]
    case: Case

    @property
    def limit(self) -> int | None:
        """The maximum number of records in a batch."""
        return self.case.limit(self.source)

    def frame(self, limit: int | None, **options: str) -> DataFrame:
        """The streaming DataFrame. If the source can select columns, it does, as its users would."""
        if self.source == MEMORY:
            assert limit, self.case
            rows = [each * limit // self.case.topic.records for each in self.rows]
            return rows_from_memory.frame(self.spark, self.topic, self.case.topic, rows, self._schema)
        name = self.source
        if self.source == TUNED:
            name = JVM
        reader = self.spark.readStream.format(name).options(**self._options(limit, options))
        columns = self.case.columns
        if not columns:
            return reader.load()
        if self.source == GROUP:
            return reader.schema(self._schema).load()
        return reader.load().select(*columns)

    @property
    def _schema(self) -> str:
        """The case's columns as DDL; empty for all."""
        return ", ".join(f"{name} {TYPES[name]}" for name in self.case.columns)

    def _options(self, limit: int | None, more: dict[str, str]) -> dict[str, str]:
        options = {"startingOffsets": "earliest", **more}
        options |= {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
        options["includeHeaders"] = str(self.case.topic.headers).lower()
        if self.case.topic.transactional:
            options["kafka.isolation.level"] = "read_committed"
        if self.source == TUNED:
            options |= TUNING
        if limit:
            options["maxOffsetsPerTrigger"] = str(limit)
        if self.source == GROUP:
            options["kafka.group.id"] = f"bench-{uuid.uuid4().hex}"
        return options
