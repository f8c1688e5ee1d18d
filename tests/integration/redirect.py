"""An address whose server a test exchanges, as a reused pod IP or a stale DNS record does."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"


class Redirect:
    """A port of the loopback address that is forwarded to a broker. ``connections`` counts those that came."""

    def __init__(self) -> None:
        self._to = 0
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.connections = 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def to(self, port: int) -> None:
        """Forwards new connections to this port, and ends the others."""
        self._to = port
        self._disconnect()

    def close(self) -> None:
        self._server.close()
        self._disconnect()

    def _disconnect(self) -> None:
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self.connections += 1
                try:
                    broker = socket.create_connection((HOST, self._to))
                except OSError:
                    client.close()
                    continue
                self._open |= {client, broker}
                for source, target in ((client, broker), (broker, client)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
        for sock in (source, target):
            self._open.discard(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        source.close()
