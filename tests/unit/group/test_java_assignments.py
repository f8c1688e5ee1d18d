"""``range`` and ``roundrobin`` against recorded assignments of Kafka's Java client; the sticky assignors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest

from spark_group_source.group.assignment import Assignors, JoinedMember, decode_assignment
from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.offsets import Partitions, TopicPartition
from tests.assignments import JAVAS, Case, is_complete, ours

STICKY = ["cooperative-sticky", "sticky"]


@pytest.mark.parametrize("recorded", JAVAS, ids=itemgetter("name"))
def test_the_assignment_is_the_same_as_javas(recorded: Case) -> None:
    answer = ours(recorded)
    assert is_complete(recorded, answer)
    assert answer == recorded["answer"]


def member(
    assignor: str,
    name: str,
    topics: str,
    owned: Partitions = frozenset(),
    generation: int = -1,
    rack: str | None = None,
) -> JoinedMember:
    """A member with the assignment ``owned`` of this generation, revoked if the assignor is eager."""
    assignors = Assignors([assignor], rack)
    if generation >= 0:
        assignors.assigned(assignor, owned, generation)
    kept = owned if assignors.cooperative else ()
    return JoinedMember(name, assignors.subscriptions(topics.split(), kept, generation)[assignor])


def assign(assignor: str, partition_counts: PartitionCounts, *members: JoinedMember) -> dict[str, Partitions]:
    encoded = Assignors([assignor]).assign(assignor, members, partition_counts)
    return {member_id: decode_assignment(assignment) for member_id, assignment in encoded.items()}


@pytest.mark.parametrize("assignor", STICKY)
def test_a_deleted_partition_is_not_assigned(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset({0, 1})})
    had = frozenset({TopicPartition("t", 2), TopicPartition("t", 3)})
    assigned = assign(assignor, partition_counts, member(assignor, "a", "t", had, 3), member(assignor, "b", "t"))
    assert assigned == {"a": {TopicPartition("t", 0)}, "b": {TopicPartition("t", 1)}}


@pytest.mark.parametrize("assignor", STICKY)
def test_a_member_does_not_get_a_topic_back_that_it_unsubscribed(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(4))})
    had = frozenset(TopicPartition("t", number) for number in range(4))
    left, took_over = member(assignor, "left", "u", had, 3), member(assignor, "took-over", "t", had, 4)
    assigned = assign(assignor, partition_counts, left, took_over, member(assignor, "new", "t"))
    assert assigned["left"] == frozenset()
    assert len(assigned["took-over"]) == 2


@pytest.mark.parametrize("assignor", STICKY)
def test_a_member_without_topics_gets_no_partitions(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(4))})
    for name in "abcdefgh":
        assigned = assign(assignor, partition_counts, member(assignor, name, ""), member(assignor, "other", "t"))
        assert assigned == {name: frozenset(), "other": {TopicPartition("t", number) for number in range(4)}}


def of(topic: str, *numbers: int) -> Partitions:
    return frozenset(TopicPartition(topic, number) for number in numbers)


@pytest.mark.parametrize("assignor", STICKY)
def test_a_balanced_assignment_stays_whoever_has_one_more(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(5)), "u": frozenset(range(3))})
    for had in (
        {"a": of("t", 0, 3), "b": of("t", 4), "c": of("t", 1, 2), "d": of("u", 0, 1, 2)},
        {"a": of("t", 2), "b": of("t", 0, 1), "c": of("t", 3, 4), "d": of("u", 0, 1, 2)},
        {"a": of("t", 0, 1), "b": of("t", 2, 3), "c": of("t", 4) | of("u", 2), "d": of("u", 0, 1)},
    ):
        topics = {"a": "t", "b": "t", "c": "t u", "d": "u"}
        members = [member(assignor, name, topics[name], owned, 3) for name, owned in had.items()]
        assert assign(assignor, partition_counts, *members) == had
        assert assign(assignor, partition_counts, *reversed(members)) == had


def test_members_with_other_topics_get_a_balanced_assignment_with_as_few_moves_as_possible() -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(6)), "u": frozenset(range(2))})
    assigned = assign(
        "sticky",
        partition_counts,
        member("sticky", "t-and-u", "t u", of("t", 0, 1, 2, 3, 4), 3),
        member("sticky", "t", "t", of("t", 5), 3),
        member("sticky", "new", "t"),
    )
    assert {name: len(owned) for name, owned in assigned.items()} == {"t-and-u": 3, "t": 2, "new": 3}
    assert of("u", 0, 1) < assigned["t-and-u"]
    assert of("t", 5) < assigned["t"]


@pytest.mark.parametrize("assignor", STICKY)
def test_one_of_two_members_that_claim_a_partition_in_one_generation_keeps_it(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(3))})
    had = {"a": of("t", 0, 1), "b": of("t", 1, 2)}
    assigned = assign(assignor, partition_counts, *(member(assignor, name, "t", had[name], 3) for name in had))
    assert assigned["a"] <= had["a"]
    assert assigned["b"] <= had["b"]
    assert len(assigned["a"]) + len(assigned["b"]) == 3


@pytest.mark.parametrize("assignor", STICKY)
@pytest.mark.parametrize(
    ("racks", "had", "new"),
    [
        ("aabb", {"a": of("t", 0, 2), "b": of("t", 1, 3)}, {"a": of("t", 0, 1), "b": of("t", 2, 3)}),
        ("aaaabb", {"a": of("t", 0, 1), "b": of("t", 2, 4), "bb": of("t", 3, 5)}, {}),
    ],
)
def test_a_member_gives_up_partitions_far_from_its_rack_if_the_assignment_stays_balanced(
    assignor: str, racks: str, had: dict[str, Partitions], new: dict[str, Partitions]
) -> None:
    partition_counts = PartitionCounts(
        {"t": frozenset(range(len(racks)))},
        {TopicPartition("t", number): frozenset(rack) for number, rack in enumerate(racks)},
    )
    now = had
    for generation in (3, 4):
        members = (member(assignor, name, "t", owned, generation, name[0]) for name, owned in now.items())
        now = assign(assignor, partition_counts, *members)
    assert now == (new or had)


def calls(work: Callable[[], Any]) -> int:
    """The number of function calls, also of Python's functions."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("assignor", STICKY)
def test_equal_subscriptions_are_assigned_in_linear_time(assignor: str) -> None:
    def rebalanced(size: int) -> tuple[int, int]:
        counts = PartitionCounts({"t": frozenset(range(size))})
        names = [f"m{number}" for number in range(20)]
        new = [member(assignor, name, "t") for name in names]
        first = assign(assignor, counts, *new)
        stay = [member(assignor, name, "t", first[name], 1) for name in names[1:]]
        return calls(lambda: assign(assignor, counts, *new)), calls(lambda: assign(assignor, counts, *stay))

    for small, large in zip(rebalanced(1000), rebalanced(4000), strict=True):
        assert large < 4.5 * small
