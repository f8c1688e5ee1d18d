"""The benchmark's path to a distant broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from benchmark.delaying_proxy import WINDOW_BYTES, OneWay

from tests.waiting import eventually

SENT = bytes(range(256)) * 4096
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def source() -> Iterator[Ends]:
    ours, proxied = socket.socketpair()
    with ours, proxied:
        yield ours, proxied


@pytest.fixture
def sink() -> Iterator[Ends]:
    proxied, theirs = socket.socketpair()
    with proxied, theirs:
        yield proxied, theirs


def test_all_bytes_arrive_in_order_and_after_them_the_end(source: Ends, sink: Ends) -> None:
    OneWay(source[1], sink[0], connected_at=time.monotonic(), delay_s=0.001).start()

    def send() -> None:
        source[0].sendall(SENT)
        source[0].shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()
    received = b""
    while chunk := sink[1].recv(2**16):
        received += chunk
    assert received == SENT


def test_a_connection_has_no_more_bytes_under_way_than_a_brokers_send_buffer(source: Ends, sink: Ends) -> None:
    path = OneWay(source[1], sink[0], connected_at=time.monotonic(), delay_s=3600.0)
    path.start()
    source[0].setblocking(False)
    sent = 0

    def is_full() -> bool:
        nonlocal sent
        try:
            sent += source[0].send(SENT)
        except BlockingIOError:
            return path._unacknowledged == WINDOW_BYTES
        return False

    eventually(is_full)
    assert sent > WINDOW_BYTES
    assert sum(len(chunk) for _, chunk in path._under_way) <= WINDOW_BYTES
