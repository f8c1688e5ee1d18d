"""Tokens of the user's function."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, GroupSourceError, OptionError
from spark_group_source.wire.tokens import FileTokens, FunctionTokens, TokenProvider


def test_a_provider_without_a_token_says_what_to_check(tmp_path: Path) -> None:
    """Without an action of its own, the error would get the advice about bootstrap servers."""
    (tmp_path / "empty").touch()
    providers: list[TokenProvider] = [
        FileTokens("/no/such/token"),
        FileTokens(str(tmp_path / "empty")),
        FunctionTokens("json:loads"),
    ]
    for provider in providers:
        with pytest.raises(GroupSourceError) as raised:
            provider.fetch(Deadline.after(10.0))
        assert type(raised.value) is BrokerUnavailable
        assert "on each executor" in raised.value.action


def test_a_function_that_cannot_be_imported_here_is_no_error_to_retry() -> None:
    with pytest.raises(OptionError, match="cannot be called on .*No module named 'no_such_module'.*--py-files"):
        FunctionTokens("no_such_module:token").fetch(Deadline.after(10.0))
