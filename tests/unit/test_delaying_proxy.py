"""The benchmark's path to a distant broker."""

from __future__ import annotations

import socket
import threading
import time

from benchmark.delaying_proxy import WINDOW_BYTES, OneWay

from tests.unit.conftest import NewSocketPair
from tests.waiting import eventually

SENT = bytes(range(256)) * 4096


def test_all_bytes_arrive_in_order_and_after_them_the_end(new_socket_pair: NewSocketPair) -> None:
    (sender, source), (sink, receiver) = new_socket_pair(), new_socket_pair()
    OneWay(source, sink, connected_at=time.monotonic(), delay_s=0.001).start()

    def send() -> None:
        sender.sendall(SENT)
        sender.shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()
    received = b""
    while chunk := receiver.recv(2**16):
        received += chunk
    assert received == SENT


def test_a_connection_has_no_more_bytes_under_way_than_a_brokers_send_buffer(new_socket_pair: NewSocketPair) -> None:
    (sender, source), (sink, _) = new_socket_pair(), new_socket_pair()
    path = OneWay(source, sink, connected_at=time.monotonic(), delay_s=3600.0)
    path.start()
    sender.setblocking(False)
    sent = 0

    def is_full() -> bool:
        nonlocal sent
        try:
            sent += sender.send(SENT)
        except BlockingIOError:
            return path._unacknowledged == WINDOW_BYTES
        return False

    eventually(is_full)
    assert sent > WINDOW_BYTES
    assert sum(len(chunk) for _, chunk in path._under_way) <= WINDOW_BYTES
