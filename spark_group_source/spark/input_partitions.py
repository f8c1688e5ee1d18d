"""Spark's input partitions: each is one task, which reads some ranges and returns their rows."""

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
from spark_group_source.spark.python_worker import prepare_for_next_task
from spark_group_source.spark.schema import to_arrow_schema
from spark_group_source.spark.task_splitting import split_into_tasks
from spark_group_source.wire.settings import WireOptions
from spark_group_source.wire.tokens import SharedToken, share_token

if TYPE_CHECKING:
    import pyarrow as pa


CLIENT_ID_LENGTH = 150
"""Maximum length of the part of a client id that names the application and the topics, in characters."""


WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""With it, Spark itself bounds AvailableNow runs of sources that cannot, as of all Python sources of PySpark 4.1."""


class Application(NamedTuple):
    """The Spark application that a query runs in."""

    name: str = "pyspark"
    id: str = ""
    encrypts_files: bool = False
    """Whether Spark encrypts its temporary files. Then this source writes none."""
    wraps_available_now: bool = False
    """Whether Spark has the setting :data:`WRAPPER` on."""


class TaskPartition(InputPartition):
    """One task of a micro-batch."""

    def __init__(self, task: FetchTask) -> None:
        super().__init__(None)
        self.task = task


class TaskPlanner:
    """Plans the tasks of a query or a batch read; ``query_id`` identifies a run of a query."""

    def __init__(
        self, options: SourceOptions, schema: StructType, application: Application, query_id: str = ""
    ) -> None:
        self._options = options
        self._schema = schema
        self._application = application
        self._query_id = "" if application.encrypts_files else query_id

    def plan(self, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
        """The tasks that read these ranges, one for each of Spark's partitions."""
        schema = to_arrow_schema(self._schema)
        options = self._options
        tasks = split_into_tasks(
            ranges, options.min_records_per_task, options.max_records_per_partition, options.min_partitions
        )
        wire = self.wire_options()
        token = share_token(wire)
        return [TaskPartition(self._task(task, schema, wire, token)) for task in tasks]

    def wire_options(self) -> WireOptions:
        """The settings of connections to brokers."""
        return wire_options(self._options, self._client_id())

    def _client_id(self) -> str:
        """The query's name in Kafka's tools: the option, or application name, topics, application id and process id.

        By the application id a query recognises other queries of its application in its group.
        """
        if self._options.client_id:
            return self._options.client_id
        topics = "-".join(self._options.topics) or self._options.topic_pattern
        process = "-".join(filter(None, [self._application.id, str(os.getpid())]))
        name = f"{self._application.name}-{topics}"[:CLIENT_ID_LENGTH]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{process}")

    def _task(
        self, ranges: list[OffsetRange], schema: pa.Schema, wire: WireOptions, token: SharedToken | None
    ) -> FetchTask:
        return FetchTask(
            ranges=tuple(ranges),
            wire=wire,
            schema=schema,
            read_committed=self._options.read_committed,
            check_crcs=self._options.check_crcs,
            fail_on_data_loss=self._options.fail_on_data_loss,
            fetch_max_bytes=self._options.fetch_max_bytes,
            max_partition_fetch_bytes=self._options.max_partition_fetch_bytes,
            min_bytes=self._options.fetch_min_bytes,
            rack=self._options.rack,
            replica_max_age=self._options.metadata_max_age,
            max_wait=self._options.fetch_max_wait,
            poll_timeout=self._options.poll_timeout,
            query_id=self._query_id,
            token=token,
        )


def read_task(partition: TaskPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow record batches."""
    from spark_group_source.fetch.reader import read  # the driver decodes no records

    with plain_errors():
        yield from read(partition.task)
    prepare_for_next_task()
