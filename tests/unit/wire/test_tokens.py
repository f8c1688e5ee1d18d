"""Tokens of a file and of the user's function, and when tokens are renewed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    OptionError,
)
from spark_group_source.wire.tokens import FileTokens, FunctionTokens, RefreshWindow, Token
from tests.unit.wire_options import after

ANSWERED = threading.Event()
CALLS: list[int] = []


def test_the_file_is_read_for_every_connection(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = FileTokens(str(file), (("logicalCluster", "lkc-1"),))
    for problem, says in ((None, "No such file"), (b" \n", "is empty"), ("tökén".encode(), "not ASCII")):
        if problem is not None:
            file.write_bytes(problem)
        with pytest.raises(BrokerUnavailable, match=f"{file}.*{says}") as raised:
            tokens.fetch(Deadline.after(1))
        assert "on each executor" in raised.value.action
    for text in ("t0ken\n", "t1ken"):
        file.write_text(text)
        assert tokens.fetch(Deadline.after(1)) == Token(text.strip(), {"logicalCluster": "lkc-1"})


def the_token() -> str:
    return "t0ken\n"


def token_and_extensions() -> tuple[str, dict[str, str]]:
    return "t0ken", {"logicalCluster": "lkc-1"}


def blank() -> str:
    return " \n"


def no_token() -> None:
    return None


def extensions_that_are_none() -> tuple[str, str]:
    return "t0ken", "x"


def failing() -> str:
    raise ConnectionError("the provider is down")


def quitting() -> str:
    sys.exit("no credentials")


def hanging() -> str:
    CALLS.append(1)
    ANSWERED.wait(60.0)
    return f"t0ken{len(CALLS)}"


def tokens_of(function: str) -> FunctionTokens:
    return FunctionTokens(f"{__name__}:{function}")


def test_tokens_and_extensions_come_from_the_users_function() -> None:
    assert tokens_of("the_token").fetch(after()) == Token("t0ken", {})
    assert tokens_of("token_and_extensions").fetch(after()) == Token("t0ken", {"logicalCluster": "lkc-1"})


@pytest.mark.parametrize(
    ("function", "kind", "says"),
    [
        ("no_token", AuthenticationFailed, "returned a NoneType.*the token as text"),
        ("blank", AuthenticationFailed, "returned a str"),
        ("extensions_that_are_none", AuthenticationFailed, "returned a tuple"),
        ("quitting", BrokerUnavailable, "token.provider' failed: SystemExit.*no credentials"),
        ("failing", BrokerUnavailable, "token.provider' failed: ConnectionError.*down.*on each executor"),
    ],
)
def test_the_error_of_a_function_without_a_token_names_it(
    function: str, kind: type[GroupSourceError], says: str
) -> None:
    with pytest.raises(kind, match=says) as refused:
        tokens_of(function).fetch(after())
    assert "t0ken" not in str(refused.value)


def test_a_function_that_cannot_be_imported_here_is_no_error_to_retry() -> None:
    with pytest.raises(OptionError, match="cannot be called on .*No module named 'no_such_module'.*--py-files"):
        FunctionTokens("no_such_module:token").fetch(after())


def test_a_token_function_that_hangs_is_not_called_again_before_it_returns() -> None:
    for _ in range(5):
        with pytest.raises(DeadlineExceeded, match=r"token\.provider' did not return in time"):
            tokens_of("hanging").fetch(Deadline.after(0.02))
    assert len(CALLS) == 1
    threading.Timer(0.1, ANSWERED.set).start()
    assert tokens_of("hanging").fetch(after()).text == "t0ken1"
    assert tokens_of("hanging").fetch(after()).text == "t0ken2"


@pytest.mark.parametrize(
    ("window", "lifetime", "chance", "delay"),
    [
        (RefreshWindow(), 3600, 1.0, 3060),
        (RefreshWindow(), 1000, 0.0, 700),  # the buffer moves the renewal up
        (RefreshWindow(), 400, 0.0, 100),
        (RefreshWindow(), 300, 0.0, 240),  # minimum and buffer do not fit: both are ignored
        (RefreshWindow(1.0, 0.25, 0, 0), 100, 1.0, 100),
        (RefreshWindow(0.5, 0.0, 90, 5), 100, 0.0, 90),  # the minimum moves it back
    ],
)
def test_a_token_is_renewed_as_in_java(window: RefreshWindow, lifetime: float, chance: float, delay: float) -> None:
    assert window.delay(lifetime, lambda: chance) == pytest.approx(delay)
