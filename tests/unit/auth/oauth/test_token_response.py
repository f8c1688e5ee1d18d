"""Lifetime and holder of a token in the answer of a token endpoint."""

from __future__ import annotations

import email.utils
import logging
import time

import pytest

from spark_group_source.errors import AuthenticationFailed
from tests.unit.auth.oauth.clients import fetched
from tests.unit.auth.oauth.token_service import TokenService, jwt


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
    with pytest.raises(AuthenticationFailed, match=r"expired (299|30\d) s ago, and the clock .* is 3\d+ s ahead of"):
        fetched(service.client())


def test_the_log_names_principal_and_scope_by_claims(service: TokenService, caplog: pytest.LogCaptureFixture) -> None:
    service.answer = lambda: (200, {"access_token": jwt(300, azp="app", scp=["a", "b"])})
    with caplog.at_level(logging.INFO):
        fetched(service.client(subject_claim="azp", scope_claim="scp"))
    assert "of 'app' with scope 'a b' that is valid for" in caplog.text
