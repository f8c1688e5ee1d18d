"""Spark's Python worker between two tasks, under PySpark's own daemon."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINUX = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has the option")
Task = Callable[[str], str]


def read_int(read: Callable[[int], bytes]) -> int:
    return int.from_bytes(read(4), "big", signed=True)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of the daemon, which forks a worker for each connection."""
    tmp_path = tmp_path_factory.mktemp("worker")
    # The daemon only accepts workers whose name begins with "pyspark".
    shutil.copy(Path(__file__).with_name("worker_probe.py"), tmp_path / "pyspark_probe.py")
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path]),
        "PYTHON_WORKER_FACTORY_SECRET": "secret",
        "SPARK_REUSE_WORKER": "1",
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_probe"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin
        assert daemon.stdout
        try:
            yield read_int(daemon.stdout.read)
        finally:
            daemon.stdin.close()


@pytest.fixture
def new_worker(port: int) -> Iterator[Task]:
    """Runs statements as a task of a worker; returns the repr of ``answer``."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as spark:
        stream = spark.makefile("rwb")
        read_int(stream.read)  # the worker's process id

        def run(text: str) -> str:
            stream.write(struct.pack(">i", len(text)) + text.encode())
            stream.flush()
            return stream.read(read_int(stream.read)).decode()

        assert run("secret") == "ok"
        yield run


@pytest.fixture
def task(new_worker: Task) -> Task:
    """The same in a worker that has run its first task."""
    assert new_worker("python_worker.prepare_for_next_task()") == "None"
    return new_worker


OPTION = """spark = socket.fromfd(fd, socket.AF_INET, socket.SOCK_STREAM)
of = lambda: bool(spark.getsockopt(socket.IPPROTO_TCP, socket.{0}))
spark.setsockopt(socket.IPPROTO_TCP, socket.{0}, 0)
gc.collect(0)
answer = [of()]
gc.collect()
answer.append(of())"""
USERS_SOCKET = """server = socket.create_server(("127.0.0.1", 0))
users = socket.create_connection(server.getsockname())
gc.collect()
answer = users.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)"""
FAILS = """def fails(frame, event, argument):
    if event == "c_call" and argument.__name__ == "setsockopt":
        raise RuntimeError
failed = []
sys.unraisablehook = lambda _: failed.append(1)
sys.setprofile(fails)
gc.collect()
sys.setprofile(None)
answer = os.fstat(fd) and len(failed)"""


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        pytest.param(OPTION.format("TCP_NODELAY"), "[False, True]", id="no packet waits"),
        pytest.param(OPTION.format("TCP_QUICKACK"), "[False, True]", id="no acknowledgement waits", marks=LINUX),
        # A user's library may set a default timeout; Spark's reads fail on a socket with a timeout.
        pytest.param("socket.setdefaulttimeout(5)\ngc.collect()\nanswer = os.get_blocking(fd)", "True", id="timeout"),
        pytest.param(USERS_SOCKET, "0", id="other sockets"),
        pytest.param(FAILS, "1", id="an error while the options are set"),
    ],
)
def test_a_collection_sets_the_options_of_the_worker_socket_only(task: Task, code: str, answer: str) -> None:
    assert task(code) == answer
    assert task("answer = os.get_blocking(fd)") == "True", "still open"


def test_a_closed_socket_is_ignored(task: Task) -> None:
    code = """
sys.unraisablehook = failed = [].append
python_worker._worker_socket().detach()
gc.collect()
answer = failed.__self__"""
    assert task(code) == "[]"


def test_later_collections_skip_the_modules_that_the_first_task_imported(task: Task) -> None:
    frozen = int(task("answer = gc.get_freeze_count()"))
    assert frozen > 10_000
    task("""
python_worker.kept = [[number] for number in range(10_000)]
python_worker.prepare_for_next_task()""")
    assert int(task("answer = gc.get_freeze_count()")) <= frozen, "objects of later tasks would never be freed"


def test_garbage_of_the_first_task_is_freed(new_worker: Task) -> None:
    code = """
import weakref
class Node: pass
node = Node()
node.itself = node
python_worker.garbage = weakref.ref(node)
del node, Node
python_worker.prepare_for_next_task()"""
    assert new_worker(code) == "None"
    assert new_worker("answer = python_worker.garbage() is None") == "True"


def test_the_first_task_does_not_wait_for_a_collection(new_worker: Task) -> None:
    code = """
collections = []
gc.callbacks.append(lambda phase, info: collections.append(info["generation"]))
python_worker.prepare_for_next_task()
answer = 2 in collections, gc.get_freeze_count()"""
    assert new_worker(code) == "(False, 0)"
