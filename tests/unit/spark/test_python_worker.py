"""Spark's Python worker between two tasks."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator

import pytest

from spark_group_source.spark import python_worker


@pytest.fixture
def after_a_task() -> Iterator[None]:
    """What a worker is left as by its first task."""
    callbacks = list(gc.callbacks)
    python_worker.ready_for_the_next_task.cache_clear()
    python_worker.ready_for_the_next_task()
    yield
    gc.callbacks[:] = callbacks
    gc.unfreeze()


LINUX = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has the option")


@pytest.mark.parametrize("option", ["TCP_NODELAY", pytest.param("TCP_QUICKACK", marks=LINUX)])
@pytest.mark.usefixtures("after_a_task")
def test_no_packet_of_the_next_task_waits_for_an_acknowledgement(option: str) -> None:
    number = getattr(socket, option)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as worker,
        server.accept()[0],
    ):
        worker.setsockopt(socket.IPPROTO_TCP, number, 0)
        gc.collect(0)
        assert not worker.getsockopt(socket.IPPROTO_TCP, number)
        gc.collect()
        assert worker.getsockopt(socket.IPPROTO_TCP, number)
        worker.sendall(b"still open")


@pytest.mark.usefixtures("after_a_task")
def test_what_was_imported_by_the_first_task_is_left_out_of_later_collections() -> None:
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    of_a_later_task = [[number] for number in range(10_000)]
    python_worker.ready_for_the_next_task()
    assert gc.get_freeze_count() < frozen + len(of_a_later_task), "what later tasks make would never be freed"
