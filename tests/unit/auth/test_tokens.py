"""Tokens of a file and of the user's function, and when tokens are renewed."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from spark_group_source.auth.oauth.token import RefreshWindow
from spark_group_source.auth.tokens import FileTokens, FunctionTokens, Token
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, OptionError
from tests.unit.wire_options import LONG, after

function = Mock()
"""The user's function."""

FUNCTION = FunctionTokens(f"{__name__}:function")


def test_the_file_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = FileTokens(str(file), (("logicalCluster", "lkc-1"),))
    for problem, says in ((None, "No such file"), (b" \n", "is empty"), ("tökén".encode(), "not ASCII")):
        if problem is not None:
            file.write_bytes(problem)
        with pytest.raises(BrokerUnavailable, match=f"{file}.*{says}") as raised:
            tokens.fetch(after())
        assert "on each executor" in raised.value.action
    for text in ("t0ken\n", "t1ken"):
        file.write_text(text)
        assert tokens.fetch(after()) == Token(text.strip(), {"logicalCluster": "lkc-1"})


def test_tokens_and_extensions_come_from_the_users_function() -> None:
    function.side_effect = ["t0ken\n", ("t0ken", {"logicalCluster": "lkc-1"})]
    assert FUNCTION.fetch(after()) == Token("t0ken", {})
    assert FUNCTION.fetch(after()) == Token("t0ken", {"logicalCluster": "lkc-1"})


def test_the_error_of_a_function_without_a_token_names_it() -> None:
    for result, kind, says in (
        (None, AuthenticationFailed, "returned a NoneType.*the token as text"),
        (" \n", AuthenticationFailed, "returned a str"),
        (("t0ken", "x"), AuthenticationFailed, "returned a tuple"),
        (SystemExit("no credentials"), BrokerUnavailable, "token.provider' failed: SystemExit.*no credentials"),
        (ConnectionError("down"), BrokerUnavailable, "token.provider' failed: ConnectionError.*down.*on each executor"),
    ):
        function.side_effect = [result]
        with pytest.raises(kind, match=says) as refused:
            FUNCTION.fetch(after())
        assert "t0ken" not in str(refused.value)


def test_a_function_that_cannot_be_imported_here_is_no_error_to_retry() -> None:
    with pytest.raises(OptionError, match="cannot be called on .*No module named 'no_such_module'.*--py-files"):
        FunctionTokens("no_such_module:token").fetch(after())


def test_a_token_function_that_hangs_is_not_called_again_before_it_returns() -> None:
    answered, calls = threading.Event(), itertools.count(1)
    function.side_effect = lambda: f"t0ken{next(calls)}" if answered.wait(LONG) else ""
    for _ in range(5):
        with pytest.raises(DeadlineExceeded, match=r"token\.provider' did not return in time"):
            FUNCTION.fetch(after(0.02))
    threading.Timer(0.1, answered.set).start()
    assert FUNCTION.fetch(after()).text == "t0ken1"
    assert FUNCTION.fetch(after()).text == "t0ken2"


def test_a_token_is_renewed_as_in_java() -> None:
    for window, lifetime, chance, delay in (
        (RefreshWindow(), 3600, 1.0, 3060),
        (RefreshWindow(), 1000, 0.0, 700),  # the buffer moves the renewal up
        (RefreshWindow(), 400, 0.0, 100),
        (RefreshWindow(), 300, 0.0, 240),  # minimum and buffer do not fit: both are ignored
        (RefreshWindow(1.0, 0.25, 0, 0), 100, 1.0, 100),
        (RefreshWindow(0.5, 0.0, 90, 5), 100, 0.0, 90),  # the minimum moves it back
    ):
        assert window.delay(lifetime, lambda: chance) == pytest.approx(delay)  # noqa: B023 - it is called at once
