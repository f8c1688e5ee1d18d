"""Spark's input partitions: the tasks that ranges are read in, and their rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.options.table import SourceOptions
from spark_group_source.options.wire import wire_options
from spark_group_source.spark.plain_errors import plain_errors
from spark_group_source.spark.planning import tasks
from spark_group_source.spark.python_worker import ready_for_the_next_task
from spark_group_source.spark.schema import columns_of
from spark_group_source.wire.settings import WireOptions

if TYPE_CHECKING:
    import pyarrow as pa


CLIENT_ID_LENGTH = 150
"""Characters of a client id that name the application and the topics."""


class Application(NamedTuple):
    """The Spark application that a query runs in."""

    name: str = "pyspark"
    id: str = ""


class TaskPartition(InputPartition):
    """One task of a micro-batch."""

    def __init__(self, task: FetchTask) -> None:
        super().__init__(None)
        self.task = task


class Tasks:
    """Makes tasks of the ranges that a query or a bounded read is to read."""

    def __init__(self, options: SourceOptions, schema: StructType, application: Application) -> None:
        self._options = options
        self._schema = schema
        self._application = application

    def of(self, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
        """The tasks, one for each partition of Spark's."""
        schema = columns_of(self._schema)
        own = self._options
        planned = tasks(ranges, own.min_records_per_task, own.max_records_per_partition, own.min_partitions)
        wire = self.wire()
        return [TaskPartition(self._task(each, schema, wire)) for each in planned]

    def wire(self) -> WireOptions:
        """How brokers are reached."""
        return wire_options(self._options, self._client_id())

    def _client_id(self) -> str:
        """Names the query in Kafka's tools: the option, or application, topics, the application's id and process.

        The application's id tells a query that another one of its application is in its group.
        """
        if self._options.client_id:
            return self._options.client_id
        topics = "-".join(self._options.topics) or self._options.topic_pattern
        process = "-".join(filter(None, [self._application.id, str(os.getpid())]))
        name = f"{self._application.name}-{topics}"[:CLIENT_ID_LENGTH]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{process}")

    def _task(self, ranges: list[OffsetRange], schema: pa.Schema, wire: WireOptions) -> FetchTask:
        return FetchTask(
            ranges=tuple(ranges),
            wire=wire,
            schema=schema,
            read_committed=self._options.read_committed,
            check_crcs=self._options.check_crcs,
            fail_on_data_loss=self._options.fail_on_data_loss,
            max_bytes=self._options.fetch_max_bytes,
            max_partition_bytes=self._options.max_partition_fetch_bytes,
            min_bytes=self._options.fetch_min_bytes,
            rack=self._options.rack,
            replica_max_age=self._options.metadata_max_age,
            max_wait=self._options.fetch_max_wait,
            patience=self._options.poll_timeout,
        )


def read_task(partition: TaskPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow record batches."""
    from spark_group_source.fetch.reader import read  # the driver decodes nothing

    with plain_errors():
        yield from read(partition.task)
    ready_for_the_next_task()
