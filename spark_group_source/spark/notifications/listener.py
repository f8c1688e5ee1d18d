"""Learns in the user's process which queries start and which batches Spark completes, from listeners in the JVM.

The listeners are objects of the JVM that put the id of each query that starts, and the JSON of each progress, into a
queue. The thread ``kafka-group-progress`` takes them from there. Spark would call a listener in Python on the thread of
each query that starts, and py4j keeps a thread and two sockets for each of these threads. With the queue Spark never
waits for Python; a full queue drops events, as Spark's own queue does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from typing import Any

from spark_group_source.offsets import parse_progress_offset
from spark_group_source.spark.notifications.messages import Rejection
from spark_group_source.spark.notifications.server import NotificationServer
from spark_group_source.spark.start_checks.started_queries import StartedQueries

log = logging.getLogger(__name__)

CAPACITY = 10_000
"""Maximum events that wait for this process."""

POLL_S = 10
"""Seconds between two checks whether Spark was stopped."""

DRAIN_TIMEOUT_MS = 1000
"""How long a query that ends waits until Spark has delivered its events, in milliseconds."""

LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"

ASYNCHRONOUS = "AsyncProgressTracking"
"""In the name of a query's class if its commit log may be written later than its events."""


class CompletionListener:
    """The completed batches of one Spark application."""

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
        self._started_queries = StartedQueries(self._running)
        self._thread = threading.Thread(target=self._take, name="kafka-group-progress", daemon=True)
        self._thread.start()

    def listen(self, streams: Any) -> None:
        """Adds the listeners to a session's queries, once; ``streams`` is the JVM's manager of them."""
        if streams in self._streams:
            return
        interface = self._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(LISTENER)
        for event, content in (("onQueryStarted", "id.toString"), ("onQueryProgress", "progress.json")):
            handler = self._jvm.java.beans.EventHandler.create(interface, self._queue, "offer", content, event)
            streams.addListener(self._jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(handler))
        self._streams.append(streams)

    def stopped(self) -> bool:
        """Whether Spark was stopped."""
        return bool(self._context.isStopped())

    def drain(self) -> None:
        """Returns when all batches completed so far are reported, at most after twice :data:`DRAIN_TIMEOUT_MS`."""
        with contextlib.suppress(Exception):  # its TimeoutException; what came by then is reported
            self._context.listenerBus().waitUntilEmpty(DRAIN_TIMEOUT_MS)
        self._settle()

    def rejection(self, key: str) -> Rejection | None:
        """Why the query of a reader that starts must end, by the key of its source: see :class:`StartedQueries`."""
        self._settle()  # Spark has put the query's start into the queue before it created the reader
        return self._started_queries.rejection(key)

    def _settle(self) -> None:
        """Returns when the events that are in the queue now are handled, at most after :data:`DRAIN_TIMEOUT_MS`."""
        if not self._thread.is_alive():
            return
        marker, event = uuid.uuid4().hex, threading.Event()
        self._markers[marker] = event
        if self._queue.offer(marker):
            event.wait(DRAIN_TIMEOUT_MS / 1000)
        del self._markers[marker]

    def _take(self) -> None:
        try:
            while True:
                event = self._queue.poll(POLL_S, self._jvm.java.util.concurrent.TimeUnit.SECONDS)
                if event is None:
                    if self.stopped():
                        return
                elif event in self._markers:
                    self._markers[event].set()
                elif event.startswith("{"):
                    self._try_report(event)
                else:
                    self._check_started(event)
        except Exception as error:  # the JVM is gone, or py4j's connection to it
            log.info("Spark's JVM has ended, and with it the reports of completed batches: %r", error)

    def _check_started(self, query_id: str) -> None:
        try:
            for query in self._active(query_id):
                self._started_queries.started(query)
        except Exception as error:  # Spark's plans are no public API; batches must be reported all the same
            log.debug("cannot check the sources of query %s: %s", query_id, error)

    def _running(self) -> set[str]:
        """The ids of the runs of all queries that have not ended."""
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
                "cannot report a completed batch, which is committed when Spark plans the next batch: %r", error
            )

    def _report(self, progress: dict[str, Any]) -> None:
        """Spark has completed a batch, and its commit log shows it unless the query tracks progress asynchronously."""
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


def own_ends(progress: dict[str, Any]) -> list[dict[str, Any]]:
    """The end offsets that this source has written, without those of other sources in the query."""
    ends = []
    for source in progress.get("sources", ()):
        end = parse_progress_offset(source.get("endOffset"))
        if isinstance(end, dict) and "group" in end:
            ends.append(end)
    return ends
