"""Tokens of a token endpoint: what is sent, how tokens are kept and renewed, and the error of everything that goes
wrong."""

from __future__ import annotations

import base64
import dataclasses
import email.utils
import itertools
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.text import Secret
from spark_group_source.wire import oauth
from spark_group_source.wire.settings import Sasl, Tls, WireOptions
from spark_group_source.wire.tokens import (
    ClientCredentials,
    ExportedToken,
    FunctionTokens,
    RefreshWindow,
    export_token,
    import_token,
)
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.certificates import Authority
from tests.unit.wire.token_service import SECRET, TokenService, jwt, running, token_answer
from tests.waiting import eventually

LONG = 60.0


@pytest.fixture
def service() -> Iterator[TokenService]:
    with running() as started:
        yield started


def fetched(client: ClientCredentials, seconds: float = LONG) -> str:
    return client.fetch(Deadline.after(seconds)).text


def test_the_request_is_that_of_javas_client(service: TokenService) -> None:
    client = service.client(scope="read write", extensions=(("logicalCluster", "lkc-1"),))
    token = client.fetch(Deadline.after(LONG))
    assert token.text.count(".") == 2
    assert token.extensions == {"logicalCluster": "lkc-1"}
    (request,) = service.requests
    assert request.form == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert request.credentials == f"orders:{SECRET}"
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.headers["Accept"] == "application/json"


def test_id_and_secret_are_encoded_only_on_request(service: TokenService) -> None:
    fetched(service.client(encode_header=True))
    assert service.requests[0].credentials == "orders:s3cret%26%2F%3D%C3%A4"
    assert service.requests[0].form == {"grant_type": ["client_credentials"]}


def test_one_request_serves_all_connections_of_a_process(service: TokenService) -> None:
    service.answer = lambda: (time.sleep(0.3), (200, token_answer()))[1]  # type: ignore[func-returns-value]
    client = service.client()
    copies = [pickle.loads(pickle.dumps(client)) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        tokens = set(pool.map(fetched, copies))
    assert len(tokens) == 1
    assert len(service.requests) == 1
    assert fetched(client) in tokens
    fetched(service.client())
    assert len(service.requests) == 2


def numbered(lifetime: float) -> Callable[[], tuple[int, Any]]:
    """Answers with another token each time."""
    numbers = itertools.count()
    return lambda: (200, {"access_token": jwt(None, number=next(numbers)), "expires_in": lifetime})


def test_a_token_is_renewed_before_its_end_while_the_old_one_is_used(service: TokenService) -> None:
    service.answer = answer = numbered(10.0)
    client = service.client(window=RefreshWindow(0.5, 0.0))
    first = fetched(client)
    slow = threading.Event()
    service.answer = lambda: answer() if slow.wait(LONG) else (500, "")
    eventually(lambda: len(service.requests) == 2)
    # A fetch would wait for the renewal, which has no answer yet, if it did not use the old token.
    assert fetched(client, 0.2) == first
    slow.set()
    eventually(lambda: fetched(client) != first)
    assert len(service.requests) == 2


def test_a_process_without_new_connections_stops_renewing(
    service: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "IDLE_TIMEOUT", 1.0)
    service.answer = numbered(2.0)
    client = service.client(window=RefreshWindow(0.5, 0.0))
    first = fetched(client)
    time.sleep(5.0)
    assert len(service.requests) <= 2
    assert fetched(client) != first


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            (401, {"error": "invalid_client", "error_description": f"no {SECRET} here"}),
            AuthenticationFailed,
            r"HTTP status 401 \(invalid_client: no \.\.\. here\)\. Check 'kafka.*client.id'.*header.urlencode",
        ),
        ((400, {"error": "invalid_scope"}), AuthenticationFailed, r"\(invalid_scope\)\. Check 'kafka.*scope'"),
        ((400, {"error": "unauthorized_client"}), AuthenticationFailed, "Allow the grant client_credentials"),
        ((400, {"errorCode": "E1", "errorSummary": "no"}), AuthenticationFailed, r"400 \(E1: no\)"),
        ((403, "<html>no</html>"), AuthenticationFailed, r"HTTP status 403\. Check 'kafka.*client.id'"),
        ((404, "not found"), AuthenticationFailed, r"404\. Check 'kafka.sasl.oauthbearer.token.endpoint.url'"),
        ((302, ""), AuthenticationFailed, r"302\. Check 'kafka.sasl.oauthbearer.token.endpoint.url'"),
        ((501, ""), AuthenticationFailed, "501"),
        ((500, "oops"), BrokerUnavailable, "HTTP status 500"),
        ((503, {"error": "temporarily_unavailable"}), BrokerUnavailable, r"503 \(temporarily_unavailable\)"),
        ((429, {"error": "slow_down"}), BrokerUnavailable, "429"),
        ((200, "<html>welcome</html>"), AuthenticationFailed, "not JSON.*token.endpoint.url"),
        ((200, ""), AuthenticationFailed, "not JSON"),
        ((200, b"\xff\xfe\x00"), AuthenticationFailed, "not JSON"),
        ((200, ["access_token"]), AuthenticationFailed, "without an access_token"),
        ((200, {"token": jwt()}), AuthenticationFailed, "without an access_token"),
        ((200, {"access_token": 5}), AuthenticationFailed, "without an access_token"),
        ((200, {"access_token": "a\x01b", "expires_in": 60}), AuthenticationFailed, "characters that no token"),
        ((200, {"access_token": "opaque"}), AuthenticationFailed, "is not a JWT, and the answer has no expires_in"),
        ((200, {"access_token": "a.b.c"}), AuthenticationFailed, "is not a JWT"),
        ((200, {"access_token": jwt(None)}), AuthenticationFailed, "has no claim exp"),
        ((200, {"access_token": jwt(None, exp="soon")}), AuthenticationFailed, "has no claim exp"),
        ((200, {"access_token": jwt(None, exp=int(time.time()) - 3600)}), AuthenticationFailed, r"expired \d+ s ago\."),
        ((200, {"access_token": jwt(86_400), "expires_in": 0}), AuthenticationFailed, "expired 0 s ago"),
        ((200, {"access_token": jwt(86_400), "expires_in": 0.5}), AuthenticationFailed, "valid for 0.5 s only"),
    ],
)
def test_every_bad_answer_is_an_error_that_says_what_to_change(
    service: TokenService, answer: tuple[int, Any], kind: type[GroupSourceError], says: str
) -> None:
    service.answer = lambda: answer
    service.headers = {"Location": f"{service.url}/elsewhere"}
    with pytest.raises(GroupSourceError, match=says) as raised:
        fetched(service.client())
    assert type(raised.value) is kind
    assert service.url in str(raised.value)
    basic = base64.b64encode(f"orders:{SECRET}".encode()).decode()
    for secret in (SECRET, "s3cret", basic, "eyJ"):
        assert secret not in str(raised.value)
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    ("answer", "lifetime"),
    [
        (lambda: {"access_token": jwt(300)}, 300),
        (lambda: {"access_token": jwt(300), "expires_in": 60}, 60),
        (lambda: {"access_token": jwt(60), "expires_in": 300}, 60),
        (lambda: {"access_token": "opaque", "expires_in": "120"}, 120),
        (lambda: {"id_token": jwt(100)}, 100),
        (lambda: {"access_token": jwt(1e12)}, 30 * 86400),
    ],
)
def test_the_lifetime_is_that_of_the_token_or_of_the_answer(
    service: TokenService, answer: Callable[[], Any], lifetime: float, caplog: pytest.LogCaptureFixture
) -> None:
    service.answer = lambda: (200, answer())
    with caplog.at_level(logging.INFO):
        fetched(service.client())
    (line,) = [each.getMessage() for each in caplog.records if "issued a token" in each.getMessage()]
    assert abs(float(line.split()[-2]) - lifetime) <= 2
    assert "eyJ" not in line


def test_a_wrong_clock_of_this_machine_does_not_shorten_a_token(service: TokenService) -> None:
    hour = 3600.0
    service.date = email.utils.formatdate(time.time() - hour, usegmt=True)
    service.answer = lambda: (200, {"access_token": jwt(300 - hour)})
    assert fetched(service.client())
    service.answer = lambda: (200, {"access_token": jwt(-300 - hour)})
    with pytest.raises(AuthenticationFailed, match=r"expired 300 s ago; the clock of this machine is 3\d+ s ahead of"):
        fetched(service.client())


def test_the_log_names_the_principal_and_the_scope_by_their_claims(
    service: TokenService, caplog: pytest.LogCaptureFixture
) -> None:
    service.answer = lambda: (200, {"access_token": jwt(300, azp="app", scp=["a", "b"])})
    with caplog.at_level(logging.INFO):
        fetched(service.client(subject_claim="azp", scope_claim="scp"))
    assert "of 'app' with scope 'a b' for" in caplog.text


def test_an_unreachable_endpoint_is_retried_with_backoff_and_not_by_every_connection(service: TokenService) -> None:
    service.answer = lambda: (503, "")
    client = service.client(retry_backoff=0.2, retry_backoff_max=0.4)
    began = time.monotonic()
    errors = 0
    while time.monotonic() - began < 2.0:
        with pytest.raises(BrokerUnavailable, match="503"):
            fetched(client)
        errors += 1
        time.sleep(0.005)
    assert errors > 20
    assert 3 <= len(service.requests) <= 9
    service.answer = lambda: (200, token_answer())
    eventually(lambda: len(service.requests) >= 3)


def test_refused_connections_name_the_endpoint(service: TokenService) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(BrokerUnavailable, match=rf"http://127.0.0.1:{port}/t cannot be reached: .*refused"):
        fetched(service.client(endpoint=f"http://127.0.0.1:{port}/t"))
    with pytest.raises(BrokerUnavailable, match=r"no\.such\.host\.invalid/t cannot be reached"):
        fetched(service.client(endpoint="http://no.such.host.invalid/t"))


def test_a_silent_or_dripping_endpoint_ends_at_the_read_timeout(service: TokenService) -> None:
    service.drip = 0.05
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=r"no whole response within 0\.5 s"):
        fetched(service.client(read_timeout=0.5))
    assert time.monotonic() - began < 10
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/t"
        with pytest.raises(BrokerUnavailable, match="no whole response|timed out"):
            fetched(service.client(endpoint=url, read_timeout=0.5))


def test_a_wait_ends_at_the_deadline_and_at_the_end_of_the_query(service: TokenService) -> None:
    release = threading.Event()
    service.answer = lambda: (200, token_answer()) if release.wait(LONG) else (500, "")
    client = service.client()
    with pytest.raises(DeadlineExceeded, match="did not answer in time"):
        fetched(client, 0.2)
    wakeup = WakeupPipe()
    threading.Timer(0.2, wakeup.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        client.fetch(Deadline.after(LONG, wakeup=wakeup))
    assert time.monotonic() - began < LONG / 2
    wakeup.close()
    release.set()
    assert fetched(client)
    assert len(service.requests) == 1


def test_a_failed_renewal_leaves_the_old_token_and_warns_with_a_count(
    service: TokenService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "WARN_EVERY", 0.3)
    service.answer = numbered(20.0)
    # Renewed after a second: that leaves time to fail and to work again.
    client = service.client(retry_backoff=0.05, retry_backoff_max=0.2, window=RefreshWindow(0.05, 0.0))
    good = service.answer
    first = fetched(client)
    service.answer = lambda: (401, {"error": "invalid_client"})
    eventually(lambda: "requests for a new token failed in a row" in caplog.text)
    assert fetched(client) == first
    assert "1 requests for a new token failed in a row; the old token is valid for" in caplog.text
    assert "retrying: [AUTHENTICATION_FAILED]" in caplog.text
    requests = len(service.requests)
    eventually(lambda: len(service.requests) > requests + 1)
    service.answer = good
    with caplog.at_level(logging.INFO):
        eventually(lambda: "answers again after" in caplog.text)
    assert fetched(client) != first


def test_an_answer_that_is_not_oauths_is_final_only_if_the_endpoint_never_worked(service: TokenService) -> None:
    service.answer = lambda: (200, {"access_token": "opaque", "expires_in": 1.2})
    client = service.client(retry_backoff_max=0.05)
    fetched(client)
    unusable: list[tuple[int, Any]] = [(404, ""), (200, "<html>maintenance</html>"), (200, {})]
    for answer in unusable:
        service.answer = lambda answer=answer: answer  # type: ignore[misc]
        time.sleep(1.5)
        with pytest.raises(BrokerUnavailable):
            fetched(client)
    service.answer = lambda: (401, {"error": "invalid_client"})
    time.sleep(0.2)
    with pytest.raises(AuthenticationFailed):
        fetched(client)


def test_an_answer_that_breaks_off_is_retried(service: TokenService) -> None:
    service.headers = {"Content-Length": "5000", "Connection": "close"}
    with pytest.raises(BrokerUnavailable, match="cannot be reached: IncompleteRead"):
        fetched(service.client(read_timeout=2.0))


def test_a_token_that_a_broker_rejected_is_replaced_but_not_at_every_rejection(service: TokenService) -> None:
    service.answer = numbered(300.0)
    client = service.client(retry_backoff_max=0.5)
    first = client.fetch(Deadline.after(LONG))
    client.record_rejection(first)
    assert fetched(client) == first.text
    eventually(lambda: fetched(client) != first.text)
    client.record_rejection(first)
    time.sleep(0.7)
    assert len(service.requests) == 2
    began = time.monotonic()
    while time.monotonic() - began < 1.2:
        client.record_rejection(client.fetch(Deadline.after(LONG)))
        time.sleep(0.01)
    assert len(service.requests) <= 5


def in_another_process(client: ClientCredentials) -> WireOptions:
    """Settings with the same client, whose token this process does not keep yet."""
    again = dataclasses.replace(client, subject_claim=f"sub{time.monotonic_ns()}")
    return WireOptions((), "test", sasl=Sasl("OAUTHBEARER", token_provider=again))


def fetched_with(options: WireOptions) -> str:
    assert options.sasl is not None
    assert options.sasl.token_provider is not None
    return options.sasl.token_provider.fetch(Deadline.after(LONG)).text


def test_a_task_uses_the_drivers_token_and_renews_it_only_if_the_driver_does_not(service: TokenService) -> None:
    service.answer = answer = numbered(6.0)
    client = service.client(window=RefreshWindow(0.5, 0.0))
    driver = WireOptions((), "test", sasl=Sasl("OAUTHBEARER", token_provider=client))
    assert export_token(driver) is None
    token = fetched(client)
    service.answer = lambda: (503, "")
    shared = pickle.loads(pickle.dumps(export_token(driver)))
    assert token not in repr(shared)
    task = in_another_process(client)
    import_token(task, shared)
    assert fetched_with(task) == token
    service.answer = answer
    eventually(lambda: fetched(client) != token)
    import_token(task, export_token(driver))
    assert fetched_with(task) == fetched(client)
    # An older token does not replace it.
    import_token(task, shared)
    assert fetched_with(task) == fetched(client)
    requests = len(service.requests)
    late = in_another_process(client)
    import_token(late, shared)
    eventually(lambda: fetched_with(late) not in (token, fetched(client)))
    assert len(service.requests) > requests


def test_only_tokens_of_an_endpoint_are_shared() -> None:
    assert export_token(WireOptions((), "test")) is None
    options = WireOptions((), "test", sasl=Sasl("OAUTHBEARER", token_provider=FunctionTokens("json:loads")))
    assert export_token(options) is None
    import_token(options, ExportedToken(Secret("x"), time.time() + 60, time.time() + 30))


def test_the_certificate_of_the_endpoint_must_be_trusted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    other = Authority(tmp_path, "other")
    with running(authority.issue("127.0.0.1", file="server.pem")) as service:
        assert fetched(service.client(tls=Tls(ca_file=str(authority.file))))
        for tls in (Tls(in_login_line=True), Tls(ca_file=str(other.file), in_login_line=True)):
            with pytest.raises(AuthenticationFailed, match=r"client rejected: .*ssl\.truststore\.location.*jaas"):
                fetched(service.client(tls=tls))
        with pytest.raises(
            AuthenticationFailed, match="'ssl.truststore.location' in 'kafka.sasl.jaas.config' cannot be read"
        ) as raised:
            fetched(service.client(tls=Tls(ca_file="/no/such.pem", in_login_line=True)))
        assert "kafka.ssl" not in str(raised.value)
        by_name = service.url.replace("127.0.0.1", "localhost") + "/t"
        with pytest.raises(AuthenticationFailed, match="localhost"):
            fetched(service.client(endpoint=by_name, tls=Tls(ca_file=str(authority.file))))
        assert len(service.requests) == 1


def test_https_to_a_service_without_tls_names_the_option(service: TokenService) -> None:
    url = service.url.replace("http:", "https:") + "/t"
    with pytest.raises(AuthenticationFailed, match=r"does not use TLS on this port .*token\.endpoint\.url"):
        fetched(service.client(endpoint=url, tls=Tls()))


def test_requests_go_through_the_proxy_of_the_environment(
    service: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", service.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    fetched(service.client(endpoint="http://login.example.com/t"))
    assert service.requests[0].path == "http://login.example.com/t"


def test_a_forked_child_asks_for_its_own_token(service: TokenService) -> None:
    client = service.client()
    fetched(client)
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write_end, fetched(client).encode()[:1])
        finally:
            os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 1) == b"e"
    os.waitpid(child, 0)
    os.close(read_end)
    assert len(service.requests) == 2


def test_a_client_and_its_errors_show_no_secret(service: TokenService) -> None:
    client = service.client()
    assert SECRET not in repr(client)
    token = client.fetch(Deadline.after(LONG))
    assert token.text not in repr(token)
