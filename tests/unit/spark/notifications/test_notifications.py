"""Completed batches are reported from the user's process to readers: a real socket, without Spark."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import resource
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from spark_group_source.spark.notifications import client as client_module
from spark_group_source.spark.notifications import listener as listener_module
from spark_group_source.spark.notifications import server as server_module
from spark_group_source.spark.notifications import set_up, unix_socket
from spark_group_source.spark.notifications.client import Listener, NotificationClient
from spark_group_source.spark.notifications.listener import CompletionListener
from spark_group_source.spark.notifications.messages import Rejection, digest
from spark_group_source.spark.notifications.server import NotificationServer
from tests.waiting import eventually

END = {"group": "g", "version": 2, "ranges": {"t": {"0": [0, 5]}}}


class Reader(NotificationClient):
    """A client that the server knows, with what it hears."""

    def __init__(self, path: str) -> None:
        self.heard: list[bytes] = []
        super().__init__(path, Listener(self.heard.append))
        self.drain()


@pytest.fixture
def server() -> Iterator[NotificationServer]:
    with closing(NotificationServer(lambda: None)) as running:
        yield running


@pytest.fixture
def reader(server: NotificationServer) -> Iterator[Reader]:
    with closing(Reader(server.path)) as connected:
        yield connected


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of sockets. Not tmp_path: the name of a Unix socket may have 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


class Jvm:
    """The parts of py4j's view of the JVM that a listener uses; ``offer`` is Spark reporting a progress."""

    def __init__(self) -> None:
        self.execution: str | None = "MicroBatchExecution"
        self.queue: queue.Queue[str] = queue.Queue(listener_module.CAPACITY)
        self.stopped = threading.Event()
        waiting = SimpleNamespace(offer=self.offer, poll=self._poll)
        util = SimpleNamespace(LinkedBlockingQueue=lambda _: waiting, TimeUnit=SimpleNamespace(MILLISECONDS=1))
        self.java = SimpleNamespace(util=SimpleNamespace(concurrent=util))
        kind = SimpleNamespace(getSimpleName=lambda: self.execution)
        query = SimpleNamespace(streamingQuery=lambda: SimpleNamespace(getClass=lambda: kind))
        self.streams = SimpleNamespace(get=lambda _: query if self.execution else None)
        bus = SimpleNamespace(waitUntilEmpty=lambda _: None)
        self.context = SimpleNamespace(isStopped=self.stopped.is_set, listenerBus=lambda: bus)

    def offer(self, event: str) -> bool:
        self.queue.put(event)
        return True

    def _poll(self, interval: int, unit: int) -> str | None:
        try:
            return self.queue.get(timeout=0.2)
        except queue.Empty:
            return None

    def complete(self, *ends: object, sink: str = "noop") -> None:
        sources = [{"endOffset": end} for end in ends]
        self.offer(json.dumps({"id": "query", "runId": "run", "sources": sources, "sink": {"description": sink}}))


@pytest.fixture
def jvm() -> Iterator[Jvm]:
    made = Jvm()
    yield made
    made.stopped.set()


@pytest.fixture
def listener(server: NotificationServer, jvm: Jvm) -> CompletionListener:
    """Listens to a JVM that has one query."""
    made = CompletionListener(server, jvm.context, jvm)
    made._streams.append(jvm.streams)
    return made


@pytest.mark.usefixtures("listener")
def test_each_reader_hears_of_each_batch_of_this_source(server: NotificationServer, jvm: Jvm, reader: Reader) -> None:
    other = {**END, "group": "other"}
    with closing(Reader(server.path)) as second:
        jvm.complete(END, "not JSON", None, 17, {"t": {"0": 5}}, json.dumps(other))
        eventually(lambda: len(reader.heard) == len(second.heard) == 2)
    assert reader.heard == second.heard == [digest(END), digest(other)]


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize("event", ["{", '{"sources": 5}', json.dumps({"sources": [{"endOffset": END}]})])
def test_an_unexpected_progress_of_one_query_does_not_end_the_reports_of_others(
    jvm: Jvm, reader: Reader, caplog: pytest.LogCaptureFixture, event: str
) -> None:
    jvm.offer(event)
    jvm.complete(END)
    eventually(lambda: reader.heard == [digest(END)])
    assert "cannot report a completed batch" in caplog.text


def test_events_before_the_end_of_spark_are_reported(server: NotificationServer, jvm: Jvm, reader: Reader) -> None:
    jvm.stopped.set()
    jvm.complete(END)
    CompletionListener(server, jvm.context, jvm)
    eventually(lambda: reader.heard == [digest(END)])


def test_the_socket_of_a_suspended_process_delays_no_new_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_socket, "PROBE_TIMEOUT", 0.1)
    path = place / f"{unix_socket.PREFIX}other" / unix_socket.NAME
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
    jvm: Jvm, listener: CompletionListener, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[object] = []

    def check(query: object) -> None:
        checked.append(query)
        raise AttributeError("another Spark has another plan")

    monkeypatch.setattr(listener._started_queries, "started", check)
    jvm.offer("0b0a0af3-1aed-4234-80d5-5afbdb7058d9")
    jvm.complete(END)
    eventually(lambda: reader.heard == [digest(END)])
    assert checked == [jvm.streams.get("0b0a")]


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
    jvm: Jvm, listener: CompletionListener, reader: Reader, execution: str | None, sink: str, reported: bool
) -> None:
    jvm.execution = execution
    jvm.complete(END, sink=sink)
    listener.drain()
    reader.drain()
    assert reader.heard == [digest(END)] * reported


def test_a_drain_returns_when_all_completed_batches_were_heard(server: NotificationServer, reader: Reader) -> None:
    server._drain = lambda: server.send([END])  # what was still in Spark's queue
    reader.drain()
    assert reader.heard == [digest(END)]


def test_a_drain_ends_when_the_server_goes_or_hangs(
    server: NotificationServer, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.close()
    reader.drain()
    release = threading.Event()
    monkeypatch.setattr(client_module, "DRAIN_TIMEOUT", 0.1)

    def hang() -> None:
        release.wait(30)

    with closing(NotificationServer(hang)) as hung, closing(Reader(hung.path)):
        release.set()


def test_a_reader_that_does_not_read_is_cut_off_for_the_others(server: NotificationServer, reader: Reader) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(server.path)
        eventually(lambda: len(server._readers) == 2)
        while len(server._readers) == 2:
            reader.heard.clear()
            server.send([END] * 500)
            eventually(lambda: len(reader.heard) == 500)


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
        with closing(NotificationClient(str(path), Listener(lambda _: None))):
            listening.accept()[0].close()
            listening.close()
            eventually(lambda: not path.parent.exists())


def test_a_new_server_removes_the_sockets_of_killed_servers_and_no_others(place: Path) -> None:
    killed = Path(place, "kafka-group-killed", "notifications")
    killed.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(killed))
    with closing(NotificationServer(lambda: None)) as first, closing(NotificationServer(lambda: None)):
        assert not killed.parent.exists()
        assert Path(first.path).exists()
    assert list(place.iterdir()) == []


def test_systemd_tmpfiles_skips_the_directory_of_a_live_server_because_it_is_locked(place: Path) -> None:
    with closing(NotificationServer(lambda: None)) as server:
        directory = os.open(Path(server.path).parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(directory)


def test_a_reader_that_was_busy_for_long_hears_of_batches_again(server: NotificationServer) -> None:
    heard: list[bytes] = []
    busy, release = threading.Event(), threading.Event()

    def completed(report: bytes) -> None:
        busy.set()
        release.wait(30)
        heard.append(report)

    with closing(NotificationClient(server.path, Listener(completed))) as client:
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


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Path, kind: str) -> Path:
    """A directory for temporary files that takes no socket; ``place`` is the next one that is tried."""
    found = tmp_path / kind
    if kind == "long" * 25:  # as those of YARN's containers and Slurm's jobs
        found.mkdir()
    elif kind == "file":
        found.write_text("")
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    monkeypatch.setattr(unix_socket, "PLACES", (str(place),))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return found


KINDS = pytest.mark.parametrize("kind", ["long" * 25, "missing", "file"])


@KINDS
def test_the_socket_lies_elsewhere_if_the_directory_for_temporary_files_takes_none(unusable: Path, place: Path) -> None:
    with closing(NotificationServer(lambda: None)) as server, closing(Reader(server.path)) as reader:
        assert Path(server.path).parent.parent == place
        server.send([END])
        eventually(lambda: reader.heard == [digest(END)])
    assert list(place.iterdir()) == []
    assert not unusable.is_dir() or list(unusable.iterdir()) == []


@pytest.mark.parametrize("kind", ["long" * 25])
@pytest.mark.usefixtures("unusable")
def test_a_process_without_a_place_for_the_socket_knows_why_and_its_listener_works(
    place: Path, monkeypatch: pytest.MonkeyPatch, jvm: Jvm, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unix_socket, "PLACES", (str(place / "missing"),))
    monkeypatch.setattr(set_up, "_servers", [])
    server, address = set_up._server()
    assert server is None
    assert not address.path
    assert "long: AF_UNIX path too long; no Unix socket in " in address.missing
    assert "/missing: [Errno 2] No such file or directory" in address.missing
    listener = CompletionListener(server, jvm.context, jvm)
    listener._streams.append(jvm.streams)
    jvm.complete(END)
    listener.drain()
    assert caplog.text == ""


@pytest.fixture
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Takes all free file descriptors of this process; the function frees them."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open(os.devnull, os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 20, limits[1]))
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))

    def free() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        while taken:
            os.close(taken.pop())

    yield free
    free()


def test_a_server_without_free_descriptors_waits_for_them_and_serves_its_readers_meanwhile(
    server: NotificationServer,
    reader: Reader,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_PAUSE", 600.0)
    pauses = Mock(wraps=server._pause_accepting)
    monkeypatch.setattr(server, "_pause_accepting", pauses)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
        free = request.getfixturevalue("no_descriptors")
        waiting.connect(server.path)
        eventually(lambda: pauses.called and "Too many open files" in caplog.text)
        for _ in range(20):  # each of them is a turn of the server's loop
            reader.drain()
        pauses.assert_called_once()  # a server of an earlier test may log the same
        assert not server._accepting
        assert server._listening not in server._selector.get_map()
        free()
        server._resumes_at = 0.0
        reader.drain()
        eventually(lambda: len(server._readers) == 2)
    server.send([END])
    eventually(lambda: reader.heard == [digest(END)])


def test_a_reader_hears_why_its_query_must_not_begin_after_the_queries_that_have_started_are_checked(
    jvm: Jvm, listener: CompletionListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Rejection("two sources share a group", "give each its own")
    started: list[object] = []

    def check(query: object) -> None:
        eventually(lambda: listener._markers)  # the reader's question has come and waits for this
        started.append(query)

    monkeypatch.setattr(listener._started_queries, "started", check)
    monkeypatch.setattr(listener._started_queries, "rejection", lambda key: found if started and key == "k" else None)
    with closing(NotificationServer(listener.drain, listener.rejection)) as server:
        jvm.offer("0b0a0af3-1aed-4234-80d5-5afbdb7058d9")
        with closing(NotificationClient(server.path, Listener(lambda _: None))) as client:
            assert client.rejection("k") == found
        with closing(NotificationClient(server.path, Listener(lambda _: None))) as other:
            assert other.rejection("another") is None


def test_each_progress_shows_that_its_query_runs(
    jvm: Jvm, listener: CompletionListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    monkeypatch.setattr(listener._started_queries, "has_progress", runs.append)
    jvm.complete(END)
    jvm.complete("not ours")
    listener.drain()
    assert runs == ["run", "run"]


def test_a_query_begins_if_its_user_s_process_cannot_say_whether_it_may(
    server: NotificationServer, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_rejection", {}.__getitem__)
    assert reader.rejection("k") is None
    monkeypatch.setattr(client_module, "BEGIN_TIMEOUT", 0.1)
    release = threading.Event()
    monkeypatch.setattr(server, "_rejection", lambda key: release.wait(30) and None)
    assert reader.rejection("k") is None
    release.set()
