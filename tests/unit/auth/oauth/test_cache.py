"""The token that a process keeps: one for all connections, renewed before its end."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock, patch

import pytest

from spark_group_source.auth.oauth.cache import IDLE_TIMEOUT, TokenCache
from spark_group_source.auth.oauth.client_tokens import ClientTokens
from spark_group_source.auth.oauth.token import IssuedToken, RefreshWindow
from spark_group_source.clock import WARN_EVERY, Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.unit.auth.oauth.clients import HALF, clocked, fetched, turn
from tests.unit.auth.oauth.token_service import TokenService, token_answer
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually


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


def test_a_wait_ends_at_the_deadline_and_at_the_end_of_the_query(service: TokenService, wakeup: WakeupPipe) -> None:
    release = threading.Event()
    service.answer = lambda: (200, token_answer()) if release.wait(LONG) else (500, "")
    client = service.client()
    with pytest.raises(DeadlineExceeded, match="did not answer in time"):
        fetched(client, 0.2)
    threading.Timer(0.2, wakeup.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        ClientTokens(client).fetch(Deadline.after(LONG, wakeup=wakeup))
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


def test_a_token_that_a_broker_rejected_is_replaced_but_not_at_every_rejection(service: TokenService) -> None:
    client, cache, hand = clocked(service, 300.0, retry_backoff_max=5.0)
    tokens = ClientTokens(client)
    first = tokens.fetch(after())
    tokens.record_rejection(first)
    turn(hand, cache, 4.9)
    assert fetched(client) == first.text
    turn(hand, cache, 0.2)
    eventually(lambda: fetched(client) != first.text)
    tokens.record_rejection(first)
    turn(hand, cache, 6.0)
    assert len(service.requests) == 2, "the rejected token is not the kept one"
    second = tokens.fetch(after())
    for _ in range(10):
        tokens.record_rejection(second)
    eventually(lambda: fetched(client) != second.text)
    for _ in range(10):
        tokens.record_rejection(tokens.fetch(after()))
        turn(hand, cache, 0.4)
    assert len(service.requests) == 3


@pytest.fixture
def issue() -> Mock:
    """Issues tokens of a thousand seconds."""
    issued = Mock()
    issued.side_effect = lambda worked_before: IssuedToken(f"token {issued.call_count}", 1000.0)
    return issued


def test_a_token_that_only_tasks_use_is_renewed(issue: Mock) -> None:
    hand = Hand()
    cache = TokenCache(issue, "service", HALF, (0.01, 0.02), hand)
    assert cache.export_token() is None
    issue.assert_not_called()
    cache.fetch(after())

    def shared() -> str | None:
        exported = cache.export_token()
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
        assert cache.export_token() is None
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
    assert cache.export_token() is None
    ended.set()


def test_a_process_without_new_connections_stops_renewing(service: TokenService) -> None:
    client, cache, hand = clocked(service, 4 * IDLE_TIMEOUT, window=HALF)
    first = fetched(client)
    turn(hand, cache, 3 * IDLE_TIMEOUT)
    eventually(lambda: not cache._running)
    assert len(service.requests) == 1
    hand.now += 2 * IDLE_TIMEOUT
    assert fetched(client) != first
