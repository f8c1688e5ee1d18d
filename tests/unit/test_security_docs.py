"""The tables in ``docs/security.md`` of what was tried: every mechanism has a row, and the tests of the rows exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from spark_group_source.options.tls import MECHANISMS

REPOSITORY = Path(__file__).resolve().parents[2]
SECTION = (REPOSITORY / "docs" / "security.md").read_text().partition("\n## What was tried\n")[2]
SIGN_INS = [
    row.split(" | ") for row in re.findall(r"^\| (?!sign-in)(\S.*) \|$", SECTION.partition("Services")[0], re.M)
]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def defined_in(path: str) -> set[str]:
    return {node.name for node in ast.parse((REPOSITORY / path).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), TEST.findall(SECTION))
def test_a_test_in_the_tables_exists(path: str, name: str) -> None:
    assert name in defined_in(path)


@pytest.mark.parametrize("row", SIGN_INS, ids=lambda row: row[0])
def test_a_sign_in_names_what_was_tried_its_tests_and_what_was_not(row: list[str]) -> None:
    _, tried, tests, not_tried = row
    assert tried
    assert not_tried
    assert TEST.sub("", tests).strip(", ") == ""
    assert TEST.search(tests)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_has_a_row(mechanism: str) -> None:
    assert any(f"`{mechanism}`" in row[0] for row in SIGN_INS)
