"""The table of the coordinator's error codes."""

from __future__ import annotations

import pytest

from spark_group_source.errors import describe_error_code
from spark_group_source.group.error_actions import ERROR_ACTIONS


@pytest.mark.parametrize("error_code", ERROR_ACTIONS)
def test_every_row_has_a_name_that_operators_can_look_up(error_code: int) -> None:
    assert "unknown to this release" not in describe_error_code(error_code)


def test_a_code_without_a_name_is_said_to_be_unknown() -> None:
    assert describe_error_code(32_000) == "32000 (unknown to this release)"
