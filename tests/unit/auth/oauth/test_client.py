"""An OAuth client: its text, and the token that it gives to tasks and forked processes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import time

import pytest

from spark_group_source.auth.oauth.cache import TokenCache
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.client_tokens import ClientTokens, token_cache_of
from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.auth.tokens import FunctionTokens
from spark_group_source.text import Secret
from spark_group_source.wire.security import ExportedToken
from tests.unit.auth.oauth.clients import HALF, clocked, fetched, turn
from tests.unit.auth.oauth.token_service import SECRET, TokenService
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import after
from tests.waiting import eventually


def test_the_client_shows_neither_secret_nor_key_nor_the_password_of_its_url() -> None:
    client = ClientCredentials("https://me:pass@host/token?key=k3y-of-the-gateway", "orders", Secret(SECRET))
    assert repr(client) == "ClientCredentials('https://host/token', client_id='orders')"


def in_another_process(client: ClientCredentials, hand: Hand) -> tuple[SaslSignIn, TokenCache]:
    """Settings with the same client, whose token this process does not keep yet."""
    again = dataclasses.replace(client, subject_claim=f"sub{time.monotonic_ns()}")
    cache = token_cache_of(again)
    cache._clock = hand
    return SaslSignIn(Sasl("OAUTHBEARER", token_provider=ClientTokens(again))), cache


def test_a_task_uses_the_drivers_token_and_renews_it_only_if_the_driver_does_not(
    service: TokenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, at_driver, hand = clocked(service, 100.0, window=HALF)
    began = time.time()
    monkeypatch.setattr(time, "time", lambda: began + hand.now)
    driver = SaslSignIn(Sasl("OAUTHBEARER", token_provider=ClientTokens(client)))
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
    late.import_token(shared)
    hand.now += 25.0
    assert len(service.requests) == 2
    eventually(lambda: late.fetch(after()) not in (token, fetched(client)))
    assert len(service.requests) == 3


def test_only_tokens_of_an_endpoint_are_shared() -> None:
    sign_in = SaslSignIn(Sasl("OAUTHBEARER", token_provider=FunctionTokens("json:loads")))
    assert sign_in.export_token() is None
    sign_in.import_token(ExportedToken(Secret("x"), time.time() + 60, time.time() + 30))


def test_a_secret_that_leaves_the_machine_unencrypted_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for host in ("localhost:1", "127.0.0.2:1", "[::1]:1"):
        token_cache_of(TokenService(url=f"http://{host}").client())
    assert not caplog.messages
    for host in ("localhost.example.com", "127.example.com"):
        token_cache_of(TokenService(url=f"http://{host}").client())
        assert f"token endpoint http://{host}/token is not https: the client secret is sent" in caplog.messages[-1]


def test_a_forked_child_asks_for_its_own_token(service: TokenService) -> None:
    client = service.client()
    fetched(client)
    child = multiprocessing.get_context("fork").Process(target=fetched, args=(client,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(service.requests) == 2
