"""Subscriptions and shares on the wire."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_group_source.group.assignment import (
    Layout,
    Member,
    assign,
    decode_assignment,
    is_cooperative,
    subscribed_topics,
    subscription,
)
from spark_group_source.offsets import TopicPartition

EIGHT = [TopicPartition("t", number) for number in range(8)]
LAYOUT = Layout({"t": frozenset(range(8)), "other": frozenset({0})})


def shares(assignor: str, members: list[Member]) -> dict[str, frozenset[TopicPartition]]:
    return {who: decode_assignment(share) for who, share in assign(assignor, members, LAYOUT).items()}


def test_subscription_tells_what_is_owned_and_since_which_generation() -> None:
    decoded = ConsumerProtocolSubscription.decode(subscription(["t"], EIGHT[:2], 7))
    assert (decoded.version, decoded.topics, decoded.generation_id) == (3, ["t"], 7)
    assert [(each.topic, each.partitions) for each in decoded.owned_partitions] == [("t", [0, 1])]


def test_cooperative_sticky_hands_nothing_over_before_its_owner_gave_it_up() -> None:
    old, new = Member("a", subscription(["t"], EIGHT, 3)), Member("b", subscription(["t"], [], -1))
    first = shares("cooperative-sticky", [old, new])
    assert len(first["a"]) == 4
    assert first["b"] == frozenset()
    kept = Member("a", subscription(["t"], first["a"], 4))
    second = shares("cooperative-sticky", [kept, new])
    assert second["a"] == first["a"]
    assert second["b"] == frozenset(EIGHT) - first["a"]


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("version", [0, 1])
def test_members_that_speak_an_older_subscription_get_their_share(assignor: str, version: int) -> None:
    old = ConsumerProtocolSubscription(version=version, topics=["t"], user_data=b"", owned_partitions=[]).encode()
    found = shares(assignor, [Member("a", subscription(["t"], [], -1)), Member("old", old)])
    assert found["a"] | found["old"] == set(EIGHT)
    assert len(found["old"]) == 4


def test_the_leader_assigns_topics_that_only_others_are_subscribed_to() -> None:
    members = [Member("a", subscription(["t"], [], -1)), Member("b", subscription(["other"], [], -1))]
    assert subscribed_topics(members) == {"t", "other"}
    assert shares("range", members) == {"a": frozenset(EIGHT), "b": frozenset({TopicPartition("other", 0)})}


def test_an_empty_share_is_no_partitions() -> None:
    assert decode_assignment(b"") == frozenset()


def test_only_cooperative_sticky_keeps_partitions_across_a_rebalance() -> None:
    assert is_cooperative(("cooperative-sticky",))
    assert not is_cooperative(("range", "roundrobin"))
