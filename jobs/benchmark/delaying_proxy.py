"""A broker far away: a TCP proxy that hands on bytes half a round trip later, in both directions.

At most :data:`WINDOW_BYTES` of a connection are under way, as on a real path: a broker's system keeps them in its send
buffer until the client's system has acknowledged them, and takes no more. The proxy models neither slow start nor a
client's small receive buffer, which cost more on a real path. It copies all bytes twice, which costs a core about 1 ms
for 4 MB.

It is a program of its own, so that its work holds no lock of the benchmark.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
WINDOW_BYTES = 230_000
"""The bytes that Linux has under way for a broker with Kafka's default ``socket.send.buffer.bytes`` (102,400): Linux
doubles the size. Measured over a path of 10 ms."""
START_TIMEOUT_S = 20.0
POLL_S = 0.05


class OneWay:
    """One direction of a connection: bytes from ``source`` to ``sink``, each ``delay_s`` later.

    A new connection also waits for the round trip of a TCP handshake: its first bytes leave at ``connected_at``.
    """

    def __init__(self, source: socket.socket, sink: socket.socket, connected_at: float, delay_s: float) -> None:
        self._source = source
        self._sink = sink
        self._connected_at = connected_at
        self._delay_s = delay_s
        self._changed = threading.Condition()
        self._under_way: deque[tuple[float, bytes]] = deque()
        """Chunks, each with the time at which it arrives; an empty one is the end of the stream."""
        self._unacknowledged = 0
        self._acknowledgements: deque[tuple[float, int]] = deque()
        """The numbers of bytes that arrived, each with the time at which the source learns of it."""

    def start(self) -> None:
        """Hands on bytes until the stream ends."""
        for work in (self._receive, self._send):
            threading.Thread(target=work, daemon=True).start()

    def _receive(self) -> None:
        chunk = b" "
        while chunk:
            room = self._await_room()
            chunk = b""
            with contextlib.suppress(OSError):  # of a reset connection
                chunk = self._source.recv(room)
            arrives_at = max(time.monotonic(), self._connected_at) + self._delay_s
            with self._changed:
                self._unacknowledged += len(chunk)
                self._under_way.append((arrives_at, chunk))
                self._changed.notify_all()

    def _await_room(self) -> int:
        """Waits until bytes may be sent, and returns how many."""
        with self._changed:
            while True:
                self._take_acknowledgements()
                room = WINDOW_BYTES - self._unacknowledged
                if room > 0:
                    return room
                wait_s = None
                if self._acknowledgements:
                    next_at, _ = self._acknowledgements[0]
                    wait_s = max(0.0, next_at - time.monotonic())
                self._changed.wait(wait_s)

    def _take_acknowledgements(self) -> None:
        """Frees the room of the bytes whose acknowledgement has arrived by now."""
        while self._acknowledgements:
            arrived_at, count = self._acknowledgements[0]
            if arrived_at > time.monotonic():
                return
            self._acknowledgements.popleft()
            self._unacknowledged -= count

    def _send(self) -> None:
        chunk = b" "
        while chunk:
            with self._changed:
                while not self._under_way:
                    self._changed.wait()
                arrives_at, chunk = self._under_way.popleft()
            time.sleep(max(0.0, arrives_at - time.monotonic()))
            with contextlib.suppress(OSError):  # then the other direction ends, too
                if chunk:
                    self._sink.sendall(chunk)
                else:
                    self._sink.shutdown(socket.SHUT_WR)
            with self._changed:
                self._acknowledgements.append((time.monotonic() + self._delay_s, len(chunk)))
                self._changed.notify_all()


def serve(port: int, target: int, round_trip_s: float) -> None:
    """Accepts connections for ever."""
    with socket.create_server((HOST, port)) as server:
        while True:
            client, _ = server.accept()
            connected_at = time.monotonic() + round_trip_s
            broker = socket.create_connection((HOST, target))
            for source, sink in ((client, broker), (broker, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                OneWay(source, sink, connected_at, round_trip_s / 2).start()


@contextlib.contextmanager
def running(port: int, target: int, round_trip_ms: int) -> Iterator[None]:
    """Runs a proxy for the port ``target`` at ``port`` in another process."""
    arguments = [str(port), str(target), str(round_trip_ms / 1000)]
    with subprocess.Popen([sys.executable, str(Path(__file__)), *arguments]) as process:
        try:
            _await_port(port)
            yield
        finally:
            process.kill()


def _await_port(port: int) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((HOST, port)).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_S)
        else:
            return


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
