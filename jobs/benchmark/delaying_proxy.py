"""A broker far away: a TCP proxy that hands on each chunk half a round trip later, in both directions.

It is a program of its own, so that its work holds no lock of the benchmark. A new connection also waits for one round
trip, as a TCP handshake does. The proxy copies all bytes twice, which costs a core about 1 ms for 4 MB, and it does not
model TCP windows: a small receive buffer costs more on a real path.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
CHUNK_BYTES = 2**20
CHUNKS = 64
"""Maximum number of chunks under way in one direction of a connection; it bounds the memory."""
START_TIMEOUT_S = 20.0
POLL_S = 0.05

Chunks = queue.Queue[tuple[float, bytes]]
"""Chunks, each with the time at which it arrives; an empty one is the end of the stream."""


def serve(port: int, target: int, round_trip_s: float) -> None:
    """Accepts connections for ever."""
    with socket.create_server((HOST, port)) as server:
        while True:
            client, _ = server.accept()
            connected_at = time.monotonic() + round_trip_s
            broker = socket.create_connection((HOST, target))
            for source, sink in ((client, broker), (broker, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                under_way: Chunks = queue.Queue(CHUNKS)
                for work, sock in ((_receive, source), (_send, sink)):
                    arguments = (sock, under_way, connected_at, round_trip_s / 2)
                    threading.Thread(target=work, args=arguments, daemon=True).start()


def _receive(source: socket.socket, under_way: Chunks, connected_at: float, delay_s: float) -> None:
    chunk = b" "
    while chunk:
        chunk = b""
        with contextlib.suppress(OSError):  # of a reset connection
            chunk = source.recv(CHUNK_BYTES)
        under_way.put((max(time.monotonic(), connected_at) + delay_s, chunk))


def _send(sink: socket.socket, under_way: Chunks, _connected_at: float, _delay_s: float) -> None:
    chunk = b" "
    while chunk:
        arrives_at, chunk = under_way.get()
        time.sleep(max(0.0, arrives_at - time.monotonic()))
        with contextlib.suppress(OSError):  # then the other direction ends, too
            if chunk:
                sink.sendall(chunk)
            else:
                sink.shutdown(socket.SHUT_WR)


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
