"""A token endpoint in this process that answers as a test says."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.text import Secret

SECRET = "s3cret&/=ä"


def jwt(lifetime: float | None = 300.0, **claims: Any) -> str:
    """Returns a JWT without a valid signature."""
    if lifetime is not None:
        claims["exp"] = int(time.time() + lifetime)
    encoded = [json.dumps(each).encode() for each in ({"alg": "RS256"}, {"sub": "orders", **claims})]
    return ".".join(base64.urlsafe_b64encode(each).decode().rstrip("=") for each in (*encoded, b"signature"))


def token_answer(lifetime: float = 300.0, **more: Any) -> dict[str, Any]:
    return {"access_token": jwt(lifetime), "token_type": "Bearer", **more}


@dataclass
class Request:
    """What a client sent."""

    path: str
    headers: dict[str, str]
    form: dict[str, list[str]]

    @property
    def credentials(self) -> str:
        return base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()


@dataclass
class TokenService:
    """``answer`` returns the status and the body of each response; a ``str`` or ``bytes`` body is sent as it is.

    It is a proxy too, for https.
    """

    answer: Callable[[], tuple[int, Any]] = lambda: (200, token_answer())
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    date: str | None = None
    drip: float | None = None
    """Seconds between two bytes of a response."""
    url: str = ""

    def client(self, **more: Any) -> ClientCredentials:
        """Returns a client whose token no other test keeps."""
        endpoint = more.pop("endpoint", f"{self.url}/token?test={time.monotonic_ns()}")
        return ClientCredentials(endpoint, "orders", Secret(SECRET), **{"retry_backoff": 0.05, **more})


def _forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def running(certificate: Path | None = None, clients_of: Path | None = None) -> Iterator[TokenService]:
    """Runs the service, with TLS if a file with a key and its certificate is given.

    ``clients_of`` is the file of an authority that must have signed the certificates of clients.
    """
    service = TokenService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
            service.requests.append(Request(self.path, dict(self.headers), form))
            status, body = service.answer()
            data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for name, text in {"Content-Length": str(len(data)), **service.headers}.items():
                self.send_header(name, text)
            self.end_headers()
            with contextlib.suppress(OSError):  # the client may have left
                for at in range(0, len(data), 1 if service.drip else len(data) or 1):
                    self.wfile.write(data[at : at + 1] if service.drip else data)
                    time.sleep(service.drip or 0)

        do_GET = do_POST  # noqa: N815 - the name of the base class

        def do_CONNECT(self) -> None:
            service.requests.append(Request(self.path, dict(self.headers), {}))
            self.send_response(200)
            self.end_headers()
            host, _, port = self.path.partition(":")
            with socket.create_connection((host, int(port))) as target:
                back = threading.Thread(target=_forward, args=(target, self.connection))
                back.start()
                _forward(self.connection, target)
                back.join()

        def date_time_string(self, timestamp: float | None = None) -> str:
            return service.date if service.date is not None else super().date_time_string(timestamp)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if clients_of is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients_of)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    service.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
