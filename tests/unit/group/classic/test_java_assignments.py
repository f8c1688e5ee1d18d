"""The assignors against recorded answers of Kafka's own Java client; what it cannot answer; how long they take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest

from spark_group_source.group.classic.assignment import Assignors, JoinedMember, PartitionCounts, decode_assignment
from spark_group_source.offsets import Partitions, TopicPartition
from tests.assignments import ENDLESS, JAVAS, Case, check_complete, ours

STICKY = ["cooperative-sticky", "sticky"]


@pytest.mark.parametrize("recorded", JAVAS, ids=itemgetter("name"))
def test_the_assignment_is_javas(recorded: Case) -> None:
    answer = ours(recorded)
    check_complete(recorded, answer)
    if recorded["answer"] != ENDLESS:
        assert answer == recorded["answer"]


def member(
    assignor: str, name: str, topics: str, owned: Partitions = frozenset(), generation: int = -1
) -> JoinedMember:
    """A member that was assigned ``owned`` in this generation, and has given it up if the assignor is eager."""
    assignors = Assignors([assignor])
    if generation >= 0:
        assignors.assigned(assignor, owned, generation)
    kept = owned if assignors.cooperative else ()
    return JoinedMember(name, assignors.subscriptions(topics.split(), kept, generation)[assignor])


def shares(assignor: str, partition_counts: PartitionCounts, *members: JoinedMember) -> dict[str, Partitions]:
    encoded = Assignors([assignor]).assign(assignor, members, partition_counts)
    return {who: decode_assignment(share) for who, share in encoded.items()}


@pytest.mark.parametrize("assignor", STICKY)
def test_a_partition_that_does_not_exist_any_more_is_nobodys(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset({0, 1})})
    had = frozenset({TopicPartition("t", 2), TopicPartition("t", 3)})
    found = shares(assignor, partition_counts, member(assignor, "a", "t", had, 3), member(assignor, "b", "t"))
    assert found == {"a": {TopicPartition("t", 0)}, "b": {TopicPartition("t", 1)}}


@pytest.mark.parametrize("assignor", STICKY)
def test_a_topic_is_not_given_back_to_a_member_that_has_unsubscribed_it(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(4))})
    had = frozenset(TopicPartition("t", number) for number in range(4))
    left, took_over = member(assignor, "left", "u", had, 3), member(assignor, "took-over", "t", had, 4)
    found = shares(assignor, partition_counts, left, took_over, member(assignor, "new", "t"))
    assert found["left"] == frozenset()
    assert len(found["took-over"]) == 2


@pytest.mark.parametrize("assignor", STICKY)
def test_a_member_without_topics_gets_nothing_whatever_its_id(assignor: str) -> None:
    partition_counts = PartitionCounts({"t": frozenset(range(4))})
    for name in "abcdefgh":
        found = shares(assignor, partition_counts, member(assignor, name, ""), member(assignor, "other", "t"))
        assert found == {name: frozenset(), "other": {TopicPartition("t", number) for number in range(4)}}


def calls(work: Callable[[], Any]) -> int:
    """How many functions are called, Python's own included."""
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
        first = shares(assignor, counts, *new)
        stay = [member(assignor, name, "t", first[name], 1) for name in names[1:]]
        return calls(lambda: shares(assignor, counts, *new)), calls(lambda: shares(assignor, counts, *stay))

    for small, large in zip(rebalanced(1000), rebalanced(4000), strict=True):
        assert large < 4.5 * small
