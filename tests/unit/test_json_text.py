"""JSON of others never raises another error than ValueError."""

from __future__ import annotations

import pytest

from spark_group_source.json_text import parse_json


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"a":' * 100_000, b"\xff"])
def test_a_text_that_cannot_be_read_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="Expecting|nested too deeply|decode"):
        parse_json(text)


def test_pairs_keep_both_of_two_equal_names() -> None:
    assert parse_json('{"a": 1, "a": {"b": 2}}', pairs=True) == (("a", 1), ("a", (("b", 2),)))
    assert parse_json(b'{"a": 1}') == {"a": 1}
