"""The ledger of offsets: contract sentences 2, 4, 5 and 6 in their pure part."""

from __future__ import annotations

import json

import pytest

from spark_group_source.group.commits import COMMIT_TAG, CommittedOffset, Ledger, commit_metadata, resume_at
from spark_group_source.offsets import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("committed", "logged_end", "starting_offset", "position"),
    [
        (None, None, 3, 3),
        (None, 80, None, 80),
        (CommittedOffset(50, COMMIT_TAG), None, None, 50),
        (CommittedOffset(50), None, None, 50),
        (CommittedOffset(50, COMMIT_TAG), 80, None, 80),
        (CommittedOffset(90, COMMIT_TAG), 80, None, 90),
        (CommittedOffset(90), 80, None, 90),
        (CommittedOffset(50), 80, None, 50),
        (CommittedOffset(50, "set by hand"), 80, None, 50),
        (CommittedOffset(0), 80, None, 0),
    ],
)
def test_a_partition_resumes_at_the_further_of_commit_and_logged_end_unless_an_operator_rewound_it(
    committed: CommittedOffset | None, logged_end: int | None, starting_offset: int | None, position: int
) -> None:
    assert resume_at(committed, logged_end, starting_offset) == position


@pytest.mark.parametrize("fields", [{}, {"application": "app-1", "generation": 7}])
def test_a_commit_with_fields_after_the_tag_is_no_operators_rewind(fields: dict[str, object]) -> None:
    assert resume_at(CommittedOffset(50, commit_metadata(fields)), 80, None) == 80
    assert json.loads(commit_metadata(fields).removeprefix(COMMIT_TAG) or "{}") == fields


def test_the_start_of_a_partition_without_a_commit_is_committed_at_once() -> None:
    ledger = Ledger()
    ledger.set_position(A, None, 0)
    ledger.set_position(B, CommittedOffset(5), 5)
    assert ledger.pending() == {A: 0}


def test_a_rejected_commit_stays_pending_but_delays_no_revocation() -> None:
    ledger = Ledger()
    ledger.set_position(A, None, 0)
    ledger.set_position(B, CommittedOffset(5), 5)
    assert ledger.commits_rejected({A}) == {A}
    assert ledger.commits_rejected({A}) == set(), "it is new only once"
    assert (ledger.pending(), ledger.never_committed(), ledger.uncommitted()) == ({A: 0}, {A}, set())
    ledger.confirmed({A: 0})
    ledger.planned({A: 3})
    ledger.completed({A: 3})
    assert ledger.uncommitted() == {A}


def test_a_rejected_commit_of_a_deleted_partition_is_not_pending_until_brokers_know_the_partition_again() -> None:
    ledger = Ledger()
    ledger.set_position(A, None, 0)
    ledger.deleted = frozenset({A})
    assert ledger.pending() == {A: 0}, "the coordinator has not rejected it"
    ledger.commits_rejected({A})
    assert not ledger.pending()
    assert not ledger.never_committed()
    ledger.deleted = frozenset()
    assert ledger.pending() == {A: 0}


def test_a_revoked_partition_is_not_rejected_any_more() -> None:
    ledger = Ledger()
    ledger.set_position(A, None, 0)
    ledger.commits_rejected({A})
    ledger.remove({A})
    ledger.set_position(A, None, 0)
    assert ledger.uncommitted() == {A}


def test_only_a_completed_batch_is_committed_and_then_completely() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    ledger.set_position(B, CommittedOffset(5), 5)
    ledger.planned({A: 9, B: 7})
    assert ledger.pending() == {}
    ledger.completed({A: 9, B: 7})
    assert ledger.pending() == {A: 9, B: 7}
    ledger.confirmed({A: 9})
    assert ledger.pending() == {B: 7}


def test_a_failed_commit_is_part_of_the_next_one() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    for end in (9, 12):
        ledger.planned({A: end})
        ledger.completed({A: end})
    assert ledger.pending() == {A: 12}


def test_a_partition_no_longer_owned_is_not_committed() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.remove([A])
    ledger.completed({A: 9})
    assert ledger.pending() == {}


def test_an_in_flight_batch_whose_partition_comes_back_is_committed_only_when_completed() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.remove([A])
    ledger.set_position(A, CommittedOffset(5, COMMIT_TAG), 9)
    assert ledger.pending() == {}
    ledger.completed({A: 9})
    assert ledger.pending() == {A: 9}


def test_a_commit_never_goes_below_the_commit_of_another_member() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.remove([A])
    ledger.set_position(A, CommittedOffset(20, COMMIT_TAG), 20)
    ledger.completed({A: 9})
    assert ledger.pending() == {}


def test_a_batch_does_not_overwrite_a_rewind_made_during_the_batch() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    ledger.planned({A: 9})
    ledger.remove([A])
    ledger.set_position(A, CommittedOffset(2), 2)
    ledger.completed({A: 9})
    assert ledger.pending() == {}


def test_a_partition_lost_while_its_batch_was_planned_has_no_position() -> None:
    ledger = Ledger()
    ledger.set_position(A, CommittedOffset(5), 5)
    ledger.remove([A])
    ledger.planned({A: 9})
    assert A not in ledger.positions


def test_a_renewed_offset_is_committed_again_unchanged() -> None:
    ledger = Ledger(logged_ends={A: 5})
    ledger.set_position(A, CommittedOffset(5, COMMIT_TAG), 5)
    ledger.set_position(B, CommittedOffset(7), 7)
    ledger.renew()
    assert ledger.pending() == {A: 5, B: 7}
    ledger.confirmed({A: 5, B: 7})
    assert ledger.pending() == {}


def test_a_rewind_and_an_in_flight_batch_are_not_renewed() -> None:
    ledger = Ledger(logged_ends={A: 9})
    ledger.set_position(A, CommittedOffset(2), 2)
    ledger.set_position(B, CommittedOffset(5, COMMIT_TAG), 5)
    ledger.planned({B: 8})
    ledger.renew()
    assert ledger.pending() == {}, "a tag would turn the rewind into an old commit of ours"


def test_renewing_never_goes_below_the_groups_commit() -> None:
    ledger = Ledger()
    ledger.planned({A: 5})
    ledger.set_position(A, CommittedOffset(9), 9)
    ledger.completed({A: 5})
    ledger.renew()
    assert ledger.pending() == {}
