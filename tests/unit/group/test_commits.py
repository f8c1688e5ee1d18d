"""The ledger of offsets: contract sentences 2, 4, 5 and 6 in their pure part."""

from __future__ import annotations

import json

import pytest

from spark_group_source.group.commits import MARK, CommittedOffset, Ledger, marked, resume_at
from spark_group_source.offsets import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("committed", "logged", "start", "position"),
    [
        (None, None, 3, 3),
        (None, 80, None, 80),
        (CommittedOffset(50, MARK), None, None, 50),
        (CommittedOffset(50), None, None, 50),
        (CommittedOffset(50, MARK), 80, None, 80),
        (CommittedOffset(90, MARK), 80, None, 90),
        (CommittedOffset(90), 80, None, 90),
        (CommittedOffset(50), 80, None, 50),
        (CommittedOffset(50, "set by hand"), 80, None, 50),
        (CommittedOffset(0), 80, None, 0),
    ],
)
def test_a_partition_goes_on_at_the_further_of_commit_and_log_unless_somebody_rewound_it(
    committed: CommittedOffset | None, logged: int | None, start: int | None, position: int
) -> None:
    assert resume_at(committed, logged, start) == position


@pytest.mark.parametrize("facts", [{}, {"application": "app-1", "generation": 7}])
def test_a_commit_with_facts_behind_the_mark_is_no_operators(facts: dict[str, object]) -> None:
    assert resume_at(CommittedOffset(50, marked(facts)), 80, None) == 80
    assert json.loads(marked(facts).removeprefix(MARK) or "{}") == facts


def test_a_partition_without_commit_has_its_start_committed_at_once() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, None, 0)
    ledger.partitions_assigned(B, CommittedOffset(5), 5)
    assert ledger.pending() == {A: 0}


def test_only_a_completed_batch_is_committed_and_then_all_of_it() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    ledger.partitions_assigned(B, CommittedOffset(5), 5)
    ledger.planned({A: 9, B: 7})
    assert ledger.pending() == {}
    ledger.completed({A: 9, B: 7})
    assert ledger.pending() == {A: 9, B: 7}
    ledger.confirmed({A: 9})
    assert ledger.pending() == {B: 7}


def test_a_failed_commit_is_part_of_the_next_one() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    for end in (9, 12):
        ledger.planned({A: end})
        ledger.completed({A: end})
    assert ledger.pending() == {A: 12}


def test_what_is_not_owned_any_more_is_not_committed() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.dropped([A])
    ledger.completed({A: 9})
    assert ledger.pending() == {}


def test_a_batch_in_flight_when_its_partition_comes_back_is_committed_only_when_completed() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.dropped([A])
    ledger.partitions_assigned(A, CommittedOffset(5, MARK), 9)
    assert ledger.pending() == {}
    ledger.completed({A: 9})
    assert ledger.pending() == {A: 9}


def test_a_commit_never_goes_back_below_what_another_member_has_reached() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.dropped([A])
    ledger.partitions_assigned(A, CommittedOffset(20, MARK), 20)
    ledger.completed({A: 9})
    assert ledger.pending() == {}


def test_a_rewind_in_mid_batch_is_not_overwritten_by_the_batch() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.dropped([A])
    ledger.partitions_assigned(A, CommittedOffset(2), 2)
    ledger.completed({A: 9})
    assert ledger.pending() == {}


def test_a_partition_taken_away_while_its_batch_was_planned_is_resumed_anew_when_it_is_back() -> None:
    ledger = Ledger()
    ledger.partitions_assigned(A, CommittedOffset(5), 5)
    ledger.dropped([A])
    ledger.planned({A: 9})
    assert A not in ledger.positions


def test_what_is_renewed_is_committed_once_more_as_it_is() -> None:
    ledger = Ledger(logged={A: 5})
    ledger.partitions_assigned(A, CommittedOffset(5, MARK), 5)
    ledger.partitions_assigned(B, CommittedOffset(7), 7)
    ledger.renew()
    assert ledger.pending() == {A: 5, B: 7}
    ledger.confirmed({A: 5, B: 7})
    assert ledger.pending() == {}


def test_a_rewind_and_a_batch_in_flight_are_not_renewed() -> None:
    ledger = Ledger(logged={A: 9})
    ledger.partitions_assigned(A, CommittedOffset(2), 2)
    ledger.partitions_assigned(B, CommittedOffset(5, MARK), 5)
    ledger.planned({B: 8})
    ledger.renew()
    assert ledger.pending() == {}, "with the mark a rewind would be none any more"


def test_renewing_never_goes_back_behind_what_the_group_has() -> None:
    ledger = Ledger()
    ledger.planned({A: 5})
    ledger.partitions_assigned(A, CommittedOffset(9), 9)
    ledger.completed({A: 5})
    ledger.renew()
    assert ledger.pending() == {}
