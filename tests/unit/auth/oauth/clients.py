"""OAuth clients of a test, and the clock of their tokens."""

from __future__ import annotations

import itertools
import time
from typing import Any

from spark_group_source.auth.oauth.cache import TokenCache
from spark_group_source.auth.oauth.client import ClientCredentials
from spark_group_source.auth.oauth.client_tokens import ClientTokens, token_cache_of
from spark_group_source.auth.oauth.token import RefreshWindow
from tests.unit.auth.oauth.token_service import TokenService, jwt
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after

HALF = RefreshWindow(0.5, 0.0)
"""Renews a token in the middle of its lifetime."""


def fetched(client: ClientCredentials, seconds: float = LONG) -> str:
    return ClientTokens(client).fetch(after(seconds)).text


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
