"""Spark's door for streaming: the reader of one query.

Spark makes the reader in two processes. The one of the stream runner gets all calls but ``read``, and there the group
member lives; the planner's copy is pickled to the executors for ``read`` alone. So nothing starts before the first
call, and ``read`` uses nothing but its partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_group_source.offsets import BatchOffset
from spark_group_source.options.stream_and_batch import check_stream
from spark_group_source.options.table import SourceOptions
from spark_group_source.spark.input_partitions import Application, TaskPartition, Tasks, read_task
from spark_group_source.spark.plain_errors import plain_errors
from spark_group_source.spark.runner import finish_leaving, leave_on_sigterm, log_to_stderr
from spark_group_source.spark.schema import columns_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_group_source.query.driver import Driver

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.1 has no admission control: Spark then calls latestOffset() without arguments.
    ReadAllAvailable = ReadLimit = ReadMaxRows = None  # type: ignore[assignment, misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for the class of PySpark 4.2."""


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's reader."""

    def __init__(self, options: SourceOptions, schema: StructType, application: Application) -> None:
        self._options = options
        self._schema = schema
        self._application = application
        self._tasks = Tasks(options, schema, application)
        self._driver: Driver | None = None
        self._available_now = False
        self._last_json: dict[str, Any] | None = None
        self._last = BatchOffset()
        # Where the query stands. PySpark 4.1 does not tell.
        self._position = BatchOffset()
        self._replayed = False
        self._prepared = False
        self._running = False

    def __reduce__(self) -> tuple[object, ...]:
        # The copy for the executors has no member, sockets or locks.
        return GroupStreamReader, (self._options, self._schema, self._application)

    def prepareForTriggerAvailableNow(self) -> None:
        """The run ends at what the log holds when it begins."""
        self._available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, or everything."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        """The empty offset: where partitions start is known once they are owned, and never from here.

        What ``latest`` means is looked up, and no group is joined yet. Spark also asks when the first batch is logged
        already. Only its next call tells whether the query starts for the first time or goes on.

        Raises:
            OptionError: an option that streams need is missing, or one is given that they cannot have.
            GroupSourceError: the topics cannot be had.
        """
        if self._driver is None:
            self._made().decide_start()
        return BatchOffset().as_json()

    @plain_errors()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch, or ``start`` unchanged. ``start`` is the end of the last completed batch.

        Raises:
            GroupSourceError: the group refused this member for good, or records are gone.
        """
        begin = self._position if start is None else self._parse(start)
        end = self._started(begin).latest(begin, self._most(limit))
        if end is begin:
            return begin.as_json() if start is None else start
        return self._remember(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs as last seen, for the query's progress: ``{topic: {partition: end}}``."""
        report: dict[str, Any] = {}
        for tp, end in sorted(self._driver.ends().items() if self._driver else ()):
            report.setdefault(tp.topic, {})[str(tp.partition)] = end
        return report or None

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks of the batch that ends at ``end``: its ranges stand there, whatever the group says now."""
        self._prepare()
        batch = self._position = self._parse(end)
        batch.check_group(self._options.group_id)
        if start == end:
            return []
        self._replayed |= not self._running
        return self._tasks.of(batch.reads())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow record batches. Runs on an executor."""
        assert isinstance(partition, TaskPartition), partition
        yield from read_task(partition)

    @plain_errors()
    def commit(self, end: dict[str, Any]) -> None:
        """Spark has completed everything up to ``end``."""
        if self._driver is not None:
            self._driver.complete(self._parse(end))

    def stop(self) -> None:
        """Leaves the group."""
        if self._driver is not None:
            try:
                finish_leaving()
            finally:  # SIGTERM may come first, and raises SystemExit
                self._driver.close()

    def _started(self, logged: BatchOffset) -> Driver:
        """The driver's part, as a member of its group; the first call that plans a batch joins."""
        driver = self._made()
        if not self._running:
            driver.start(logged, replayed=self._replayed)
            self._running = True
            if self._available_now:
                driver.freeze_target()
            driver.await_share()
        return driver

    def _made(self) -> Driver:
        """The driver's part, made by the first call that needs it."""
        if self._driver is None:
            from spark_group_source.query.driver import Driver  # executors need nothing of the group

            self._prepare()
            self._driver = Driver(self._options, self._tasks.wire(), application_id=self._application.id)
        return self._driver

    def _prepare(self) -> None:
        """What the first call of all does: it checks the options, and makes this process a runner."""
        if self._prepared:
            return
        # Not in streamReader(): what is raised there Spark buries under an error of its own.
        check_stream(self._options)
        columns_of(self._schema)
        log_to_stderr()
        leave_on_sigterm()
        self._prepared = True

    def _parse(self, logged: dict[str, Any]) -> BatchOffset:
        # An idle query is polled a hundred times a second with the same offset.
        if logged != self._last_json:
            self._last_json, self._last = logged, BatchOffset.from_json(logged)
        return self._last

    def _remember(self, offset: BatchOffset) -> dict[str, Any]:
        self._last_json, self._last = offset.as_json(), offset
        self._position = offset
        return self._last_json

    def _most(self, limit: ReadLimit | None) -> int | None:
        if limit is None:
            return self._options.max_offsets_per_trigger
        return limit.max_rows if isinstance(limit, ReadMaxRows) else None
