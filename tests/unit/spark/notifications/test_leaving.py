"""Readers leave when their application ends or their query was stopped: a real socket, a JVM of stand-ins, no Spark."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.spark.notifications import listener as listener_module
from spark_group_source.spark.notifications import server as server_module
from spark_group_source.spark.notifications import set_up
from spark_group_source.spark.notifications.client import Listener, NotificationClient
from spark_group_source.spark.notifications.listener import CompletionListener
from spark_group_source.spark.notifications.messages import ALL, digest
from spark_group_source.spark.notifications.server import NotificationServer
from spark_group_source.spark.notifications.shutdown_hooks import JVM_ENDS, ShutdownHooks
from tests.unit.new_process import run_python
from tests.unit.spark.notifications.test_notifications import END, Jvm
from tests.waiting import eventually


class Reader(NotificationClient):
    """A client that the server knows, with what it was told."""

    def __init__(self, path: str, application: str = "app") -> None:
        self.told: list[bytes] = []
        self.completed: list[bytes] = []
        listener = Listener(self.completed.append, lambda: self.told.append(b"ends"), self.told.append)
        super().__init__(path, listener, application)
        self.drain()


@pytest.fixture
def attendance() -> list[bool]:
    return []


@pytest.fixture
def server(attendance: list[bool]) -> Iterator[NotificationServer]:
    with closing(NotificationServer(lambda: None, attend=attendance.append)) as running:
        yield running


class Hooked(Jvm):
    """A JVM that has shutdown hooks, and queries: ``queries`` are those that have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Any] = []
        self.queries: list[Any] = []
        runtime = SimpleNamespace(addShutdownHook=self.hooks.append, removeShutdownHook=self.hooks.remove)
        lang = SimpleNamespace(
            Runtime=SimpleNamespace(getRuntime=lambda: runtime),
            Thread=lambda call, name: SimpleNamespace(run=call, name=name),
            Class=SimpleNamespace(forName=str),
        )
        self.java.lang = lang
        self.java.beans = SimpleNamespace(
            Statement=lambda target, method, arguments: lambda: getattr(target, method)(*arguments),
            EventHandler=SimpleNamespace(create=lambda interface, call, method: call),
        )
        self.java.util.ArrayList = Values
        self.java.util.concurrent.CountDownLatch = Latch
        self.java.util.concurrent.TimeUnit.NANOSECONDS = 1e-9
        self.streams.active = lambda: list(self.queries)
        self.context.applicationId = lambda: "app"

    def shut_down(self) -> None:
        """Runs all hooks at once, and waits for them."""
        running = [threading.Thread(target=each.run) for each in self.hooks]
        for each in running:
            each.start()
        for each in running:
            each.join()


class Values(list[Any]):
    """Java's list."""

    def add(self, value: Any) -> None:
        self.append(value)

    def toArray(self) -> list[Any]:  # noqa: N802
        return self


class Latch:
    """Java's, of 1."""

    def __init__(self, count: int) -> None:
        self._open = threading.Event()
        self.countDown = self._open.set

    def __getattr__(self, name: str) -> Any:
        assert name == "await"
        return lambda value, unit: self._open.wait(value * unit)


class Iteration(list[Any]):
    """Scala's iterator."""

    def hasNext(self) -> bool:  # noqa: N802
        return bool(self)

    def next(self) -> Any:
        return self.pop()


class Query:
    """A query in the JVM: ``stopped`` is what ``query.stop()`` sets first."""

    def __init__(self, run: str, end: Any) -> None:
        self.stopped, self.interrupted = threading.Event(), threading.Event()
        self._run = run
        end_of_batch = SimpleNamespace(json=lambda: end)
        offsets = SimpleNamespace(values=lambda: SimpleNamespace(iterator=lambda: Iteration([end_of_batch])))
        thread = SimpleNamespace(interrupt=self.interrupted.set)
        self._execution = SimpleNamespace(availableOffsets=lambda: offsets, queryExecutionThread=lambda: thread)

    def isActive(self) -> bool:  # noqa: N802
        return not self.stopped.is_set()

    def runId(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(toString=lambda: self._run)

    def streamingQuery(self) -> SimpleNamespace:  # noqa: N802
        return self._execution

    def stop(self) -> None:
        self.stopped.set()


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    monkeypatch.setattr(listener_module, "CHECK_MS", 10)
    monkeypatch.setattr(listener_module, "STOP_GRACE", 0.2)
    made = Hooked()
    yield made
    made.stopped.set()


@pytest.fixture
def application(server: NotificationServer, jvm: Hooked, monkeypatch: pytest.MonkeyPatch) -> CompletionListener:
    """The listener of a JVM, connected with the server as ``register`` does it."""
    made = CompletionListener(server, jvm.context, jvm)
    made._streams.append(jvm.streams)
    monkeypatch.setattr(set_up, "_listeners", [made])
    server._attend = set_up._attend
    return made


def test_the_server_says_when_there_are_readers_and_when_there_are_none(
    server: NotificationServer, attendance: list[bool]
) -> None:
    with closing(Reader(server.path)), closing(Reader(server.path)):
        eventually(lambda: attendance == [True])
    eventually(lambda: attendance == [True, False])


def test_a_process_that_looks_whether_the_server_lives_is_no_reader(
    server: NotificationServer, attendance: list[bool]
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as looking:
        looking.connect(server.path)
        with closing(Reader(server.path, "")):
            eventually(lambda: attendance == [True])
        eventually(lambda: attendance == [True, False])


def test_all_readers_hear_that_their_application_ends_and_the_end_waits_until_they_have_left(
    server: NotificationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LEAVE_TIMEOUT", 30.0)
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(Reader(server.path, name))) for name in ("app", "other", "")]
        leaving = threading.Thread(target=server.leave, args=(30.0,), daemon=True)
        leaving.start()
        eventually(lambda: all(each.told == [b"ends"] for each in readers))
        assert leaving.is_alive()
    leaving.join(30)
    assert not leaving.is_alive()


def test_the_end_waits_no_longer_than_its_timeout(server: NotificationServer) -> None:
    with closing(Reader(server.path)) as reader:
        server.leave(0.01)
        eventually(lambda: reader.told == [b"ends"])
        reader.drain()


def test_only_a_process_that_ends_its_application_tells_its_readers_at_its_exit(server: NotificationServer) -> None:
    with closing(NotificationServer(lambda: None)) as of_notebook, closing(Reader(of_notebook.path)) as other:
        of_notebook.close()
        assert other.told == []
    with closing(Reader(server.path)) as reader:
        server.ends_application = True
        ending = threading.Thread(target=server.close, daemon=True)
        ending.start()
        eventually(lambda: reader.told == [b"ends"])
    ending.join(30)


def test_a_further_ctrl_c_ends_a_wait_of_the_exit_and_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with closing(NotificationServer(lambda: None)) as server, closing(Reader(server.path)) as reader:
        server.ends_application = True
        monkeypatch.setattr(server, "_drain", interrupted)
        monkeypatch.setattr(server._departed, "wait_for", interrupted)
        server.close()
        assert not server._thread.is_alive()
        assert not Path(server.path).exists()
        eventually(lambda: reader.told == [b"ends"])


def test_the_readers_of_one_query_or_application_are_told(server: NotificationServer) -> None:
    other = {**END, "group": "other"}
    with closing(Reader(server.path)) as reader, closing(Reader(server.path, "another")) as another:
        server.end_query([END, other])
        server.end_queries("app")
        for each in (reader, another):
            each.drain()
        assert reader.told == [digest(END), digest(other), ALL]
        assert another.told == [digest(END), digest(other)]


def test_the_shutdown_of_the_jvm_tells_the_readers_and_waits_for_them_only_while_there_are_some(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    for _ in range(2):
        assert jvm.hooks == []
        with closing(Reader(server.path)) as reader:
            eventually(lambda: len(jvm.hooks) == 2)
            shutdown = threading.Thread(target=jvm.shut_down, daemon=True)
            shutdown.start()
            eventually(lambda told=reader.told: told == [b"ends"])  # type: ignore[misc]
            assert shutdown.is_alive()
        shutdown.join(30)
        assert not shutdown.is_alive()
        eventually(lambda: not jvm.hooks)


def test_the_jvm_waits_no_longer_than_two_seconds_for_a_process_that_does_not_answer(jvm: Hooked) -> None:
    hooks = ShutdownHooks(jvm, jvm.queue)
    jvm.queue.offer = lambda event: None  # type: ignore[attr-defined]
    hooks.add()
    jvm.shut_down()
    hooks.remove()
    assert jvm.hooks == []


def test_a_jvm_that_shuts_down_keeps_its_hooks_and_is_not_waited_for(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    with closing(Reader(server.path)):
        eventually(lambda: len(jvm.hooks) == 2)
        wait = jvm.hooks[1]
        jvm.hooks.clear()  # Java raises an exception for a hook that it runs
        waiting = threading.Thread(target=wait.run, daemon=True)
        waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_stopped_query_that_is_held_is_told_and_others_are_not(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    held, running = Query("held", END), Query("running", {**END, "group": "other"})
    jvm.queries = [held, running]
    with closing(Reader(server.path)) as reader:
        held.stop()
        eventually(lambda: reader.told)
        assert set(reader.told) == {digest(END)}


def test_many_queries_are_asked_less_often(
    server: NotificationServer, jvm: Hooked, application: CompletionListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "MAX_SHARE", 0.1)
    asked: list[float] = []

    def active() -> list[Any]:
        asked.append(time.monotonic())
        time.sleep(0.05)
        return []

    jvm.streams.active = active
    with closing(Reader(server.path)):
        eventually(lambda: len(asked) >= 3)
    assert asked[2] - asked[0] >= 2 * 0.05 / 0.1


def test_a_stopped_query_that_ends_by_itself_is_not_told(
    server: NotificationServer, jvm: Hooked, application: CompletionListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "STOP_GRACE", 60.0)
    query = Query("run", END)
    jvm.queries = [query]
    with closing(Reader(server.path)) as reader:
        query.stop()
        eventually(lambda: application._stopped_at)
        jvm.queries = []
        eventually(lambda: not application._stopped_at)
        assert reader.told == []


def test_when_spark_is_stopped_its_queries_are_stopped_and_its_readers_told_and_those_of_the_next_are_not(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    query = Query("run", END)
    jvm.queries = [query]
    with closing(Reader(server.path)) as reader, closing(Reader(server.path, "next")) as of_next:
        eventually(lambda: application.attended)
        jvm.stopped.set()
        eventually(lambda: reader.told == [ALL])
        assert query.stopped.is_set()
        of_next.drain()
        assert of_next.told == []


def test_a_batch_that_spark_reports_after_it_was_stopped_is_reported_to_a_reader_that_leaves(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    server._drain = set_up._drain
    with closing(Reader(server.path)) as reader:
        jvm.stopped.set()
        eventually(lambda: reader.told == [ALL])
        jvm.complete(END)
        reader.drain()
        assert reader.completed == [digest(END)]
    application._thread.join(30)
    assert not application._thread.is_alive()


def test_a_query_that_a_stopped_spark_does_not_interrupt_is_interrupted(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    interrupted, rejected = Query("interrupted", END), Query("rejected", END)

    def reject() -> None:
        rejected.stopped.set()
        raise RuntimeError("cannot call methods on a stopped SparkContext")

    rejected.stop = reject  # type: ignore[method-assign]
    jvm.queries = [interrupted, rejected]
    with closing(Reader(server.path)):
        eventually(lambda: application.attended)
        jvm.stopped.set()
        eventually(rejected.interrupted.is_set)
        assert interrupted.stopped.is_set()
        assert not interrupted.interrupted.is_set()


def test_the_next_application_of_a_process_takes_the_hooks_over(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    following = Hooked()
    with closing(Reader(server.path)):
        eventually(lambda: len(jvm.hooks) == 2)
        new = CompletionListener(server, following.context, following)
        set_up._replace_listener(new)
        assert (jvm.hooks, len(following.hooks)) == ([], 2)
    eventually(lambda: not following.hooks)
    following.stopped.set()


def test_the_readers_of_a_stopped_application_are_told_though_the_next_was_registered_at_once(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    query, following = Query("run", END), Hooked()
    jvm.queries = [query]
    with closing(Reader(server.path)) as reader:
        eventually(lambda: application.attended)
        jvm.stopped.set()
        set_up._replace_listener(CompletionListener(server, following.context, following))
        eventually(lambda: reader.told == [ALL])
        assert query.stopped.is_set()
    eventually(lambda: not following.hooks)
    following.stopped.set()


def test_an_unknown_form_of_offsets_ends_no_thread(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    query = Query("run", END)
    query._execution = SimpleNamespace()
    query.stop()
    jvm.queries = [query]
    with closing(Reader(server.path)) as reader:
        eventually(lambda: application._stopped_at)
        jvm.offer(JVM_ENDS)
        eventually(lambda: reader.told == [b"ends"])


DYING = """
import os, signal, sys, threading
from spark_group_source.spark.notifications.client import Listener, NotificationClient
from spark_group_source.spark.notifications.default_signals import leave_before_death
from spark_group_source.spark.notifications.server import NotificationServer
server = NotificationServer(lambda: None)
exec(sys.argv[1])
def leave():
    print("leaves", flush=True)
    client.close()
client = NotificationClient(server.path, Listener(print, leave))
client.drain()
leave_before_death(server)
if not (child := os.fork()):
    exec(sys.argv[2])
    signal.pause()
print("child", os.waitpid(child, 0)[1], flush=True)
exec(sys.argv[2])
"""


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_readers_leave_before_a_process_dies_of_a_signal_that_it_does_not_handle(number: str) -> None:
    kill = f"os.kill(os.getpid(), signal.{number})"
    died = f"{DYING}\nprint('lives')"
    default = f"signal.signal(signal.{number}, signal.SIG_DFL)"  # the tests may run under nohup
    ended = run_python(PARENT, died, default, kill)
    value = int(signal.Signals[number])
    assert ended.stdout.splitlines() == [f"child {value}", "leaves", f"status {-value}"], ended.stderr


def test_a_handler_of_the_user_is_kept() -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: (print('handled', flush=True), os._exit(3)))"
    ended = run_python(PARENT, DYING, own, "os.kill(os.getpid(), signal.SIGTERM)")
    assert ended.stdout.splitlines() == ["handled", "child 768", "handled", "status 3"], ended.stderr


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_an_exception_of_another_handler_during_the_wait_saves_no_process_from_its_signal(number: str) -> None:
    interrupted = DYING.replace("    client.close()", "    os.kill(os.getpid(), signal.SIGINT)")  # it never leaves
    default = f"signal.signal(signal.{number}, signal.SIG_DFL)"
    ended = run_python(PARENT, f"{interrupted}\nprint('lives')", default, f"os.kill(os.getpid(), signal.{number})")
    assert ended.stdout.splitlines()[-2:] == ["leaves", f"status {-signal.Signals[number]}"], ended.stderr


ON_MAIN_LAST = """
import signal, threading
from types import SimpleNamespace
from spark_group_source.spark.notifications import set_up
from spark_group_source.spark.notifications.server import NotificationServer
signal.signal(signal.SIGTERM, signal.SIG_DFL)
server, gateway = NotificationServer(lambda: None), SimpleNamespace(proc=object())
other = threading.Thread(target=set_up._end_with_process, args=(server, gateway))
other.start(), other.join()
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
set_up._end_with_process(server, gateway)
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
server.close()
"""


def test_a_registration_on_main_sets_the_handlers_though_one_on_another_thread_came_first() -> None:
    assert run_python(ON_MAIN_LAST).stdout.split() == ["True", "False"]


def test_the_listener_of_a_jvm_that_is_gone_is_replaced(
    server: NotificationServer, jvm: Hooked, application: CompletionListener
) -> None:
    def gone() -> None:
        raise ConnectionRefusedError

    jvm.context.isStopped = gone
    jvm.java.lang.Runtime.getRuntime = gone
    application.attended = True
    assert set_up._has_ended(application)
    following = Hooked()
    new = CompletionListener(server, following.context, following)
    set_up._replace_listener(new)
    assert set_up._listeners == [new]
    following.stopped.set()


PARENT = """
import subprocess, sys
print("status", subprocess.run([sys.executable, "-c", *sys.argv[1:]]).returncode)
"""
