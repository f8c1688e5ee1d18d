"""Tokens of a token endpoint: what is sent, how tokens are kept and renewed, and the errors."""

from __future__ import annotations

import base64
import dataclasses
import email.utils
import itertools
import logging
import multiprocessing
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from spark_group_source.auth.oauth.cache import IDLE_TIMEOUT, TokenCache
from spark_group_source.auth.oauth.client import ClientCredentials, token_cache_of
from spark_group_source.auth.oauth.token import IssuedToken, RefreshWindow
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.tls import Tls
from spark_group_source.auth.tokens import FunctionTokens
from spark_group_source.clock import WARN_EVERY, Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.text import Secret
from spark_group_source.wire.security import ExportedToken
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.certificates import Authority
from tests.unit.auth.token_service import SECRET, TokenService, jwt, running, token_answer
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually

KEY = "k3y-of-the-gateway"
HALF = RefreshWindow(0.5, 0.0)
"""Renews a token in the middle of its lifetime."""


@pytest.fixture
def service() -> Iterator[TokenService]:
    with running() as started:
        yield started


def fetched(client: ClientCredentials, seconds: float = LONG) -> str:
    return client.fetch(after(seconds)).text


def clocked(service: TokenService, lifetime: float, **settings: Any) -> tuple[ClientCredentials, TokenCache, Hand]:
    """A client that gets another token each time, when the clock of the test says so."""
    numbers = itertools.count()
    service.answer = lambda: (200, {"access_token": jwt(None, number=next(numbers)), "expires_in": lifetime})
    client, hand = service.client(**settings), Hand()
    cache = token_cache_of(client)
    cache._clock = hand
    return client, cache, hand


def turn(hand: Hand, cache: TokenCache, seconds: float) -> None:
    """Turns the clock, and leaves the cache's thread time for a request that should not come."""
    hand.now += seconds
    with cache._condition:
        cache._condition.notify_all()
    time.sleep(0.02)


def test_the_request_is_that_of_javas_client(service: TokenService) -> None:
    client = service.client(scope="read write", extensions=(("logicalCluster", "lkc-1"),))
    token = client.fetch(after())
    assert (token.text.count("."), token.extensions) == (2, {"logicalCluster": "lkc-1"})
    assert SECRET not in repr(client)
    assert token.text not in repr(token)
    (request,) = service.requests
    assert request.form == {"grant_type": ["client_credentials"], "scope": ["read write"]}
    assert request.credentials == f"orders:{SECRET}"
    assert request.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert request.headers["Accept"] == "application/json"
    fetched(service.client(encode_header=True))
    assert service.requests[1].credentials == "orders:s3cret%26%2F%3D%C3%A4"
    assert service.requests[1].form == {"grant_type": ["client_credentials"]}


def test_one_request_serves_all_connections_of_a_process(service: TokenService) -> None:
    service.answer = lambda: (time.sleep(0.3), (200, token_answer()))[1]  # type: ignore[func-returns-value]
    client = service.client()
    copies = [pickle.loads(pickle.dumps(client)) for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        texts = set(pool.map(fetched, copies))
    assert texts == {fetched(client)}
    assert len(service.requests) == 1
    fetched(service.client())
    assert len(service.requests) == 2


def test_a_token_is_renewed_before_its_end_while_the_old_one_is_used(service: TokenService) -> None:
    slow = threading.Event()
    client, cache, hand = clocked(service, 10.0, window=HALF)
    first, answer = fetched(client), service.answer
    service.answer = lambda: answer() if slow.wait(LONG) else (500, "")
    turn(hand, cache, 4.9)
    assert fetched(client) == first
    assert len(service.requests) == 1
    turn(hand, cache, 0.2)
    eventually(lambda: len(service.requests) == 2)
    # A fetch would wait for the renewal, which has no answer yet, if it did not use the old token.
    assert fetched(client, 0.2) == first
    slow.set()
    eventually(lambda: fetched(client) != first)
    assert len(service.requests) == 2


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
        ((404, "not found"), AuthenticationFailed, r"404\. Check 'kafka.sasl.oauthbearer.token.endpoint.url'"),
        ((302, ""), AuthenticationFailed, r"302\. Check 'kafka.sasl.oauthbearer.token.endpoint.url'"),
        ((501, ""), AuthenticationFailed, "501"),
        ((503, {"error": "temporarily_unavailable"}), BrokerUnavailable, r"503 \(temporarily_unavailable\)"),
        ((429, {"error": "slow_down"}), BrokerUnavailable, "429"),
        ((200, "<html>welcome</html>"), AuthenticationFailed, "not a JSON object.*token.endpoint.url"),
        ((200, b"\xff\xfe\x00"), AuthenticationFailed, "not a JSON object"),
        ((200, ["access_token"]), AuthenticationFailed, "not a JSON object"),
        ((200, {"access_token": 5}), AuthenticationFailed, "without an access_token"),
        ((200, {"access_token": "a\x01b", "expires_in": 60}), AuthenticationFailed, "characters that no token"),
        ((200, {"access_token": "opaque"}), AuthenticationFailed, "is not a JWT, and the answer has no expires_in"),
        ((200, {"access_token": "a.b.c"}), AuthenticationFailed, "is not a JWT"),
        ((200, {"access_token": jwt(None, exp="soon")}), AuthenticationFailed, "has no claim exp"),
        ((200, {"access_token": jwt(None, exp=int(time.time()) - 3600)}), AuthenticationFailed, r"expired \d+ s ago\."),
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


def test_the_lifetime_is_that_of_token_or_answer(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_group_source.auth.oauth.cache")
    for answer, lifetime in (
        ({"access_token": jwt(300), "expires_in": 60}, 60),
        ({"access_token": jwt(60), "expires_in": 300}, 60),
        ({"access_token": "opaque", "expires_in": "120"}, 120),
        ({"id_token": jwt(100)}, 100),
        ({"access_token": jwt(1e12)}, 30 * 86400),
    ):
        service.answer = lambda answer=answer: (200, answer)  # type: ignore[misc]
        fetched(service.client())
        assert "issued a token" in caplog.messages[-1]
        assert abs(float(caplog.messages[-1].split()[-2]) - lifetime) <= 2
    assert "eyJ" not in caplog.text


def test_a_wrong_clock_of_this_machine_does_not_shorten_a_token(service: TokenService) -> None:
    hour = 3600.0
    service.date = email.utils.formatdate(time.time() - hour, usegmt=True)
    service.answer = lambda: (200, {"access_token": jwt(300 - hour)})
    assert fetched(service.client())
    service.answer = lambda: (200, {"access_token": jwt(-300 - hour)})
    with pytest.raises(AuthenticationFailed, match=r"expired 30\d s ago, and the clock .* is 3\d+ s ahead of"):
        fetched(service.client())


def test_the_log_names_principal_and_scope_by_claims(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    service.answer = lambda: (200, {"access_token": jwt(300, azp="app", scp=["a", "b"])})
    with caplog.at_level(logging.INFO):
        fetched(service.client(subject_claim="azp", scope_claim="scp"))
    assert "of 'app' with scope 'a b' that is valid for" in caplog.text


def test_an_unreachable_endpoint_is_retried_with_backoff_and_not_by_every_connection(service: TokenService) -> None:
    client, _, hand = clocked(service, 300.0, retry_backoff=1.0, retry_backoff_max=2.0)
    answer, service.answer = service.answer, lambda: (503, "")
    for requests, backoff in enumerate((1.0, 2.0, 2.0), 1):
        for part in (0.0, 0.79 * backoff):
            hand.now += part
            with pytest.raises(BrokerUnavailable, match="503"):
                fetched(client)
            assert len(service.requests) == requests
        hand.now += 0.42 * backoff
    service.answer = answer
    assert fetched(client)


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


def test_the_client_shows_neither_secret_nor_key_nor_the_password_of_its_url() -> None:
    client = ClientCredentials(f"https://me:pass@host/token?key={KEY}", "orders", Secret(SECRET))
    assert repr(client) == "ClientCredentials('https://host/token', client_id='orders')"


def test_a_wait_ends_at_the_deadline_and_at_the_end_of_the_query(service: TokenService, wakeup: WakeupPipe) -> None:
    release = threading.Event()
    service.answer = lambda: (200, token_answer()) if release.wait(LONG) else (500, "")
    client = service.client()
    with pytest.raises(DeadlineExceeded, match="did not answer in time"):
        fetched(client, 0.2)
    threading.Timer(0.2, wakeup.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        client.fetch(Deadline.after(LONG, wakeup=wakeup))
    assert time.monotonic() - began < LONG / 2
    release.set()
    assert fetched(client)
    assert len(service.requests) == 1


def test_a_failed_renewal_warns_and_keeps_the_token(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    client, cache, hand = clocked(service, 1000.0, retry_backoff=1.0, retry_backoff_max=1.0, window=HALF)
    first, good = fetched(client), service.answer
    service.answer = lambda: (401, {"error": "invalid_client"})
    warning = "requests for a new token failed in a row, retrying before the old token expires in"
    turn(hand, cache, 500.0)
    eventually(lambda: f"1 {warning} 499 s: [AUTHENTICATION_FAILED]" in caplog.text)
    turn(hand, cache, 2.0)
    eventually(lambda: cache._failures == 2)
    assert fetched(client) == first
    assert caplog.text.count(warning) == 1
    turn(hand, cache, WARN_EVERY)
    eventually(lambda: f"3 {warning}" in caplog.text)
    service.answer = good
    with caplog.at_level(logging.INFO):
        turn(hand, cache, 2.0)
        eventually(lambda: "answers again after 3 failed requests" in caplog.text)
    assert fetched(client) != first


def test_an_answer_that_is_not_oauths_is_final_only_if_the_endpoint_never_worked(service: TokenService) -> None:
    client, cache, hand = clocked(service, 10.0)
    fetched(client)
    not_oauths: list[tuple[int, Any]] = [(404, ""), (200, "<html>maintenance</html>"), (200, {})]
    for answer in (*not_oauths, (401, {"error": "invalid_client"})):
        service.answer = lambda answer=answer: answer  # type: ignore[misc]
        turn(hand, cache, 100.0)
        with pytest.raises(BrokerUnavailable if answer in not_oauths else AuthenticationFailed):
            fetched(client)


def test_a_token_that_a_broker_rejected_is_replaced_but_not_at_every_rejection(service: TokenService) -> None:
    client, cache, hand = clocked(service, 300.0, retry_backoff_max=5.0)
    first = client.fetch(after())
    client.record_rejection(first)
    turn(hand, cache, 4.9)
    assert fetched(client) == first.text
    turn(hand, cache, 0.2)
    eventually(lambda: fetched(client) != first.text)
    client.record_rejection(first)
    turn(hand, cache, 6.0)
    assert len(service.requests) == 2, "the rejected token is not the kept one"
    second = client.fetch(after())
    for _ in range(10):
        client.record_rejection(second)
    eventually(lambda: fetched(client) != second.text)
    for _ in range(10):
        client.record_rejection(client.fetch(after()))
        turn(hand, cache, 0.4)
    assert len(service.requests) == 3


def in_another_process(client: ClientCredentials, hand: Hand) -> tuple[Sasl, TokenCache]:
    """Settings with the same client, whose token this process does not keep yet."""
    again = dataclasses.replace(client, subject_claim=f"sub{time.monotonic_ns()}")
    cache = token_cache_of(again)
    cache._clock = hand
    return Sasl("OAUTHBEARER", token_provider=again), cache


def test_a_task_uses_the_drivers_token_and_renews_it_only_if_the_driver_does_not(
    service: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, at_driver, hand = clocked(service, 100.0, window=HALF)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + hand.now)
    driver = Sasl("OAUTHBEARER", token_provider=client)
    assert driver.export_token() is None
    token = fetched(client)
    shared = pickle.loads(pickle.dumps(driver.export_token()))
    assert token not in repr(shared)
    task, at_task = in_another_process(client, hand)
    task.import_token(shared)
    assert at_task.fetch(after()) == token
    turn(hand, at_driver, 51.0)
    eventually(lambda: fetched(client) != token)
    # The task's own renewal would be the third request.
    assert at_task.fetch(after()) == token
    renewed = driver.export_token()
    assert renewed is not None
    task.import_token(renewed)
    assert at_task.fetch(after()) == fetched(client)
    task.import_token(shared)
    assert at_task.fetch(after()) == fetched(client), "an older token does not replace it"
    _, late = in_another_process(client, hand)
    late.import_(shared)
    hand.now += 25.0
    assert len(service.requests) == 2
    eventually(lambda: late.fetch(after()) not in (token, fetched(client)))
    assert len(service.requests) == 3


def test_only_tokens_of_an_endpoint_are_shared() -> None:
    sign_in = Sasl("OAUTHBEARER", token_provider=FunctionTokens("json:loads"))
    assert sign_in.export_token() is None
    sign_in.import_token(ExportedToken(Secret("x"), time.time() + 60, time.time() + 30))


@pytest.fixture
def issue() -> Mock:
    """Issues tokens of a thousand seconds."""
    issued = Mock()
    issued.side_effect = lambda worked_before: IssuedToken(f"token {issued.call_count}", 1000.0)
    return issued


def test_a_token_that_only_tasks_use_is_renewed(issue: Mock) -> None:
    hand = Hand()
    cache = TokenCache(issue, "service", HALF, (0.01, 0.02), hand)
    assert cache.export() is None
    issue.assert_not_called()
    cache.fetch(after())

    def shared() -> str | None:
        exported = cache.export()
        return None if exported is None else exported.text.text

    for number in range(2, 12):
        turn(hand, cache, 501.0)
        eventually(lambda: shared() == f"token {number}")  # noqa: B023 - it ends with this turn
    # A pause in which the token ends: the next batch starts the renewals again.
    turn(hand, cache, IDLE_TIMEOUT)
    eventually(lambda: not cache._running)
    eventually(lambda: shared() == "token 12")


def test_a_service_that_is_down_gets_no_request_for_each_batch(issue: Mock) -> None:
    hand = Hand()
    cache = TokenCache(issue, "service", HALF, (60.0, 60.0), hand)
    cache.fetch(after())
    issue.side_effect = BrokerUnavailable("The service is down.")
    turn(hand, cache, 999.5)
    eventually(lambda: not cache._running)
    for _ in range(40):
        assert cache.export() is None
        hand.now += 1.0
    assert issue.call_count <= 2


def test_a_thread_that_cannot_start_does_not_end_the_requests_for_good(issue: Mock) -> None:
    cache = TokenCache(issue, "service", RefreshWindow(), (0.01, 0.02))
    no_thread = patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread"))
    with no_thread, pytest.raises(BrokerUnavailable, match=r"can't start new thread.*limit of threads"):
        cache.fetch(after())
    assert cache.fetch(after()) == "token 1"


def test_a_lifetime_counts_from_the_request_and_not_from_a_late_answer() -> None:
    hand = Hand()
    ended = threading.Event()

    def slow(worked_before: bool) -> IssuedToken:
        if hand.now:  # the renewal, which must not come before the end of the test
            ended.wait(LONG)
        hand.now += 8.0
        return IssuedToken("token", 10.0)

    cache = TokenCache(slow, "service", RefreshWindow(), (60.0, 60.0), hand)
    assert cache.fetch(after()) == "token"
    hand.now += 1.5
    assert cache.export() is None
    ended.set()


EXPIRED = datetime(2020, 1, 1, tzinfo=timezone.utc)
UNTRUSTED = r"client rejected: .*ssl\.truststore\.location.*jaas"
NO_FILE = r"'ssl\.truststore\.location' in 'kafka\.sasl\.jaas\.config' cannot be read"
OTHER_HOST = r"mismatch.*Use a host name of the certificate in '.*endpoint\.url', or .*'ssl\.endpoint\.ident"


@pytest.mark.parametrize(
    ("ca", "host", "ends", "says"),
    [
        (None, "127.0.0.1", None, UNTRUSTED),
        ("other.pem", "127.0.0.1", None, UNTRUSTED),
        ("/no/such.pem", "127.0.0.1", None, NO_FILE),
        ("ca.pem", "127.0.0.1", EXPIRED, "certificate has expired. Renew the certificate"),
        ("ca.pem", "other", None, OTHER_HOST),
    ],
    ids=["not trusted", "of another authority", "no file", "expired", "of another host"],
)
def test_the_certificate_of_the_endpoint_must_be_trusted_and_the_error_has_reason_and_action(
    tmp_path: Path, ca: str | None, host: str, ends: datetime | None, says: str
) -> None:
    Authority(tmp_path, "other")
    authority = Authority(tmp_path, "ca")
    tls = Tls(ca_file=ca and str(tmp_path / ca), in_jaas_config=True)
    rejected = pytest.raises(AuthenticationFailed, match=says)
    with running(authority.issue(host, file="server.pem", ends=ends)) as service, rejected as refused:
        fetched(service.client(tls=tls))
    assert "kafka.ssl" not in str(refused.value)
    assert ("truststore" in str(refused.value)) == ("truststore" in says)
    assert not service.requests


def test_an_endpoint_that_rejects_the_clients_certificate_is_an_error_that_names_the_keystore(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    # With TLS 1.3 the alert comes after the handshake, and the end of the connection may be faster.
    tls = Tls(ca_file=str(authority.file), versions=("TLSv1.2",), in_jaas_config=True)
    accepted = dataclasses.replace(tls, key_file=str(authority.issue("client", file="client.pem")))
    rejected = dataclasses.replace(tls, key_file=str(other.issue("client", file="other-client.pem")))
    with running(authority.issue("127.0.0.1", file="server.pem"), clients_of=authority.file) as service:
        assert fetched(service.client(tls=accepted))
        with pytest.raises(AuthenticationFailed, match=r"rejected this client's certificate \(.*CA\)") as refused:
            fetched(service.client(tls=rejected))
    assert "'ssl.keystore.location' in 'kafka.sasl.jaas.config'" in str(refused.value)


def test_https_to_a_service_without_tls_names_the_option(service: TokenService) -> None:
    url = service.url.replace("http:", "https:") + "/t"
    with pytest.raises(AuthenticationFailed, match=r"does not use TLS on this port .*token\.endpoint\.url"):
        fetched(service.client(endpoint=url, tls=Tls()))


def test_no_error_and_no_log_line_shows_the_urls_query(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    query = f"/token?subscription-key={KEY}"
    service.answer = lambda: (401, {"error": "invalid_client", "error_description": f"no rights for {KEY}"})
    for url, says in (
        (service.url, r"/token answered HTTP status 401 .*no rights for \.\.\."),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/token cannot be reached: .*refused"),
        ("http://no.such.host.invalid", r"no\.such\.host\.invalid/token cannot be reached"),
    ):
        with pytest.raises(AuthenticationFailed if url == service.url else BrokerUnavailable, match=says) as failed:
            fetched(service.client(endpoint=url + query))
        assert KEY not in "".join(traceback.format_exception(failed.value))
    service.answer = lambda: (200, token_answer())
    with caplog.at_level(logging.INFO):
        fetched(service.client(endpoint=f"{service.url}{query}&again"))
    assert f"{service.url}/token issued a token" in caplog.text
    assert KEY not in caplog.text
    assert f"subscription-key={KEY}" in service.requests[-1].path


def test_a_secret_that_leaves_the_machine_unencrypted_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("localhost:1", "127.0.0.2:1", "[::1]:1"):
        token_cache_of(TokenService(url=f"http://{host}").client())
    assert not caplog.messages
    for host in ("localhost.example.com", "127.example.com"):
        token_cache_of(TokenService(url=f"http://{host}").client())
        assert f"token endpoint http://{host}/token is not https: the client secret is sent" in caplog.messages[-1]


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


def test_a_forked_child_asks_for_its_own_token(service: TokenService) -> None:
    client = service.client()
    fetched(client)
    child = multiprocessing.get_context("fork").Process(target=fetched, args=(client,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(service.requests) == 2


def test_a_process_without_new_connections_stops_renewing(service: TokenService) -> None:
    client, cache, hand = clocked(service, 4 * IDLE_TIMEOUT, window=HALF)
    first = fetched(client)
    turn(hand, cache, 3 * IDLE_TIMEOUT)
    eventually(lambda: not cache._running)
    assert len(service.requests) == 1
    hand.now += 2 * IDLE_TIMEOUT
    assert fetched(client) != first
