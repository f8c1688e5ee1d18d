"""The assignors against recorded assignments of Kafka's Java client; cases where they differ; how long they take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest

from spark_group_source.group.assignment import Assignors, JoinedMember, PartitionCounts, decode_assignment
from spark_group_source.offsets import Partitions, TopicPartition
from tests.assignments import ENDLESS, JAVAS, Case, check_complete, ours

STICKY = ["cooperative-sticky", "sticky"]


@pytest.mark.parametrize("recorded", JAVAS, ids=itemgetter("name"))
def test_the_assignment_is_the_same_as_javas(recorded: Case) -> None:
    answer = ours(recorded)
    check_complete(recorded, answer)
    if recorded["answer"] != ENDLESS:
        assert answer == recorded["answer"]


def member(
    assignor: str, name: str, topics: str, owned: Partitions = frozenset(), generation: int = -1
) -> JoinedMember:
    """A member with the assignment ``owned`` of this generation, revoked if the assignor is eager."""
    assignors = Assignors([assignor])
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
