"""A TCP proxy in front of a broker that harms chosen requests of one client, or their answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from enum import Enum, auto

from spark_group_source.testing.fake.server import REQUESTS, read_frame

APIS: dict[str, int] = {each.__name__.removesuffix("Request"): key for key, each in REQUESTS.items()}
"""Names of requests, and their keys."""

_HEAD = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")


class Harm(Enum):
    """What is done to a request or its answer."""

    CUT_BEFORE = auto()
    """The connection ends before the broker has the request."""
    CUT_AFTER = auto()
    """The connection ends when the broker has answered."""
    TRUNCATE = auto()
    """The connection ends in the middle of the answer."""
    DELAY = auto()
    """The answer comes when it is not waited for any more."""
    SWALLOW = auto()
    """The request goes nowhere, and the connection stays."""


class Proxy:
    """Forwards between clients and a broker; ``upstream`` tells its port once there is one."""

    def __init__(self, upstream: Callable[[], int], client: str, delay: float) -> None:
        self._upstream = upstream
        self._client = client.encode()
        self._delay = delay
        self._lock = threading.Lock()
        self._armed: tuple[int, Harm] | None = None
        self._ended = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, api: str, harm: Harm) -> None:
        """The next request of this name is harmed."""
        with self._lock:
            self._armed = APIS[api], harm

    def done(self) -> bool:
        """Whether the armed harm was done."""
        with self._lock:
            return self._armed is None

    def close(self) -> None:
        """Accepts no more connections; those there are end with their clients."""
        self._ended.set()
        self._server.close()

    def _take(self, head: bytes) -> Harm | None:
        key, _, _, size = _HEAD.unpack_from(head)
        with self._lock:
            if self._armed is None or self._armed[0] != key or head[_HEAD.size : _HEAD.size + size] != self._client:
                return None
            _, harm = self._armed
            self._armed = None
            return harm

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """A request and its answer at a time, as the brokers answer in order."""
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._upstream())) as broker:
            while (request := read_frame(client)) is not None:
                harm = self._take(request)
                if harm is Harm.CUT_BEFORE:
                    return
                if harm is Harm.SWALLOW:
                    continue
                broker.sendall(_SIZE.pack(len(request)) + request)
                answer = read_frame(broker)
                if answer is None or harm is Harm.CUT_AFTER:
                    return
                whole = _SIZE.pack(len(answer)) + answer
                if harm is Harm.TRUNCATE:
                    client.sendall(whole[: len(whole) // 2])
                    return
                if harm is Harm.DELAY:
                    self._ended.wait(self._delay)
                client.sendall(whole)
