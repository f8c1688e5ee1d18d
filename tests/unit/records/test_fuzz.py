"""A short run of ``make fuzz``: damaged bytes give rows or an error of this package, in limited time."""

from __future__ import annotations

from collections import Counter

from tests.unit.records.fuzz import Fuzz, time_limit


def test_damaged_bytes_give_rows_or_an_error_of_this_package() -> None:
    fuzz, found = Fuzz(seed=20), Counter[str]()
    for number in range(400):
        with time_limit():
            found[fuzz.outcome(number)] += 1
    expected = ("rows", "CorruptRecords", "UnsupportedRecords", "answer", "ProtocolError")
    assert min(found[each] for each in expected) > 4, "otherwise all damage would fail the first check"
