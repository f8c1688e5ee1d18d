"""Receives in the user's process, from listeners in the JVM, which queries start and which batches Spark completes.

The listeners are objects of the JVM that put the id of each query that starts, and the JSON of each progress, into a
queue. The thread ``kafka-group-progress`` takes them from the queue. Spark would call a listener in Python on the
thread of each query that starts, and py4j keeps a thread and two sockets for each such thread. With the queue, Spark
never waits for Python. A full queue drops events, as Spark's own queue does.

The same thread looks for queries that were stopped but are held by a function of the user, because no event reports
them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from typing import Any

from spark_group_source.clock import monotonic
from spark_group_source.offsets import parse_progress_offset
from spark_group_source.spark.notifications.messages import Rejection
from spark_group_source.spark.notifications.server import LEAVE_TIMEOUT, NotificationServer
from spark_group_source.spark.notifications.shutdown_hooks import JVM_ENDS, ShutdownHooks
from spark_group_source.spark.start_checks.started_queries import StartedQueries

log = logging.getLogger(__name__)

CAPACITY = 10_000
"""Maximum number of events in the queue."""

CHECK_MS, IDLE_CHECK_MS, PENDING_CHECK_MS = 750, 10_000, 250
"""Milliseconds between two checks whether Spark or a query was stopped: while there are readers, while there are none,
and while a query that was stopped has not ended."""

MAX_SHARE = 0.05
"""Maximum fraction of its time that the thread asks Spark which queries were stopped. The answer takes about a
millisecond for each query."""

STOPPED_CHECK_MS = 50
"""Milliseconds between two checks whether the readers of a stopped Spark have left."""

STOP_GRACE = 0.5
"""How long a stopped query has to end, in seconds. If a function of the user holds it for longer, its reader leaves the
group. A batch that the function completes later is in the checkpoint, but not committed."""

WAKE = "there are readers"
"""An event that only ends the wait for the next event."""

DRAIN_TIMEOUT_MS = 1000
"""How long an ending query waits until Spark has delivered its events, in milliseconds."""

LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"

ASYNCHRONOUS = "AsyncProgressTracking"
"""Part of the class name of a query whose commit log may be written later than its events."""


class CompletionListener:
    """Reports the completed batches of one Spark application, and checks its queries when they start."""

    def __init__(self, server: NotificationServer | None, context: Any, jvm: Any) -> None:
        """``context`` is the JVM's ``SparkContext``, ``jvm`` py4j's view of the JVM.

        Without a server the listener only checks the queries that start.
        """
        self.server = server
        self._context = context
        self._jvm = jvm
        self._queue = jvm.java.util.concurrent.LinkedBlockingQueue(CAPACITY)
        self._streams: list[Any] = []
        self._asynchronous: dict[str, bool] = {}
        self._markers: dict[str, threading.Event] = {}
        self._started_queries = StartedQueries(self._running, jvm)
        self._shutdown_hooks = ShutdownHooks(jvm, self._queue)
        self.attended = False
        """Whether there are readers."""
        # When a query was first seen that was stopped and has not ended, by the id of its run.
        self._stopped_at: dict[str, float] = {}
        self._checked_at = self._rests_until = monotonic()
        self._thread = threading.Thread(target=self._take, name="kafka-group-progress", daemon=True)
        self._thread.start()

    def listen(self, streams: Any) -> None:
        """Adds the listeners to a session's queries, once. ``streams`` is the JVM's manager of these queries."""
        if streams in self._streams:
            return
        interface = self._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(LISTENER)
        for event, content in (("onQueryStarted", "id.toString"), ("onQueryProgress", "progress.json")):
            handler = self._jvm.java.beans.EventHandler.create(interface, self._queue, "offer", content, event)
            streams.addListener(self._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(handler))
        self._streams.append(streams)

    def attend(self, attended: bool) -> None:
        """Notes whether there are readers from now on."""
        self.attended = attended
        if attended:
            self._shutdown_hooks.add()
            self._queue.offer(WAKE)
        else:
            self._shutdown_hooks.remove()

    def hand_over(self) -> None:
        """Leaves the shutdown of the JVM to the listener of the next application.

        This one still ends the queries of its own application: it may not have seen yet that Spark was stopped.
        """
        with contextlib.suppress(Exception):  # the JVM may be gone
            self._shutdown_hooks.remove()

    def stopped(self) -> bool:
        """Whether the application's ``SparkContext`` was stopped."""
        return bool(self._context.isStopped())

    def drain(self) -> None:
        """Returns when all batches completed so far are reported, at most after twice :data:`DRAIN_TIMEOUT_MS`."""
        with contextlib.suppress(Exception):  # a TimeoutException: the events delivered by then are reported
            self._context.listenerBus().waitUntilEmpty(DRAIN_TIMEOUT_MS)
        self._settle()

    def rejection(self, key: str) -> Rejection | None:
        """Why the query of a starting reader must end, by the key of its source: see :class:`StartedQueries`."""
        self._settle()  # Spark has put the query's start into the queue before it created the reader
        return self._started_queries.rejection(key)

    def _settle(self) -> None:
        """Returns when the events that are already in the queue are handled, at most after :data:`DRAIN_TIMEOUT_MS`."""
        if not self._thread.is_alive():
            return
        marker, event = uuid.uuid4().hex, threading.Event()
        self._markers[marker] = event
        if self._queue.offer(marker):
            event.wait(DRAIN_TIMEOUT_MS / 1000)
        del self._markers[marker]

    def _take(self) -> None:
        milliseconds = self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        try:
            while True:
                interval = self._check_interval()
                event = self._queue.poll(interval, milliseconds)
                if event is not None:
                    self._handle(event)
                elif self.stopped():
                    self._end_all_queries()
                    return
                if self.attended and self._check_is_due(event, interval):
                    self._end_stopped_queries()
        except Exception as error:  # the JVM is gone, or py4j's connection to it
            log.info(
                "this process reports no more completed batches, because Spark's JVM or the connection to it has ended:"
                " %r",
                error,
            )

    def _check_is_due(self, event: str | None, interval: int) -> bool:
        has_waited = event is None or monotonic() >= self._checked_at + interval / 1000
        return has_waited and monotonic() >= self._rests_until

    def _check_interval(self) -> int:
        if self._stopped_at:
            return PENDING_CHECK_MS
        if self.attended:
            return CHECK_MS
        return IDLE_CHECK_MS

    def _handle(self, event: str) -> None:
        marker = self._markers.get(event)  # another thread may take it away at any time
        if marker is not None:
            marker.set()
        elif event == JVM_ENDS:
            if self.server is not None:
                self.server.end_application()
        elif event.startswith("{"):
            self._try_report(event)
        elif event != WAKE:
            self._check_started(event)

    def _end_stopped_queries(self) -> None:
        """Notifies the readers of queries that were stopped at least :data:`STOP_GRACE` seconds ago and have not
        ended."""
        self._checked_at = now = monotonic()
        stopped_at = {}
        for streams in self._streams:
            for query in streams.active():
                if query.isActive():
                    continue
                run = query.runId().toString()
                stopped_at[run] = self._stopped_at.get(run, now)
                if now >= stopped_at[run] + STOP_GRACE:
                    self._end_query(query)
        self._stopped_at = stopped_at
        took = monotonic() - now
        self._rests_until = monotonic() + took / MAX_SHARE

    def _end_query(self, query: Any) -> None:
        try:
            ends = planned_ends(query.streamingQuery().availableOffsets())
        except Exception as error:  # Spark's offsets are no public API
            log.debug("cannot notify the readers that their query was stopped: %s", error)
            return
        if self.server is not None and ends:
            self.server.end_query(ends)

    def _end_all_queries(self) -> None:
        """Ends the queries of a stopped ``SparkContext``, which would otherwise continue, and notifies the readers of
        queries that a function of the user holds."""
        server = self.server
        if server is None or not self.attended:
            return
        for streams in self._streams:
            for query in streams.active():
                threading.Thread(target=_stop, args=(query,), name="kafka-group-stop", daemon=True).start()
        self._handle_until_left(server, STOP_GRACE)
        server.end_queries(self._context.applicationId())
        self._handle_until_left(server, LEAVE_TIMEOUT)

    def _handle_until_left(self, server: NotificationServer, seconds: float) -> None:
        """Handles events until there are no readers, for at most ``seconds``: Spark may report a batch after it was
        stopped."""
        milliseconds = self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
        deadline = monotonic() + seconds
        while server.attended and monotonic() < deadline:
            event = self._queue.poll(STOPPED_CHECK_MS, milliseconds)
            if event is not None:
                self._handle(event)

    def _check_started(self, query_id: str) -> None:
        try:
            for query in self._active(query_id):
                self._started_queries.started(query)
        except Exception as error:  # Spark's plans are no public API; batches must be reported all the same
            log.debug("cannot check the sources of query %s: %s", query_id, error)

    def _running(self) -> set[str]:
        """The run ids of all queries that have not ended."""
        runs = set()
        for streams in self._streams:
            for query in streams.active():
                runs.add(query.runId().toString())
        return runs

    def _active(self, query_id: str) -> list[Any]:
        """The JVM's query, unless it has ended."""
        found = []
        for streams in self._streams:
            query = streams.get(query_id)
            if query is not None:
                found.append(query)
        return found

    def _try_report(self, event: str) -> None:
        try:
            self._report(json.loads(event))
        except Exception as error:  # one query's progress must not end the reports of the others
            log.warning(
                "cannot report a completed batch; the query commits this batch when Spark plans the next: %r", error
            )

    def _report(self, progress: dict[str, Any]) -> None:
        """Reports a batch that Spark has completed. Its commit log has the batch, unless the query tracks progress
        asynchronously."""
        self._started_queries.has_progress(progress.get("runId", ""))
        ends = own_ends(progress)
        if self.server is None or not ends:
            return
        if not self._is_asynchronous(progress):
            self.server.send(ends)

    def _is_asynchronous(self, progress: dict[str, Any]) -> bool:
        run = progress["runId"]
        if run not in self._asynchronous:
            found = self._active(progress["id"])
            if not found:
                # It has ended. Spark tracks progress asynchronously only into its Kafka sink.
                return "kafka" in progress.get("sink", {}).get("description", "").lower()
            if len(self._asynchronous) >= CAPACITY:
                self._asynchronous.clear()
            self._asynchronous[run] = ASYNCHRONOUS in found[0].streamingQuery().getClass().getSimpleName()
        return self._asynchronous[run]


def planned_ends(available: Any) -> list[dict[str, Any]]:
    """The end offsets of this source among the available offsets of a query, Spark's ``StreamProgress``."""
    ends = []
    offsets = available.values().iterator()
    while offsets.hasNext():
        end = parse_progress_offset(offsets.next().json())
        if isinstance(end, dict) and "group" in end:
            ends.append(end)
    return ends


def _stop(query: Any) -> None:
    """Makes a query end before its next batch.

    A stopped Spark notes that the query must end, but rejects the call before it interrupts the query. A query that is
    not interrupted waits for its reader, and fails when the reader leaves.
    """
    try:
        query.stop()
    except Exception:
        with contextlib.suppress(Exception):  # the query's thread is no public API
            query.streamingQuery().queryExecutionThread().interrupt()


def own_ends(progress: dict[str, Any]) -> list[dict[str, Any]]:
    """The end offsets that this source has written, without those of other sources in the query."""
    ends = []
    for source in progress.get("sources", ()):
        end = parse_progress_offset(source.get("endOffset"))
        if isinstance(end, dict) and "group" in end:
            ends.append(end)
    return ends
