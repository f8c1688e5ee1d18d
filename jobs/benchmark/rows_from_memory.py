"""The ceiling: a source whose tasks return rows from memory, without Kafka.

It shows the rate at which this Spark and this sink take rows from any Python source. Its tasks have the schema, the
number of rows and the size of Arrow batches of ``format("kafka-group")``.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from benchmark.cases import MEMORY, Topic
from benchmark.values import headers, key, values
from spark_group_source.records.columns import ALL_COLUMNS
from spark_group_source.records.responses import DecodeLimits
from spark_group_source.spark.python_worker import prepare_for_next_task
from spark_group_source.spark.schema import source_schema, to_arrow_schema

TIMESTAMP_US = 1_700_000_000_000_000


@dataclass
class RowsTask(InputPartition):
    """One task: the topic whose rows it imitates, and their number."""

    name: str
    topic: Topic
    schema: pa.Schema
    rows: int


class RowsStreamReader(DataSourceStreamReader):
    """One batch, with a task for each element of ``rows``, which is the number of its rows."""

    def __init__(self, name: str, topic: Topic, schema: pa.Schema, rows: list[int]) -> None:
        self._tasks = [RowsTask(name, topic, schema, each) for each in rows]

    def initialOffset(self) -> dict[str, Any]:
        """Before the batch."""
        return {"batch": 0}

    def latestOffset(self, *_: object) -> dict[str, Any]:
        """After the batch. PySpark 4.1 passes no arguments."""
        return {"batch": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of the batch."""
        return [*self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; the last Arrow batch is shorter."""
        assert isinstance(partition, RowsTask), partition
        batch = record_batch(partition.name, partition.topic, partition.schema)
        for first in range(0, partition.rows, batch.num_rows):
            yield batch.slice(0, partition.rows - first)
        prepare_for_next_task()


class RowsFromMemory(DataSource):
    """``format("rows-from-memory")``; see :func:`frame` for the options."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return MEMORY

    def schema(self) -> StructType:
        """The schema of both Kafka sources."""
        return source_schema(self._topic().headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one query."""
        rows = json.loads(self.options["rows"])
        return RowsStreamReader(self.options["name"], self._topic(), to_arrow_schema(schema), rows)

    def _topic(self) -> Topic:
        return Topic(**json.loads(self.options["topic"]))


def frame(spark: SparkSession, name: str, topic: Topic, rows: list[int], schema: str) -> DataFrame:
    """The streaming DataFrame with these numbers of rows by task; an empty ``schema`` means all columns."""
    reader = spark.readStream.format(MEMORY).option("name", name).option("topic", json.dumps(asdict(topic)))
    reader = reader.option("rows", json.dumps(rows))
    if schema:
        reader = reader.schema(schema)
    return reader.load()


@functools.lru_cache(maxsize=1)
def record_batch(name: str, topic: Topic, schema: pa.Schema) -> pa.RecordBatch:
    """An Arrow batch of the size that a task of ``format("kafka-group")`` returns. A worker builds it once."""
    limits, rng = DecodeLimits(), random.Random(name)
    count = min(limits.unit_bytes // topic.mean_value_bytes, limits.rows)
    columns = {
        "key": _keys(rng, topic, count),
        "value": [each.encode() for each in rng.choices(values(topic), k=count)],
        "topic": [name] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
        "timestamp": [TIMESTAMP_US] * count,
        "timestampType": [0] * count,
        "headers": _all_headers(topic, count),
    }
    arrays = [pa.array(columns[each], ALL_COLUMNS.field(each).type) for each in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _keys(rng: random.Random, topic: Topic, count: int) -> list[bytes | None]:
    if not topic.compacted:
        return [None] * count
    return [key(rng, topic).encode() for _ in range(count)]


def _all_headers(topic: Topic, count: int) -> list[list[dict[str, object]] | None]:
    if not topic.headers:
        return [None] * count
    return [_headers(number) for number in range(count)]


def _headers(number: int) -> list[dict[str, object]]:
    return [{"key": each, "value": value.encode()} for each, value in headers(number).items()]
