from __future__ import annotations

import pytest

from spark_group_source.errors import CannotMigrate
from spark_group_source.migration import batch_numbers, check_complete, last_batch


def test_temporary_files_and_checksums_are_no_batches() -> None:
    names = ["10", "9", ".10.crc", "10.crc", ".11.6a1f.tmp", "11.tmp", "9.compact", "", "-1", "1e3"]
    assert batch_numbers(names) == [9, 10]


@pytest.mark.parametrize(
    "logged",
    [[0], [0, 1], [41, 42], [40, 41, 42], [0, 3, 7, 8, 9]],
    ids=["first", "two", "purged", "three", "gaps before two batches that are logged in full"],
)
def test_the_last_batch_of_a_log_without_gaps_at_its_end_is_found(logged: list[int]) -> None:
    assert last_batch("c", logged, logged) == logged[-1]
    check_complete("c", logged[-1], logged)


@pytest.mark.parametrize("logged", [[0, 2], [7], [0, 3, 7], [0, 3, 4], [0, 1, 2, 5], [1, 3, 5]])
def test_a_log_with_gaps_at_its_end_is_asynchronous_and_is_refused_complete_or_not(logged: list[int]) -> None:
    for completed in (logged, logged[:-1]):
        with pytest.raises(CannotMigrate, match=r"c has gaps: .*asyncProgressTrackingEnabled.*IntervalMs=0"):
            last_batch("c", logged, completed)


def test_a_batch_that_is_not_complete_is_refused_with_the_run_to_make() -> None:
    assert last_batch("c", [4, 5], [4]) == 5
    with pytest.raises(
        CannotMigrate, match=r"Batch 5 of c is not complete.*sink may.*availableNow=True.*earlier batch"
    ):
        check_complete("c", 5, [4])


def test_a_log_without_a_batch_or_its_last_completed_one_has_no_position() -> None:
    with pytest.raises(CannotMigrate, match="has not read anything"):
        last_batch("c", [], [])
    with pytest.raises(CannotMigrate, match="last completed batch is 5, and the offsets end with batch 4"):
        last_batch("c", [3, 4], [4, 5])
