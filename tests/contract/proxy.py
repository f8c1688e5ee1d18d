"""A TCP proxy in front of a broker that injects faults into requests of some clients, or into their responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from tests.fake.server import REQUESTS, read_frame

APIS: dict[str, int] = {each.__name__.removesuffix("Request"): key for key, each in REQUESTS.items()}
"""API key of each request name."""

_HEAD = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")


class ProxyFault(Enum):
    """A fault of a request or its response."""

    CUT_BEFORE = auto()
    """The connection closes before the broker gets the request."""
    CUT_AFTER = auto()
    """The connection closes after the broker's response, which the client does not get."""
    TRUNCATE = auto()
    """The connection closes in the middle of the response."""
    STALL = auto()
    """The response stops in its middle, and the connection stays open."""
    DELAY = auto()
    """The response arrives after the client's timeout."""
    SWALLOW = auto()
    """The request is lost, and the connection stays open."""
    HOLD = auto()
    """The connection closes, and the broker gets the request when the test calls :meth:`Proxy.release`."""


OF_REQUEST = {ProxyFault.CUT_BEFORE, ProxyFault.SWALLOW, ProxyFault.HOLD}
"""Faults that come before the broker gets the request."""

Selected = Callable[[Any, Any], bool]
"""Whether a fault applies to this request and response (kafka-python messages). The response is ``None`` for the faults
of :data:`OF_REQUEST`."""


@dataclass(frozen=True)
class _Armed:
    key: int
    fault: ProxyFault
    selected: Selected | None


class Proxy:
    """Forwards between clients and a broker; ``upstream`` returns the broker's port.

    Faults are for the clients whose id begins with ``client``; a delayed response comes after ``delay`` seconds.
    """

    def __init__(self, upstream: Callable[[], int], client: str, delay: float) -> None:
        self._upstream = upstream
        self._client = client.encode()
        self._delay = delay
        self._lock = threading.Lock()
        self._armed: _Armed | None = None
        self._ended = threading.Event()
        self._held: Callable[[], Any] | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, api: str, fault: ProxyFault, selected: Selected | None = None) -> None:
        """Injects the fault into the next request of this name, or into the next one that is ``selected``."""
        with self._lock:
            self._armed = _Armed(APIS[api], fault, selected)

    def done(self) -> bool:
        """Whether the armed fault was injected."""
        with self._lock:
            return self._armed is None

    def release(self) -> Any:
        """Sends the held request to the broker, and returns its response."""
        assert self._held is not None, "no request is held"
        held, self._held = self._held, None
        return held()

    def close(self) -> None:
        """Accepts no more connections; open ones close with their clients."""
        self._ended.set()
        self._server.close()

    def _take(self, request: bytes, response: bytes | None = None) -> ProxyFault | None:
        """Returns the armed fault if it is one of requests, or given the response one of responses, and applies."""
        key, version, _, size = _HEAD.unpack_from(request)
        with self._lock:
            armed = self._armed
            if armed is None or armed.key != key or not request.startswith(self._client, _HEAD.size, _HEAD.size + size):
                return None
            if (armed.fault in OF_REQUEST) != (response is None):
                return None
            if armed.selected is not None and not armed.selected(*_decoded(key, version, request, response)):
                return None
            self._armed = None
            return armed.fault

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Forwards one request and its response at a time, because brokers respond in order."""
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._upstream())) as broker:
            while (request := read_frame(client)) is not None:
                fault = self._take(request)
                if fault is ProxyFault.CUT_BEFORE:
                    return
                if fault is ProxyFault.SWALLOW:
                    continue
                if fault is ProxyFault.HOLD:
                    self._held = partial(self._send_late, request)
                    return
                broker.sendall(_SIZE.pack(len(request)) + request)
                response = read_frame(broker)
                if response is None or (fault := self._take(request, response)) is ProxyFault.CUT_AFTER:
                    return
                framed = _SIZE.pack(len(response)) + response
                if fault is ProxyFault.TRUNCATE:
                    client.sendall(framed[: len(framed) // 2])
                    return
                if fault is ProxyFault.STALL:
                    client.sendall(framed[: len(framed) // 2])
                    continue
                if fault is ProxyFault.DELAY:
                    self._ended.wait(self._delay)
                client.sendall(framed)

    def _send_late(self, request: bytes) -> Any:
        key, version, _, _ = _HEAD.unpack_from(request)
        with socket.create_connection(("127.0.0.1", self._upstream())) as broker:
            broker.sendall(_SIZE.pack(len(request)) + request)
            return _decoded(key, version, request, read_frame(broker))[1]


def _decoded(key: int, version: int, request: bytes, response: bytes | None) -> tuple[Any, Any]:
    asked = REQUESTS[key].decode(request, version=version, header=True)
    if response is None:
        return asked, None
    return asked, asked.header.get_response_class().decode(response, version=version, header=True)
