"""``tests/SEEDS.md`` has every capability of the five consumers, and links tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.unit.test_option_docs import TESTS, defined_in

ROWS = re.findall(r"^- (\d\.\d+) .+?: (\[.+)$", (TESTS / "SEEDS.md").read_text(), re.M)
LENGTHS = {1: 23, 2: 23, 3: 17, 4: 15, 5: 30}


def test_every_capability_has_one_row() -> None:
    expected = [f"{section}.{number + 1}" for section, length in LENGTHS.items() for number in range(length)]
    assert [number for number, _ in ROWS] == expected


@pytest.mark.parametrize(("number", "tests"), ROWS)
def test_every_row_links_tests_that_exist(number: str, tests: str) -> None:
    links = re.findall(r"\[(\w+)\]\(([\w/.]+)\)", tests)
    assert links
    for test, path in links:
        assert test in defined_in(path)
