"""When a token is renewed: the rules of Java's client (``ExpiringCredentialRefreshingLogin``)."""

from __future__ import annotations

import pytest

from spark_group_source.wire.tokens import RefreshWindow


@pytest.mark.parametrize(
    ("window", "lifetime", "chance", "delay"),
    [
        (RefreshWindow(), 3600, 0.0, 2880),
        (RefreshWindow(), 3600, 1.0, 3060),
        (RefreshWindow(), 1000, 0.0, 700),  # the buffer moves the renewal up
        (RefreshWindow(), 400, 0.0, 100),
        (RefreshWindow(), 300, 0.0, 240),  # minimum and buffer do not fit: both are ignored
        (RefreshWindow(), 10, 0.5, 8.25),
        (RefreshWindow(0.5, 0.25, 0, 0), 100, 1.0, 75),
        (RefreshWindow(1.0, 0.25, 0, 0), 100, 1.0, 100),
        (RefreshWindow(0.5, 0.0, 90, 5), 100, 0.0, 90),  # the minimum moves it back
    ],
)
def test_a_token_is_renewed_when_javas_client_renews_it(
    window: RefreshWindow, lifetime: float, chance: float, delay: float
) -> None:
    assert window.delay(lifetime, lambda: chance) == pytest.approx(delay)
