"""Spark's door for bounded reads: ``spark.read.format("kafka-group")``.

Spark makes the reader, asks it for its partitions and pickles it to the executors, all in a process that ends then. It
does so once for each frame that is loaded, when the first action on it is planned: from then on that frame reads the
same records, and one that is loaded anew those of its own moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_group_source.options.stream_and_batch import check_batch
from spark_group_source.options.table import SourceOptions
from spark_group_source.spark.input_partitions import Application, TaskPartition, Tasks, read_task
from spark_group_source.spark.plain_errors import plain_errors
from spark_group_source.spark.runner import log_to_stderr

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class GroupBatchReader(DataSourceReader):
    """The reader of one bounded read.

    Args:
        ignored: names of options given that mean nothing here.

    Raises:
        OptionError: the options are none of a bounded read.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, application: Application, ignored: Sequence[str]
    ) -> None:
        check_batch(options)
        self._options = options
        self._tasks = Tasks(options, schema, application)
        self._ignored = ignored
        self._planned: list[InputPartition] | None = None

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        """The tasks of the read. Where it starts and ends is looked up in the first call, and holds.

        Raises:
            GroupSourceError: see :func:`spark_group_source.query.batch_read.plan`.
        """
        if self._planned is None:
            from spark_group_source.query.batch_read import plan  # executors need nothing of the group

            log_to_stderr()
            if self._ignored:
                log.warning("ignored, as a bounded read has no use for them: %s", ", ".join(self._ignored))
            self._planned = self._tasks.of(plan(self._options, self._tasks.wire()))
        return self._planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow record batches. Runs on an executor."""
        # Where there is nothing to read Spark makes a partition of its own.
        if isinstance(partition, TaskPartition):
            yield from read_task(partition)
