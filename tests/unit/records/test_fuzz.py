"""A short run of ``make fuzz``: damaged bytes give rows or an error of this package, in limited time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.records.fuzz import Fuzz, time_limit

FEW = 1500


@pytest.fixture(scope="module")
def outcomes() -> Counter[str]:
    fuzz = Fuzz(seed=20)
    found: Counter[str] = Counter()
    for number in range(FEW):
        with time_limit():
            found[fuzz.outcome(number)] += 1
    return found


def test_damaged_bytes_give_rows_or_an_error_of_this_package(outcomes: Counter[str]) -> None:
    assert sum(outcomes.values()) == FEW


@pytest.mark.parametrize("outcome", ["rows", "CorruptRecords", "UnsupportedRecords", "answer", "ProtocolError"])
def test_every_outcome_occurs(outcomes: Counter[str], outcome: str) -> None:
    """Otherwise all damage would fail the first check."""
    assert outcomes[outcome] > FEW // 100
