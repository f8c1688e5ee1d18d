"""The streaming DataFrame of a source for a case."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from benchmark.cases import GROUP, Case

TYPES = {"value": "binary", "offset": "long"}


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """One source that reads one topic for one case."""

    spark: SparkSession
    servers: str
    source: str
    topic: str
    case: Case

    def frame(self, limit: int | None, **options: str) -> DataFrame:
        """The streaming DataFrame. If the source can select columns, it does, as its users would."""
        options = {"startingOffsets": "earliest", **options}
        options |= {"kafka.bootstrap.servers": self.servers, "subscribe": self.topic}
        options["includeHeaders"] = str(self.case.topic.headers).lower()
        if self.case.topic.transactional:
            options["kafka.isolation.level"] = "read_committed"
        if limit:
            options["maxOffsetsPerTrigger"] = str(limit)
        if self.source == GROUP:
            options["kafka.group.id"] = f"bench-{uuid.uuid4().hex}"
        reader = self.spark.readStream.format(self.source).options(**options)
        columns = self.case.columns
        if columns and self.source == GROUP:
            return reader.schema(", ".join(f"{name} {TYPES[name]}" for name in columns)).load()
        return reader.load().select(*columns) if columns else reader.load()
