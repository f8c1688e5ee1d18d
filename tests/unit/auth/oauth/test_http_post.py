"""One HTTP request: its limits, and proxies."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from spark_group_source.auth.tls import Tls
from spark_group_source.errors import BrokerUnavailable
from tests.certificates import Authority
from tests.unit.auth.oauth.clients import fetched
from tests.unit.auth.oauth.token_service import TokenService, running
from tests.unit.wire_options import LONG


def test_a_response_that_is_not_whole_in_time_is_retried(service: TokenService) -> None:
    service.drip = 0.05
    with pytest.raises(BrokerUnavailable, match=r"no whole response within 0\.3 s"):
        fetched(service.client(read_timeout=0.3))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/t"
        with pytest.raises(BrokerUnavailable, match="no whole response|timed out"):
            fetched(service.client(endpoint=url, read_timeout=0.3))
    service.drip = None
    service.headers = {"Content-Length": "5000", "Connection": "close"}
    with pytest.raises(BrokerUnavailable, match="cannot be reached: IncompleteRead"):
        fetched(service.client(read_timeout=2.0))


@pytest.mark.parametrize(
    "endless",
    [
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-Trailer: 1\r\n"),
    ],
    ids=["interim responses", "trailers"],
)
def test_an_endpoint_that_answers_for_ever_is_given_up(endless: tuple[str, str]) -> None:
    def flood() -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(endless[0].encode())
            while True:
                connection.sendall(endless[1].encode() * 1000)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=flood, daemon=True).start()
        client = TokenService(url=f"http://127.0.0.1:{server.getsockname()[1]}").client(read_timeout=LONG)
        with pytest.raises(BrokerUnavailable, match="the server sent more than 2097152 bytes"):
            fetched(client, 20.0)


def test_requests_go_through_the_proxy_of_the_environment_which_sees_no_secret_of_https(
    service: TokenService, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, service.url)
    # The service below stands for one on another machine.
    monkeypatch.setattr("spark_group_source.auth.oauth.http_post.is_local", lambda url: False)
    fetched(service.client(endpoint="http://login.example.com/t"))
    with running(authority.issue("127.0.0.1", file="server.pem")) as secure:
        assert fetched(secure.client(tls=Tls(ca_file=str(authority.file), in_jaas_config=True)))
        assert "Authorization" in secure.requests[0].headers
    plain, tunnel = service.requests
    assert (plain.path, tunnel.path) == ("http://login.example.com/t", secure.url.removeprefix("https://"))
    assert "authorization" not in map(str.lower, tunnel.headers)


def test_an_endpoint_on_this_machine_is_asked_without_a_proxy(
    service: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert fetched(service.client())
        assert fetched(service.client(endpoint=service.url.replace("127.0.0.1", "localhost") + "/t"))
        assert not proxy.requests
    assert len(service.requests) == 2
