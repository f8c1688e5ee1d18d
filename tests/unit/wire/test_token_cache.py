"""The token that a process keeps is renewed as long as anything uses it, also if only tasks do."""

from __future__ import annotations

import threading
import time

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.wire import oauth
from spark_group_source.wire.oauth import IssuedToken, TokenCache
from spark_group_source.wire.tokens import RefreshWindow
from tests.unit.hand_clock import Hand
from tests.waiting import eventually

WITHIN_S = 60.0


class Service:
    """Issues tokens of a second, unless it fails."""

    def __init__(self) -> None:
        self.requests = 0
        self.failing = False

    def __call__(self, worked_before: bool) -> IssuedToken:
        self.requests += 1
        if self.failing:
            raise BrokerUnavailable("The service is down.")
        return IssuedToken(f"token {self.requests}", 1.0)


@pytest.fixture
def service() -> Service:
    return Service()


def kept(service: Service, backoff: tuple[float, float] = (0.01, 0.02)) -> TokenCache:
    return TokenCache(service, "The service", RefreshWindow(), backoff)


def test_a_token_that_only_tasks_use_is_renewed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "IDLE_TIMEOUT", 0.5)
    token = kept(service)
    assert token.export() is None
    assert not service.requests
    token.fetch(Deadline.after(WITHIN_S))
    seen = set()

    def shared() -> int:
        if (shared_token := token.export()) is not None:
            seen.add(shared_token.text.text)
        return len(seen)

    eventually(lambda: shared() >= 4)
    # A pause in which the token ends: the next batch starts the renewals again.
    eventually(lambda: "oauth-token" not in {thread.name for thread in threading.enumerate()})
    eventually(lambda: shared() >= 5)


def test_a_service_that_is_down_gets_no_request_for_each_batch(service: Service) -> None:
    token = kept(service, (WITHIN_S, WITHIN_S))
    token.fetch(Deadline.after(WITHIN_S))
    service.failing = True
    eventually(lambda: token.export() is None)
    for _ in range(100):
        token.export()
        time.sleep(0.001)
    assert service.requests <= 2


def test_a_thread_that_cannot_start_does_not_end_the_requests_for_good(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = kept(service)

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(BrokerUnavailable, match=r"can't start new thread.*limit of threads"):
            token.fetch(Deadline.after(WITHIN_S))
    assert token.fetch(Deadline.after(WITHIN_S)) == "token 1"


def test_a_lifetime_counts_from_the_request_and_not_from_a_late_answer() -> None:
    hand = Hand()
    ended = threading.Event()

    def slow(worked_before: bool) -> IssuedToken:
        if hand.now:  # the renewal, which must not come before the end of the test
            ended.wait(WITHIN_S)
        hand.now += 8.0
        return IssuedToken("token", 10.0)

    token = TokenCache(slow, "The service", RefreshWindow(), (60.0, 60.0), hand)
    assert token.fetch(Deadline.after(WITHIN_S)) == "token"
    hand.now += 1.5
    assert token.export() is None
    ended.set()
