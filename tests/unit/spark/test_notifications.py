"""Completed batches are reported from the user's process to readers: a real socket, without Spark."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_group_source.spark import notification_client, notifications
from spark_group_source.spark.notification_client import NotificationClient, digest
from spark_group_source.spark.notifications import CompletionListener, NotificationServer
from tests.waiting import eventually

END = {"group": "g", "version": 2, "ranges": {"t": {"0": [0, 5]}}}
Connect = Callable[[], tuple[NotificationClient, list[bytes]]]


@pytest.fixture
def server() -> Iterator[NotificationServer]:
    running = NotificationServer(lambda: None)
    yield running
    running.close()


@pytest.fixture
def connect(server: NotificationServer) -> Iterator[Connect]:
    """Connects a reader; returns it with what it hears."""
    clients: list[NotificationClient] = []

    def one() -> tuple[NotificationClient, list[bytes]]:
        heard: list[bytes] = []
        clients.append(NotificationClient(server.path, heard.append))
        clients[-1].drain()  # the server knows this reader
        return clients[-1], heard

    yield one
    for client in clients:
        client.close()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of sockets. Not tmp_path: the name of a Unix socket may have 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


class Jvm:
    """The parts of py4j's view of the JVM that a listener uses; ``offer`` is Spark reporting a progress."""

    def __init__(self, execution: str | None = "MicroBatchExecution") -> None:
        self.queue: queue.Queue[str] = queue.Queue(notifications.CAPACITY)
        self.stopped = threading.Event()
        waiting = SimpleNamespace(offer=self.offer, poll=self._poll)
        util = SimpleNamespace(LinkedBlockingQueue=lambda _: waiting, TimeUnit=SimpleNamespace(SECONDS=1))
        self.java = SimpleNamespace(util=SimpleNamespace(concurrent=util))
        kind = SimpleNamespace(getSimpleName=lambda: execution)
        query = SimpleNamespace(streamingQuery=lambda: SimpleNamespace(getClass=lambda: kind))
        self.streams = SimpleNamespace(get=lambda _: query if execution else None)
        bus = SimpleNamespace(waitUntilEmpty=lambda _: None)
        self.context = SimpleNamespace(isStopped=self.stopped.is_set, listenerBus=lambda: bus)

    def offer(self, event: str) -> bool:
        self.queue.put(event)
        return True

    def _poll(self, seconds: int, unit: int) -> str | None:
        try:
            return self.queue.get(timeout=0.2)
        except queue.Empty:
            return None

    def complete(self, *ends: object, sink: str = "noop") -> None:
        sources = [{"endOffset": end} for end in ends]
        self.offer(json.dumps({"id": "query", "runId": "run", "sources": sources, "sink": {"description": sink}}))


Listen = Callable[..., tuple[CompletionListener, Jvm]]


@pytest.fixture
def listen(server: NotificationServer) -> Iterator[Listen]:
    """Makes a listener of a JVM that has one query."""
    running: list[Jvm] = []

    def one(execution: str | None = "MicroBatchExecution") -> tuple[CompletionListener, Jvm]:
        running.append(Jvm(execution))
        listener = CompletionListener(server, running[-1].context, running[-1])
        listener._streams.append(running[-1].streams)
        return listener, running[-1]

    yield one
    for jvm in running:
        jvm.stopped.set()


def test_every_reader_hears_of_every_completed_batch_of_this_source(listen: Listen, connect: Connect) -> None:
    heard = [connect()[1] for _ in range(3)]
    other = {**END, "group": "other"}
    listen()[1].complete(END, "not JSON", None, 17, {"t": {"0": 5}}, json.dumps(other))
    eventually(lambda: all(len(each) == 2 for each in heard))
    assert heard == [[digest(END), digest(other)]] * 3


@pytest.mark.parametrize("event", ["{", '{"sources": 5}', json.dumps({"sources": [{"endOffset": END}]})])
def test_an_unexpected_progress_of_one_query_does_not_end_the_reports_of_others(
    listen: Listen, connect: Connect, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    _, heard = connect()
    _, jvm = listen()
    jvm.offer(event)
    jvm.complete(END)
    eventually(lambda: heard == [digest(END)])
    assert "a completed batch is not reported" in caplog.text


def test_events_that_came_before_spark_stopped_are_reported(server: NotificationServer, connect: Connect) -> None:
    _, heard = connect()
    jvm = Jvm(None)
    jvm.stopped.set()
    jvm.complete(END)
    CompletionListener(server, jvm.context, jvm)
    eventually(lambda: heard == [digest(END)])


def test_the_socket_of_a_suspended_process_delays_no_new_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notification_client, "PROBE_TIMEOUT", 0.1)
    path = place / f"{notifications.PREFIX}other" / notifications.NAME
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as suspended, socket.socket(socket.AF_UNIX) as waiting:
        suspended.bind(str(path))
        suspended.listen(0)
        waiting.connect(str(path))  # the backlog is full
        started = threading.Thread(target=lambda: NotificationServer(lambda: None).close(), daemon=True)
        started.start()
        started.join(10)
        assert not started.is_alive()
        assert path.exists(), "the process may continue"


def test_equal_offsets_have_equal_digests_and_others_have_not() -> None:
    assert digest(END) == digest(dict(reversed(END.items())))
    assert digest(END) != digest({**END, "ranges": {"t": {"0": [0, 6]}}})


def test_the_sources_of_a_query_are_checked_when_it_starts_and_an_error_there_stops_no_reports(
    listen: Listen, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []

    def check(query: object) -> None:
        checked.append(query)
        raise AttributeError("another Spark has another plan")

    monkeypatch.setattr(notifications, "warn_of_shared_sources", check)
    _, heard = connect()
    listener, jvm = listen()
    jvm.offer("0b0a0af3-1aed-4234-80d5-5afbdb7058d9")
    jvm.complete(END)
    eventually(lambda: heard == [digest(END)])
    assert checked == [listener._streams[0].get("0b0a")]


@pytest.mark.parametrize(
    ("execution", "sink", "reported"),
    [
        ("MicroBatchExecution", "KafkaTable", True),
        ("AsyncProgressTrackingMicroBatchExecution", "KafkaTable", False),
        (None, "KafkaTable", False),
        (None, "ForeachBatchSink", True),
    ],
)
def test_a_query_is_left_out_if_its_commit_log_may_be_behind_its_events(
    listen: Listen, connect: Connect, execution: str | None, sink: str, reported: bool
) -> None:
    client, heard = connect()
    listener, jvm = listen(execution)
    jvm.complete(END, sink=sink)
    listener.drain()
    client.drain()
    assert heard == [digest(END)] * reported


def test_a_drain_returns_when_all_completed_batches_were_heard(server: NotificationServer, connect: Connect) -> None:
    client, heard = connect()
    server._drain = lambda: server.send([END])  # what was still in Spark's queue
    client.drain()
    assert heard == [digest(END)]


def test_a_drain_ends_when_the_server_goes_or_hangs(
    server: NotificationServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = connect()
    server.close()
    client.drain()
    release = threading.Event()
    monkeypatch.setattr(notification_client, "DRAIN_TIMEOUT", 0.1)

    def hang() -> None:
        release.wait(30)

    hung = NotificationServer(hang)
    with contextlib.closing(NotificationClient(hung.path, lambda _: None)) as waiting:
        waiting.drain()
        release.set()
    hung.close()


def test_a_reader_that_does_not_read_is_cut_off_for_the_others(server: NotificationServer, connect: Connect) -> None:
    _, heard = connect()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(server.path)
        eventually(lambda: len(server._readers) == 2)
        sent = [1]
        while len(server._readers) == 2:
            server.send([END] * 500)
            eventually(lambda: len(heard) == 500 * len(sent))
            sent.append(1)
    assert heard


def test_only_this_user_can_connect_and_only_the_process_of_the_server_removes_its_socket(
    server: NotificationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Path(server.path).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        server.close()
    assert Path(server.path).exists(), "a forked child does not close its parent's server"
    server.close()
    assert not directory.exists()


def test_a_reader_removes_the_socket_of_a_server_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "private" / "notifications"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        reader = NotificationClient(str(path), lambda _: None)
        accepted, _ = listening.accept()
    accepted.close()
    eventually(lambda: not path.parent.exists())
    reader.close()


def test_a_new_server_removes_the_sockets_of_killed_servers_and_no_others(place: Path) -> None:
    killed = Path(place, "kafka-group-killed", "notifications")
    killed.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(killed))
    first, second = NotificationServer(lambda: None), NotificationServer(lambda: None)
    assert not killed.parent.exists()
    assert Path(first.path).exists()
    for running in (first, second):
        running.close()
    assert list(place.iterdir()) == []


def test_a_reader_that_was_busy_for_long_hears_of_batches_again(server: NotificationServer) -> None:
    heard: list[bytes] = []
    busy, release = threading.Event(), threading.Event()

    def completed(report: bytes) -> None:
        busy.set()
        release.wait(30)
        heard.append(report)

    with contextlib.closing(NotificationClient(server.path, completed)) as client:
        client.drain()
        server.send([END])
        assert busy.wait(30)
        while server._readers:
            server.send([END] * 500)
        release.set()
        last = END | {"version": 3}
        eventually(lambda: server._readers)
        client.drain()
        server.send([last])
        eventually(lambda: heard[-1:] == [digest(last)])
