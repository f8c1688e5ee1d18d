"""Spark's input partitions. Each is one task, which reads some ranges and returns their rows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.spark.application import Application
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.python_worker import prepare_for_next_task
from spark_group_source.spark.schema import to_arrow_schema
from spark_group_source.spark.task_splitting import split_into_tasks
from spark_group_source.spark.worker_log import warn_on_stderr

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_group_source.options.source_options import SourceOptions
    from spark_group_source.wire.metadata import Metadata

    LeadersOf = Callable[[Iterable[TopicPartition]], Metadata]


class TaskPartition(InputPartition):
    """One task of a micro-batch."""

    def __init__(self, task: FetchTask) -> None:
        super().__init__(None)
        self.task = task


class TaskPlanner:
    """Plans the tasks of a streaming query or a batch query. ``query_id`` identifies a run of a streaming query.

    ``options`` are the options of the query, with a client id.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, application: Application, query_id: str = ""
    ) -> None:
        client_id = options.wire.client_id
        if not client_id:
            client_id = _client_id(options, application)
        self.options = options.with_client_id(client_id)
        self._schema = schema
        self._query_id = query_id
        if application.encrypts_files:
            self._query_id = ""

    def plan(
        self, ranges: Iterable[OffsetRange], cluster_id: str, leaders_of: LeadersOf | None = None
    ) -> list[InputPartition]:
        """The tasks that read these ranges of this cluster, one for each of Spark's partitions.

        Args:
            leaders_of: returns the known leaders of partitions. Without it, the tasks look up the leaders.
        """
        options, schema = self.options, to_arrow_schema(self._schema)
        tasks = split_into_tasks(
            ranges, options.min_records_per_task, options.max_records_per_partition, options.min_partitions
        )
        token = None if options.wire.sasl is None else options.wire.sasl.export_token()
        planned: list[InputPartition] = []
        for each in tasks:
            leaders = None
            if leaders_of is not None:
                leaders = leaders_of([read.tp for read in each])
            settings = options.wire, schema, options.fetch, self._query_id, token, cluster_id
            planned.append(TaskPartition(FetchTask(tuple(each), *settings, leaders)))
        return planned


CLIENT_ID_LENGTH = 150
"""Maximum length of the part of a client id that names the application and the topics, in characters."""


def _client_id(options: SourceOptions, application: Application) -> str:
    """The query's name in Kafka's tools: application name, topics, application id and process id.

    The application id lets a query recognise other queries of its application in its group.
    """
    subscription = options.group.subscription
    topics = subscription.pattern
    if subscription.topics:
        topics = "-".join(subscription.topics)
    process = str(os.getpid())
    if application.id:
        process = f"{application.id}-{process}"
    name = f"{application.name}-{topics}"[:CLIENT_ID_LENGTH]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{process}")


class PartitionReader:
    """The part of a reader that the executors get, because ``read`` needs nothing but the partition."""

    def __reduce__(self) -> tuple[object, ...]:
        return PartitionReader, ()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow record batches. Runs on an executor."""
        from spark_group_source.fetch.reader import read  # the driver decodes no records

        # If the reader has no partitions, Spark calls this with a partition of Spark's own class.
        if isinstance(partition, TaskPartition):
            warn_on_stderr()
            with hide_tracebacks():
                yield from read(partition.task)
            prepare_for_next_task()
