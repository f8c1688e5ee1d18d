"""Spark's entry point for streaming: the reader of one query.

Spark creates the reader in two processes. It makes all calls except ``read`` in the stream runner, where the group
member runs too. The planner's copy is only pickled to the executors, for ``read``. The constructor therefore starts
nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from dataclasses import asdict, dataclass
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError, OptionError, RetriableError
from spark_group_source.offsets import MAX_OFFSET, BatchOffset, latest_offset_json
from spark_group_source.options.source_options import SourceOptions, check_stream
from spark_group_source.spark.application import WRAPPER, Application
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.jvm_process import JvmProcess
from spark_group_source.spark.notifications.client import Listener, NotificationClient, ServerAddress
from spark_group_source.spark.notifications.messages import ALL, digest, source_key
from spark_group_source.spark.runner import ignore_further_signals, leave_now, leave_when_told
from spark_group_source.spark.runner_log import log_to_stderr
from spark_group_source.spark.schema import to_arrow_schema
from spark_group_source.spark.tasks import PartitionReader, TaskPlanner
from spark_group_source.text import some

if TYPE_CHECKING:
    from spark_group_source.query.driver import Driver

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # PySpark 4.1 has no admission control: Spark then calls latestOffset() without arguments.
    ReadAllAvailable = ReadLimit = ReadMaxBytes = ReadMaxRows = None  # type: ignore[assignment, misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces the class of PySpark 4.2."""


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedOffset:
    """The offset of a batch, with its JSON as Spark logs it."""

    json: dict[str, Any]
    offset: BatchOffset

    @classmethod
    def of(cls, offset: BatchOffset) -> LoggedOffset:
        """A planned offset."""
        return cls(offset.as_json(), offset)

    @cached_property
    def digest(self) -> bytes:
        """The digest that identifies the batch in notifications of completed batches."""
        return digest(self.json)


class Life(Enum):
    """The life of a reader in the stream runner.

    NEW ──▶ STARTING ──────────────▶ JOINED ──▶ FAILED
               └──▶ REPLAYING ─────────┘  each of these ──▶ ENDED
    """

    NEW = auto()
    """Spark has made no call yet."""
    STARTING = auto()
    """The options are checked. Spark's next call shows whether a batch is logged."""
    REPLAYING = auto()
    """Spark runs the last logged batch again. The query joins the group when the batch is complete, or at the next
    ``latestOffset``."""
    JOINED = auto()
    """The query is a member of its group."""
    FAILED = auto()
    """A batch could not be committed when its completion was reported. The next ``latestOffset`` raises the error."""
    ENDED = auto()


STOP_TIMEOUT = 20.0
"""Maximum seconds for the end of a query. Spark waits for it without a limit, but the driver itself may have a grace
period: 30 s in Kubernetes."""

LOCK_TIMEOUT = 10.0
"""Maximum seconds of :data:`STOP_TIMEOUT` that ``stop()`` waits for a call that joins the group or commits a batch."""


class GroupStreamReader(PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        application: Application,
        notifications: ServerAddress = ServerAddress(),  # noqa: B008 - a constant
    ) -> None:
        """``notifications`` is the socket on which the user's process reports completed batches."""
        self._schema = schema
        self._application = application
        self._task_planner = TaskPlanner(options, schema, application, uuid.uuid4().hex)
        self._options = self._task_planner.options
        self._driver: Driver | None = None
        self._available_now = False
        self._last_parsed = LoggedOffset.of(BatchOffset())
        self._notification_server = notifications
        self._notifications: NotificationClient | None = None
        # Spark's calls come on the main thread, notifications on a thread of their own.
        self._lock = threading.RLock()
        self._life = Life.NEW
        # latestOffset() raises this error: the reader failed, or the starts of a new query are unknown.
        self._error: Exception | None = None
        # The end of the batch in flight, or of the last one. PySpark 4.1 does not pass it to latestOffset().
        self._position = self._last_parsed
        # The digest of the last completed batch that the user's process has reported.
        self._reported = b""
        self._jvm: JvmProcess | None = None
        # Whether the user's process has notified this reader that the application ends.
        self._application_ends = False

    def prepareForTriggerAvailableNow(self) -> None:
        """Makes the run end at the offsets that are the latest when the run begins."""
        self._available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger`` or ``maxBytesPerTrigger``, or no limit. A batch ends at the lowest of all limits.

        With ``targetBatchDuration`` alone, the limit is the largest number of rows, because :class:`ReadAllAvailable`
        would not differ from the limit that Spark passes for the trigger ``once``.
        """
        max_offsets = self._options.max_offsets_per_trigger
        if max_offsets is not None:
            return ReadMaxRows(max_offsets)
        max_bytes = self._options.max_bytes_per_trigger
        if max_bytes is not None:
            return ReadMaxBytes(max_bytes)
        if self._options.target_batch_duration is not None:
            return ReadMaxRows(MAX_OFFSET)
        return ReadAllAvailable()

    @hide_tracebacks()
    def initialOffset(self) -> dict[str, Any]:
        """The empty offset. Partitions get their start positions when this query owns them.

        This looks up the offsets that ``latest`` means, and does not join the group. Spark also calls this if the first
        batch is logged already, and only its next call shows whether the query is new or continues. An error of the
        lookup is therefore raised in ``latestOffset``, so that a logged batch is repeated even if another topic cannot
        be looked up.

        Raises:
            OptionError: an option that streams need is missing, or an option is not allowed in a stream.
        """
        if self._driver is None:
            driver = self._get_driver()
            try:
                driver.pin_starts()
            except GroupSourceError as error:
                self._error = error
        return BatchOffset().as_json()

    @hide_tracebacks()
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next batch, or ``start`` unchanged. ``start`` is the end of the last completed batch.

        Raises:
            GroupSourceError: the group rejects this member permanently, or records are lost.
        """
        with self._lock:
            return self._latest_offset(start, limit)

    def _latest_offset(self, start: dict[str, Any] | None, limit: ReadLimit | None) -> dict[str, Any]:
        if self._life is Life.FAILED and self._error is not None:
            raise self._error
        begin = self._position
        if start is not None:
            begin = self._parse(start)
        driver = self._joined_driver(begin.offset)
        if self._has_no_target(limit):
            end = driver.plan_all_available(begin.offset)
        else:
            end = driver.plan_batch(begin.offset, self._max_offsets(limit), self._max_bytes(limit))
        has_nothing_to_read = end is begin.offset
        if has_nothing_to_read:
            return begin.json
        self._last_parsed = self._position = LoggedOffset.of(end)
        return self._position.json

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The last known end offsets and the counters, for the query's progress: see ``offsets.py``."""
        if self._driver is None:
            return None
        limit = None
        if self._has_limit():
            limit = self._driver.batch_limit()
        return latest_offset_json(self._driver.end_offsets(), asdict(self._driver.counters), limit)

    @hide_tracebacks()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Tasks of the batch that ends at ``end``. They depend on ``end`` alone, not on the group's current state."""
        self._prepare()
        with self._lock:
            self._position = self._parse(end)
        batch = self._position.offset
        batch.check_group(self._options.group.group_id)
        if start == end:
            return []
        if self._life is Life.STARTING:
            self._life = Life.REPLAYING
            self._log_replay(batch)
        if self._life is not Life.JOINED or self._driver is None:
            return self._task_planner.plan(batch.reads(), batch.cluster)
        with self._lock:
            return self._task_planner.plan(batch.reads(), batch.cluster, self._driver.leaders_of)

    def _log_replay(self, batch: BatchOffset) -> None:
        """Logs the batch that Spark repeats. Until it is completed, the group does not see this query."""
        log.info(
            "group %s: repeats the last batch in the checkpoint, which no earlier run has completed: %s. The query"
            " joins the group when Spark has completed this batch.",
            self._options.group.group_id,
            some([str(read) for read in batch.reads()]),
        )

    @hide_tracebacks()
    def commit(self, end: dict[str, Any]) -> None:
        """Commits the batch that ends at ``end``, which Spark has completed."""
        with self._lock:
            if self._driver is not None:
                self._driver.complete(self._parse(end).offset)

    def _batch_completed(self, reported: bytes) -> None:
        """Commits the batch in flight if it is the completed batch that the user's process has ``reported``.

        To commit a batch that Spark repeated at the start, the query joins the group. This runs on the thread of the
        notifications. If brokers are unavailable, the next planning tries again. Any other error ends the query at the
        next planning.

        While another call of Spark runs, this method does not wait, because the reports of all queries would queue up.
        Spark's next call then completes the batch: ``latestOffset``, ``commit`` or ``stop``.
        """
        if self._position.digest != reported:
            return
        self._reported = reported
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._in_flight() and self._position.digest == reported:
                self._joined_driver(self._position.offset).complete(self._position.offset)
        except RetriableError as error:
            log.warning(
                "group %s: cannot commit the completed batch, next try when Spark plans the next batch: %s",
                self._options.group.group_id,
                error,
            )
        except Exception as error:  # of any kind, because otherwise only this thread would end
            self._life, self._error = Life.FAILED, error
        finally:
            self._lock.release()

    def _end_with_application(self) -> None:
        """Leaves the group, because the user's process or the JVM ends."""
        self._application_ends = True
        leave_now()

    def _query_stopped(self, last_batch: bytes) -> None:
        """Leaves the group if this query was stopped: ``last_batch`` is then the digest of its own last batch, or
        :data:`.messages.ALL`."""
        if last_batch in (ALL, self._position.digest):
            log.info(
                "group %s: the query was stopped, but Spark has not ended it yet: leaving the group",
                self._options.group.group_id,
            )
            leave_now()

    def stop(self) -> None:
        """Commits the completed batches, and leaves the group, within :data:`STOP_TIMEOUT`."""
        deadline = Deadline.after(STOP_TIMEOUT)
        try:
            if self._life is not Life.NEW:
                ignore_further_signals()
                if self._notifications is not None and self._in_flight():
                    self._notifications.drain()
        finally:  # SIGTERM may raise SystemExit in the lines above
            self._life = Life.ENDED
            try:
                if self._driver is not None:
                    self._close(self._driver, deadline)
            finally:
                if self._notifications is not None:
                    self._notifications.close()
                self._await_end_of_jvm()

    def _stop_at_exit(self) -> None:
        """Leaves the group if a signal came before the first line of :meth:`stop`."""
        if self._life is not Life.ENDED:
            self.stop()

    def _await_end_of_jvm(self) -> None:
        """Waits for the end of a JVM that shuts down. If this process ended first, the query would fail."""
        if self._jvm is not None and (self._application_ends or self._jvm.has_begun_shutdown()):
            self._jvm.await_end()

    def _in_flight(self) -> bool:
        """Whether the last batch may still be running, as far as the source knows."""
        if self._life is Life.JOINED and self._driver is not None:
            return self._driver.batch_in_flight
        return self._life is Life.REPLAYING

    def _close(self, driver: Driver, deadline: Deadline) -> None:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT):
            log.warning(
                "group %s: the query ends before the coordinator has answered a join or a commit",
                self._options.group.group_id,
            )
            driver.leave()
            return
        try:
            driver.close(deadline, self._reported_batch(driver))
        finally:
            self._lock.release()

    def _reported_batch(self, driver: Driver) -> BatchOffset | None:
        """The batch in flight if the user's process has reported its completion; ``None`` otherwise.

        :meth:`_batch_completed` does not commit a batch while another call holds the lock.
        """
        if driver.batch_in_flight and self._position.digest == self._reported:
            return self._position.offset
        return None

    def _joined_driver(self, logged: BatchOffset) -> Driver:
        """The query's driver as a member of its group: the first call joins."""
        driver = self._get_driver()
        if self._life is not Life.JOINED:
            if self._error is not None and logged.is_empty:
                raise self._error
            driver.start(logged, replayed=self._life is Life.REPLAYING)
            self._life = Life.JOINED
            if self._available_now:
                driver.prepare_for_available_now()
            driver.await_assignment()
        return driver

    def _get_driver(self) -> Driver:
        """The query's driver; the first call creates it."""
        if self._driver is None:
            from spark_group_source.query.driver import Driver  # executors must not import the group's modules

            self._prepare()
            self._driver = Driver(
                self._options,
                application_id=self._application.id,
                looks_for_other_members=self._notifications is None,  # otherwise the user's process has done so
            )
        return self._driver

    def _connect(self) -> None:
        """Connects to the user's process. Without this connection, the source learns that a batch is complete when
        Spark plans the next one."""
        group = self._options.group.group_id
        server = self._notification_server
        why_not = server.missing
        if server.path:
            try:
                listener = Listener(self._batch_completed, self._end_with_application, self._query_stopped)
                self._notifications = NotificationClient(server.path, listener, self._application.id)
            except OSError as error:
                why_not = str(error)
        if self._notifications is None:
            log.info("group %s: commits each batch when Spark plans the next one: %s", group, why_not)
        else:
            log.info("group %s: commits each batch when Spark has completed it", group)

    def _check_plan(self) -> None:
        """Asks the user's process, which sees the query's plan, whether the query would miss rows.

        Raises:
            OptionError: sources of this query share a group.
        """
        if self._notifications is not None:
            rejection = self._notifications.rejection(source_key(self._options))
            if rejection is not None:
                raise OptionError(rejection.happened, rejection.action)

    def _prepare(self) -> None:
        """Checks the options and sets up this process, in the first call from Spark."""
        if self._life is not Life.NEW:
            return
        # Not in streamReader(): Spark hides its exceptions behind an error of its own.
        check_stream(self._options)
        if self._application.wraps_available_now and ReadLimit is None:
            # Spark's wrapper asks twice for the end of a run before it passes the checkpoint's offset, as if a batch
            # had been read between the two calls. Unread batches would therefore be committed.
            raise OptionError(
                f"Spark's setting '{WRAPPER}' is true, which loses records on PySpark 4.1.",
                "Set it to false and register the source again, or use PySpark 4.2 or later.",
            )
        to_arrow_schema(self._schema)
        log_to_stderr()
        self._jvm = JvmProcess(os.getppid())
        leave_when_told(self._jvm, self._stop_at_exit)
        self._connect()
        self._check_plan()
        self._life = Life.STARTING

    def _parse(self, logged: dict[str, Any]) -> LoggedOffset:
        # Spark polls an idle query a hundred times a second with the same offset.
        if logged != self._last_parsed.json:
            self._last_parsed = LoggedOffset(logged, BatchOffset.from_json(logged))
        return self._last_parsed

    def _has_no_target(self, limit: ReadLimit | None) -> bool:
        """Whether ``targetBatchDuration`` is set but does not apply, because the trigger is ``once``."""
        if self._options.target_batch_duration is None or limit is None:
            return False
        return isinstance(limit, ReadAllAvailable)

    def _has_limit(self) -> bool:
        """Whether an option limits batches."""
        options = self._options
        limits = (options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.target_batch_duration)
        return limits != (None, None, None)

    def _max_offsets(self, limit: ReadLimit | None) -> int | None:
        if limit is None:
            return self._options.max_offsets_per_trigger
        if not isinstance(limit, ReadMaxRows):
            return None
        if limit.max_rows == MAX_OFFSET:
            return None
        return int(limit.max_rows)

    def _max_bytes(self, limit: ReadLimit | None) -> int | None:
        if limit is not None and isinstance(limit, ReadAllAvailable):
            return None
        return self._options.max_bytes_per_trigger
