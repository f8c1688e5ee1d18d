"""Errors and log lines of requests to a token endpoint: what they show of the endpoint, and what of secrets."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, GroupSourceError
from spark_group_source.wire.settings import Tls
from spark_group_source.wire.tokens import token_cache_of
from tests.certificates import Authority
from tests.unit.wire.token_service import TokenService, running, token_answer
from tests.waiting import eventually

LONG = 60.0
KEY = "k3y-of-the-gateway"


@pytest.fixture
def service() -> Iterator[TokenService]:
    with running() as started:
        yield started


def test_no_error_and_no_log_line_shows_the_query_of_the_endpoints_url(
    service: TokenService, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"{service.url}/token?subscription-key={KEY}"
    service.answer = lambda: (401, {"error": "invalid_client", "error_description": f"no rights for {KEY}"})
    failures: list[GroupSourceError] = []
    with pytest.raises(
        AuthenticationFailed, match=r"/token answered HTTP status 401 .*no rights for \.\.\."
    ) as refused:
        service.client(endpoint=endpoint).fetch(Deadline.after(LONG))
    failures.append(refused.value)
    unreachable = f"http://127.0.0.1:1/token?subscription-key={KEY}"
    with pytest.raises(BrokerUnavailable, match="http://127.0.0.1:1/token cannot be reached") as lost:
        service.client(endpoint=unreachable).fetch(Deadline.after(LONG))
    failures.append(lost.value)
    service.answer = lambda: (200, token_answer())
    with caplog.at_level(logging.INFO):
        service.client(endpoint=f"{endpoint}&again").fetch(Deadline.after(LONG))
    assert f"{service.url}/token issued a token" in caplog.text
    assert KEY not in caplog.text
    for error in failures:
        assert KEY not in "".join(traceback.format_exception(error))
    assert f"subscription-key={KEY}" in service.requests[-1].path


@pytest.mark.parametrize(
    ("host", "ends", "says"),
    [
        ("127.0.0.1", datetime(2020, 1, 1, tzinfo=timezone.utc), "certificate has expired. Renew the certificate"),
        (
            "other",
            None,
            r"mismatch.*Use a host name of the certificate in '.*endpoint\.url', or .*'ssl\.endpoint\.ident",
        ),
    ],
    ids=["expired", "of another host"],
)
def test_the_error_of_a_rejected_certificate_has_reason_and_action(
    tmp_path: Path, host: str, ends: datetime | None, says: str
) -> None:
    authority = Authority(tmp_path)
    tls = Tls(ca_file=str(authority.file), in_login_line=True)
    with running(authority.issue(host, file="server.pem", ends=ends)) as service:
        with pytest.raises(
            AuthenticationFailed, match=f"has a certificate that this client rejected: .*{says}"
        ) as refused:
            service.client(tls=tls).fetch(Deadline.after(LONG))
        assert "truststore" not in str(refused.value)
        assert "kafka.ssl" not in str(refused.value)


def test_an_endpoint_that_rejects_the_clients_certificate_is_an_error_that_names_the_keystore(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    # With TLS 1.3 the alert comes after the handshake, and the end of the connection may be faster.
    tls = Tls(ca_file=str(authority.file), versions=("TLSv1.2",), in_login_line=True)
    accepted = replace(tls, key_file=str(authority.issue("client", file="client.pem")))
    rejected = replace(tls, key_file=str(other.issue("client", file="other-client.pem")))
    with running(authority.issue("127.0.0.1", file="server.pem"), clients_of=authority.file) as service:
        assert service.client(tls=accepted).fetch(Deadline.after(LONG)).text
        with pytest.raises(AuthenticationFailed, match=r"rejected this client's certificate \(.*CA\)") as refused:
            service.client(tls=rejected).fetch(Deadline.after(LONG))
    assert "'ssl.keystore.location' in 'kafka.sasl.jaas.config'" in str(refused.value)


@pytest.mark.parametrize(
    ("url", "warns"),
    [
        ("http://login.example.com/t", True),
        ("http://localhost.example.com/t", True),
        ("http://127.example.com/t", True),
        ("http://10.0.0.1/t", True),
        ("http://localhost:1/t", False),
        ("http://127.0.0.2:1/t", False),
        ("http://[::1]:1/t", False),
    ],
)
def test_a_secret_that_leaves_the_machine_unencrypted_is_warned_of(
    service: TokenService, caplog: pytest.LogCaptureFixture, url: str, warns: bool
) -> None:
    token_cache_of(service.client(endpoint=f"{url}?test={time.monotonic_ns()}"))
    assert ("the client secret is sent unencrypted" in caplog.text) == warns


@contextlib.contextmanager
def connect_proxy(*, silent: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A proxy for https, or one that never answers: yields its URL, and the heads of the requests to it."""
    heads: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(1)
            heads.append(head)
            if silent:
                client.recv(1)
                return
            host, _, port = head.split()[1].decode().partition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                up = threading.Thread(target=forward, args=(client, server))
                up.start()
                forward(server, client)
                up.join()

    with listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
        thread.join()


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the proxy for https in the environment."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return lambda url: monkeypatch.setenv("https_proxy", url)


def test_an_https_request_goes_through_the_proxy_which_sees_no_secret(
    tmp_path: Path, proxied: Callable[[str], None]
) -> None:
    authority = Authority(tmp_path)
    tls = Tls(ca_file=str(authority.file), in_login_line=True)
    with running(authority.issue("127.0.0.1", file="server.pem")) as service, connect_proxy() as (url, heads):
        proxied(url)
        assert service.client(tls=tls).fetch(Deadline.after(LONG)).text
        assert len(service.requests) == 1
        assert "Authorization" in service.requests[0].headers
    assert [head.split()[:2] for head in heads] == [[b"CONNECT", service.url.removeprefix("https://").encode()]]
    assert b"authorization" not in heads[0].lower()


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="Python 3.10 leaves the socket of a failed tunnel to the garbage collection"
)
def test_a_proxy_that_never_answers_ends_at_the_read_timeout(tmp_path: Path, proxied: Callable[[str], None]) -> None:
    tls = Tls(ca_file=str(Authority(tmp_path).file), in_login_line=True)
    with connect_proxy(silent=True) as (url, heads):
        proxied(url)
        client = TokenService().client(endpoint="https://login.example.com/t", tls=tls, read_timeout=0.5)
        with pytest.raises(BrokerUnavailable, match=r"no whole response within 0\.5 s|timed out"):
            client.fetch(Deadline.after(LONG))
        eventually(lambda: heads)
