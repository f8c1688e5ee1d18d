"""Spark's entry point for batch queries: ``spark.read.format("kafka-group")``.

Spark creates the reader, asks it for its partitions and pickles it to the executors, all in a short-lived process. It
does so once for each loaded DataFrame, when it plans the first action on it. From then on that DataFrame reads the same
records; a DataFrame that is loaded later gets its own range. PySpark 4.0 does so for each action.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_group_source.options.source_options import SourceOptions, check_batch
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.runner import log_to_stderr
from spark_group_source.spark.tasks import Application, PartitionReader, TaskPlanner

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from spark_group_source.query.batch_query import RowFilter

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
        self._rows: RowFilter | None = None
        if options.push_down_filters:
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: Iterable[Filter]) -> None:
        """Leaves out partitions and offsets without rows that pass all of these filters."""
        from spark_group_source.spark.filters import row_filter  # executors need no filters

        self._rows = row_filter(filters)

    @hide_tracebacks()
    def partitions(self) -> list[InputPartition]:
        """The tasks of the read. The first call looks up where the read starts and ends; later calls return the same.

        Raises:
            GroupSourceError: see :func:`spark_group_source.query.batch_query.plan`.
        """
        if self._partitions is None:
            from spark_group_source.query.batch_query import plan  # executors must not import the group's modules
            from spark_group_source.wire.identity import ClusterIdentity

            log_to_stderr()
            if self._ignored:
                log.warning("ignored, as a batch query has no use for them: %s", ", ".join(self._ignored))
            identity = ClusterIdentity()
            ranges = plan(self._task_planner.options, rows=self._rows, identity=identity)
            self._partitions = self._task_planner.plan(ranges, identity.id)
        return self._partitions


class _PushFilters:
    """``pushFilters`` of a reader: every filter narrows the read, and Spark evaluates every filter as well.

    While ``spark.sql.python.filterPushdown.enabled`` is false, its default, Spark never calls it. It rejects a
    reader that overrides the method: it compares the ``__func__`` with that of the base class. Hence this is no method.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", len))  # PySpark 4.0 pushes no filters

    def __init__(self, reader: GroupBatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.narrow(filters)
        return filters
