"""Spark's entry point for batch queries: ``spark.read.format("kafka-group")``.

Spark creates the reader, asks it for its partitions and pickles it to the executors, all in a short-lived process.
Spark does so once for each DataFrame that ``load()`` returns, when it plans the first action on the DataFrame. Every
later action reads the same records; the DataFrame of another ``load()`` has its own range. PySpark 4.0 creates a reader
for each action.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_group_source.options.source_options import SourceOptions, check_batch
from spark_group_source.spark.application import Application
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.runner_log import log_to_stderr
from spark_group_source.spark.tasks import PartitionReader, TaskPlanner

log = logging.getLogger(__name__)


class GroupBatchReader(PartitionReader, DataSourceReader):
    """The reader of one batch query.

    Args:
        ignored: names of the user's options that only a stream uses.

    Raises:
        OptionError: the options do not suit a batch query.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, application: Application, ignored: Sequence[str]
    ) -> None:
        check_batch(options)
        self._task_planner = TaskPlanner(options, schema, application)
        self._ignored = ignored
        self._partitions: list[InputPartition] | None = None

    @hide_tracebacks()
    def partitions(self) -> list[InputPartition]:
        """The tasks of the read. The first call looks up where the read starts and ends; later calls return the same
        tasks.

        Raises:
            GroupSourceError: see :func:`spark_group_source.query.batch_query.plan`.
        """
        if self._partitions is None:
            from spark_group_source.query.batch_query import plan  # executors must not import the group's modules
            from spark_group_source.wire.identity import ClusterIdentity

            log_to_stderr()
            if self._ignored:
                log.warning("ignoring options that a batch query does not use: %s", ", ".join(self._ignored))
            identity = ClusterIdentity()
            ranges = plan(self._task_planner.options, identity=identity)
            self._partitions = self._task_planner.plan(ranges, identity.id)
        return self._partitions
