"""Learns in the user's process which batches Spark has completed, and reports them to readers; checks new queries.

Spark tells a reader that a batch is complete only when it plans the next one: with ``processingTime="10 minutes"`` ten
minutes later. A query listener learns this at once, after Spark has written its commit log.

The listeners are objects of the JVM that put the id of each query that starts, and the JSON of each progress, into a
queue. The thread named ``kafka-group-progress`` takes them from there. A listener in Python would be called on the
thread of each query that starts, and py4j keeps a thread and two sockets for each of these threads. Here Spark never
waits for Python, and a full queue drops events, as Spark's own queue does.

**The server.** Each reader connects (:mod:`.notification_client`). It receives a digest of the end offset of every
batch that the application completes, and recognises its own batch. The thread ``kafka-group-readers`` accepts readers
and answers their requests. ``_lock`` guards the connections; no thread waits for Kafka or Spark under it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import logging
import os
import selectors
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_group_source.group.settings import Subscription
from spark_group_source.offsets import parse_progress_offset
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.settings import SourceOptions
from spark_group_source.spark.notification_client import DRAINED, digest, remove_if_dead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

PREFIX, NAME = "kafka-group-", "notifications"
"""Names of the directory and of the socket in it."""

CLOSE_TIMEOUT = 2.0
"""Maximum seconds that the end of the process waits for the server's thread."""


class NotificationServer:
    """Reports completed batches to all connected readers.

    Only processes of this user can connect: the socket lies in a directory that is closed to others.

    Args:
        drain: returns when Spark has delivered all events so far.

    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, drain: Callable[[], None]) -> None:
        self._drain = drain
        for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{NAME}"):
            remove_if_dead(path)
        self._directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.path = str(self._directory / NAME)
        self.process = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._readers: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # It gets its name when it listens: before that, another process would take it for a dead server's.
            self._listening.bind(f"{self.path}.new")
            self._listening.listen()
            os.rename(f"{self.path}.new", self.path)
            self._listening.setblocking(False)
        except OSError:
            self._listening.close()
            self._selector.close()
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="kafka-group-readers", daemon=True)
        self._thread.start()

    def send(self, ends: list[dict[str, Any]]) -> None:
        """Reports the end offsets of a completed batch to all readers; disconnects a reader that does not read."""
        message = b"".join(digest(end) + b"\n" for end in ends)
        with self._lock:
            for reader in list(self._readers):
                self._send(reader, message)

    def close(self) -> None:
        """Delivers what Spark has still to report, then closes all connections. In a forked child it does nothing."""
        if os.getpid() != self.process:
            return
        with contextlib.suppress(Exception):  # the JVM may be gone
            self._drain()
        self._closed = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waking:
            waking.connect(self.path)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._thread.join(CLOSE_TIMEOUT)

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._answer(key.fileobj)
        with self._lock:
            for reader in list(self._readers):
                self._drop(reader)
            self._selector.close()
            self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            reader, _ = self._listening.accept()
            reader.setblocking(False)
            with self._lock:
                self._readers.add(reader)
                self._selector.register(reader, selectors.EVENT_READ)

    def _answer(self, reader: socket.socket) -> None:
        try:
            asked = reader.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            asked = b""
        if asked:
            try:
                self._drain()
            except Exception as error:  # whatever the JVM says: the reader must not wait for longer
                log.debug("Spark's events could not be waited for: %s", error)
        with self._lock:
            if asked:
                self._send(reader, DRAINED)
            else:
                self._drop(reader)

    def _send(self, reader: socket.socket, message: bytes) -> None:
        if reader not in self._readers:
            return
        try:
            if reader.send(message) == len(message):
                return
        except OSError as error:
            log.debug("a reader cannot be reached any more: %s", error)
        self._drop(reader)

    def _drop(self, reader: socket.socket) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
            self._selector.unregister(reader)
            reader.close()


SOURCE = "kafka-group"


def warn_of_shared_sources(query: Any) -> None:
    """Warns if sources of a query share a group. ``query`` is the JVM's ``StreamingQuery``."""
    leaves = query.streamingQuery().analyzedPlan().collectLeaves().distinct()  # Spark creates a source for each
    sources = [
        leaf
        for leaf in (leaves.apply(number) for number in range(leaves.size()))
        if leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName().lower() == SOURCE
    ]
    if len(sources) < 2:  # most queries: their options need not be parsed here
        return
    options = [parse_options(dict(source.extraOptions().asCaseSensitiveMap())) for source in sources]
    for group_id, sharing in shared(options).items():
        log.warning(
            "group %s: %d sources of the query %s share this group: each reads only some of the partitions of %s, and a"
            " join misses rows. Use one load() for each source, each with its own kafka.group.id.",
            group_id,
            len(sharing),
            query.name() or query.id().toString(),
            sharing[0].group.subscription,
        )


def shared(sources: Iterable[SourceOptions]) -> Mapping[str, list[SourceOptions]]:
    """The sources that share partitions with another source, by group."""
    found: dict[str, list[SourceOptions]] = {}
    for pair in itertools.combinations(sources, 2):
        if _share(*pair):
            sharing = found.setdefault(pair[0].group.group_id, [])
            sharing += [source for source in pair if not any(source is other for other in sharing)]
    return found


def _share(one: SourceOptions, other: SourceOptions) -> bool:
    same_cluster = not set(one.wire.bootstrap_servers).isdisjoint(other.wire.bootstrap_servers)
    first, second = one.group.subscription, other.group.subscription
    members = not (first.partitions or second.partitions)  # assign needs no membership
    same_group = one.group.group_id == other.group.group_id
    return same_group and same_cluster and members and _overlap(first, second)


def _overlap(one: Subscription, other: Subscription) -> bool:
    """Whether both surely have a topic. Without a broker nothing is known of two different patterns."""
    if one.pattern is not None and other.pattern is not None:
        return one.pattern == other.pattern
    named, by_any = (one, other) if one.pattern is None else (other, one)
    return any(by_any.matches(topic) for topic in named.topics)


CAPACITY = 10_000
"""Maximum events that wait for this process."""

POLL_S = 10
"""Seconds after which the thread looks whether Spark was stopped."""

DRAIN_TIMEOUT_MS = 1000
"""Maximum milliseconds until Spark has delivered its events, for a query that ends."""

LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"

ASYNCHRONOUS = "AsyncProgressTracking"
"""In the name of a query's class if its commit log may be written later than its events."""


class CompletionListener:
    """The completed batches of one Spark application."""

    def __init__(self, server: NotificationServer, context: Any, jvm: Any) -> None:
        """``context`` is the JVM's ``SparkContext``, ``jvm`` py4j's view of the JVM."""
        self._server = server
        self._context = context
        self._jvm = jvm
        self._queue = jvm.java.util.concurrent.LinkedBlockingQueue(CAPACITY)
        self._streams: list[Any] = []
        self._asynchronous: dict[str, bool] = {}
        self._markers: dict[str, threading.Event] = {}
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
            log.info("reports of completed batches end with Spark's JVM: %r", error)

    def _check_started(self, query_id: str) -> None:
        try:
            for query in self._active(query_id):
                warn_of_shared_sources(query)
        except Exception as error:  # Spark's plans are no public API; batches must be reported all the same
            log.debug("the sources of query %s are unknown: %s", query_id, error)

    def _active(self, query_id: str) -> list[Any]:
        """The JVM's query, unless it has ended."""
        return [query for streams in self._streams if (query := streams.get(query_id)) is not None]

    def _try_report(self, event: str) -> None:
        try:
            self._report(json.loads(event))
        except Exception as error:  # one query's progress must not end the reports of the others
            log.warning("a completed batch is not reported, and is committed when the next one is planned: %r", error)

    def _report(self, progress: dict[str, Any]) -> None:
        """Spark has completed a batch, and its commit log shows it unless the query tracks progress asynchronously."""
        ends = [end for source in progress.get("sources", ()) if (end := own_offset(source.get("endOffset")))]
        if ends and not self._is_asynchronous(progress):
            self._server.send(ends)

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


def own_offset(offset: object) -> dict[str, Any] | None:
    """An end offset as this source writes it; ``None`` for those of other sources."""
    parsed = parse_progress_offset(offset)
    return parsed if isinstance(parsed, dict) and "group" in parsed else None


_lock = threading.Lock()
_servers: list[NotificationServer] = []
_listeners: list[CompletionListener] = []
"""The server of this process and the listener of its application, made by the first session. Guarded by ``_lock``."""


def report_completed_batches(spark: SparkSession) -> str:
    """Has completed batches of this session's queries reported; returns the path of the socket for its readers.

    Returns an empty string if there is no way: under Spark Connect, whose server runs elsewhere, and on systems without
    Unix sockets. Then a batch is committed when Spark plans the next one.
    """
    try:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is None or not hasattr(socket, "AF_UNIX"):
            return ""
        streams = spark._jsparkSession.streams()
        with _lock:
            server = _server()
            if not _listeners or _listeners[-1].stopped():
                _listeners[:] = [CompletionListener(server, spark.sparkContext._jsc.sc(), gateway.jvm)]
            _listeners[-1].listen(streams)
        return server.path
    except Exception as error:  # other kinds of sessions and JVMs lack some of this, and a query works without
        log.info("completed batches are not reported, as this session offers no listener: %r", error)
        return ""


def _server() -> NotificationServer:
    if _servers and _servers[-1].process != os.getpid():
        _servers.clear()  # a forked child's: the parent has the threads
        _listeners.clear()
    if not _servers:
        _servers.append(NotificationServer(_drain))
        atexit.register(_servers[-1].close)
    return _servers[-1]


def _drain() -> None:
    for listener in _listeners:
        listener.drain()
