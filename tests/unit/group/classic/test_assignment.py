"""Subscriptions and shares on the wire."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.errors import OptionError
from spark_group_source.group.classic.assignment import (
    Assignors,
    JoinedMember,
    PartitionCounts,
    decode_assignment,
    subscribed_topics,
)
from spark_group_source.group.classic.assignors import ASSIGNORS
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.metadata import Broker, Metadata, Topic

EIGHT = [TopicPartition("t", number) for number in range(8)]
LAYOUT = PartitionCounts({"t": frozenset(range(8)), "other": frozenset({0})})


def shares(assignor: str, members: list[JoinedMember]) -> dict[str, frozenset[TopicPartition]]:
    encoded = Assignors([assignor]).assign(assignor, members, LAYOUT)
    return {who: decode_assignment(share) for who, share in encoded.items()}


def subscription(topics: list[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """What a cooperative-sticky member tells; the eager ones but sticky read the topics alone."""
    return Assignors(["cooperative-sticky"]).subscriptions(topics, owned, generation)["cooperative-sticky"]


def user_data(assignors: Assignors, name: str, generation: int) -> bytes:
    told = assignors.subscriptions(["t", "u"], [], generation)[name]
    return bytes(ConsumerProtocolSubscription.decode(told).user_data)


def test_subscription_tells_what_is_owned_and_since_which_generation() -> None:
    decoded = ConsumerProtocolSubscription.decode(subscription(["t"], EIGHT[:2], 7))
    assert (decoded.version, decoded.topics, decoded.generation_id) == (3, ["t"], 7)
    assert [(each.topic, each.partitions) for each in decoded.owned_partitions] == [("t", [0, 1])]


def test_subscription_tells_the_rack_where_one_is_given() -> None:
    for rack in ("eu-1a", None):
        told = Assignors(["range"], rack).subscriptions(["t"], [], -1)["range"]
        assert ConsumerProtocolSubscription.decode(told).rack_id == rack


def test_cooperative_sticky_hands_nothing_over_before_its_owner_gave_it_up() -> None:
    old, new = JoinedMember("a", subscription(["t"], EIGHT, 3)), JoinedMember("b", subscription(["t"], [], -1))
    first = shares("cooperative-sticky", [old, new])
    assert len(first["a"]) == 4
    assert first["b"] == frozenset()
    kept = JoinedMember("a", subscription(["t"], first["a"], 4))
    second = shares("cooperative-sticky", [kept, new])
    assert second["a"] == first["a"]
    assert second["b"] == frozenset(EIGHT) - first["a"]


SHARE = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 7)]
JAVAS = {
    "sticky": "00000002000174000000020000000000000001000175000000010000000700000005",
    "cooperative-sticky": "00000005",
}
"""subscriptionUserData() of Kafka 4.1.1's own assignors after the share above in generation 5."""


@pytest.mark.parametrize("name", sorted(JAVAS))
def test_a_leader_is_told_the_last_share_and_its_generation_in_the_form_of_kafkas_own_client(name: str) -> None:
    assignors = Assignors([name])
    assignors.assigned(name, SHARE, 5)
    assert user_data(assignors, name, 5).hex() == JAVAS[name]


def test_sticky_tells_the_generation_of_its_share_also_after_one_that_brought_none() -> None:
    assignors = Assignors(["sticky"])
    assignors.assigned("sticky", SHARE, 5)
    # Generation 6 was joined, and rebalanced before its sync: another member may have a share of it.
    assert user_data(assignors, "sticky", 6).hex() == JAVAS["sticky"]


def test_sticky_claims_nothing_after_a_loss() -> None:
    assignors = Assignors(["sticky"])
    assignors.assigned("sticky", SHARE, 5)
    assert user_data(assignors, "sticky", -1) == b""
    assert user_data(assignors, "sticky", 9) == b""


def after(share: Iterable[TopicPartition], generation: int) -> bytes:
    """What a sticky member tells that had ``share`` in ``generation``, and has given it up."""
    assignors = Assignors(["sticky"])
    assignors.assigned("sticky", share, generation)
    return assignors.subscriptions(["t"], [], generation)["sticky"]


def test_sticky_gives_back_what_members_had_and_moves_no_more_than_it_must() -> None:
    mine = frozenset(EIGHT[::2])
    others = frozenset(EIGHT) - mine
    stayed = shares("sticky", [JoinedMember("a", after(mine, 3)), JoinedMember("b", after(others, 3))])
    assert stayed == {"a": mine, "b": others}
    joined = shares(
        "sticky",
        [JoinedMember("a", after(mine, 3)), JoinedMember("b", after(others, 3)), JoinedMember("c", after([], 3))],
    )
    assert sorted(len(each) for each in joined.values()) == [2, 3, 3]
    assert joined["a"] < mine
    assert joined["b"] < others


def test_the_share_of_the_later_generation_counts_where_two_members_claim_a_partition() -> None:
    found = shares("sticky", [JoinedMember("returns", after(EIGHT, 3)), JoinedMember("took-over", after(EIGHT[:4], 4))])
    assert found["took-over"] == frozenset(EIGHT[:4])


@pytest.mark.parametrize(
    "written",
    [
        bytes.fromhex("000000010001740000000200000000000000010000" + "0003"),
        b"\0\1" + bytes.fromhex("000000010001740000000200000000000000010000" + "0003"),
        bytes.fromhex("00000001000174000000020000000000000001"),
    ],
    ids=["kafka", "kafka-python", "kafka before 2.3"],
)
def test_the_leader_reads_what_a_sticky_member_of_any_client_had(written: bytes) -> None:
    told = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=written).encode()
    found = shares("sticky", [JoinedMember("other", told), JoinedMember("new", after([], 3))])
    assert {EIGHT[0], EIGHT[1]} <= found["other"]


def test_user_data_that_cannot_be_read_claims_nothing() -> None:
    told = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"\0\1junk").encode()
    found = shares("sticky", [JoinedMember("other", told), JoinedMember("mine", after(EIGHT[:4], 3))])
    assert found["mine"] == frozenset(EIGHT[:4])


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("version", [0, 1])
def test_members_that_speak_an_older_subscription_get_their_share(assignor: str, version: int) -> None:
    old = ConsumerProtocolSubscription(version=version, topics=["t"], user_data=b"", owned_partitions=[]).encode()
    found = shares(assignor, [JoinedMember("a", subscription(["t"], [], -1)), JoinedMember("old", old)])
    assert found["a"] | found["old"] == set(EIGHT)
    assert len(found["old"]) == 4


UNREADABLE = {
    "nothing": b"",
    "cut off": b"\0\3\0\0\0\1\0\5ab",
    "no list of topics": bytes.fromhex("0000ffffffff00000000"),
    "a topic without a name": bytes.fromhex("000000000001ffff00000000"),
    "endless": bytes.fromhex("00007fffffff"),
}


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("written", UNREADABLE.values(), ids=UNREADABLE)
def test_a_member_whose_subscription_cannot_be_read_gets_an_empty_share_and_the_others_theirs(
    assignor: str, written: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    members = [JoinedMember("odd", written), JoinedMember("a", subscription(["t"], [], -1))]
    assert subscribed_topics(members) == {"t"}
    encoded = Assignors([assignor]).assign(assignor, members, LAYOUT)
    assert ConsumerProtocolAssignment.decode(encoded["odd"]).assigned_partitions == []
    assert decode_assignment(encoded["a"]) == set(EIGHT)
    assert "member odd gets no partitions" in caplog.text


def test_a_subscription_that_lacks_the_fields_of_its_version_is_read_as_version_0() -> None:
    cut = b"\0\3" + ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"").encode()[2:]
    assert shares("range", [JoinedMember("old", cut)]) == {"old": set(EIGHT)}


def test_topics_with_an_error_or_without_partitions_are_not_assigned() -> None:
    metadata = Metadata(
        {}, {"t": Topic("t", "id", {0: None}), "e": Topic("e", "", {0: 1}, error=29), "n": Topic("n", "", {})}
    )
    assert PartitionCounts.of(metadata) == PartitionCounts({"t": frozenset({0})})


def test_partitions_are_in_the_racks_of_their_replicas_that_are_up() -> None:
    brokers = {1: Broker(1, "h", 1, "a"), 2: Broker(2, "h", 2, "b"), 3: Broker(3, "h", 3)}
    partition_counts = PartitionCounts.of(
        Metadata(brokers, {"t": Topic("t", "id", {0: 1, 1: 3}, replicas={0: (1, 2, 4), 1: (3,)})})
    )
    assert partition_counts.racks == {EIGHT[0]: {"a", "b"}, EIGHT[1]: frozenset()}


@pytest.mark.parametrize("assignor", ["range", "sticky", "cooperative-sticky"])
def test_a_member_reads_from_its_own_rack_if_the_shares_stay_even(assignor: str) -> None:
    partition_counts = PartitionCounts(
        {"t": frozenset(range(4))}, {tp: frozenset("a" if tp.partition > 1 else "b") for tp in EIGHT[:4]}
    )
    members = [
        JoinedMember(rack, Assignors([assignor], rack).subscriptions(["t"], [], -1)[assignor]) for rack in ("a", "b")
    ]
    encoded = Assignors([assignor]).assign(assignor, members, partition_counts)
    assert decode_assignment(encoded["a"]) == set(EIGHT[2:4])
    assert decode_assignment(encoded["b"]) == set(EIGHT[:2])


def test_racks_alone_do_not_make_a_layout_another_one() -> None:
    assert PartitionCounts(LAYOUT.partitions, {EIGHT[0]: frozenset("a")}) == LAYOUT


def test_the_leader_assigns_topics_that_only_others_are_subscribed_to() -> None:
    members = [JoinedMember("a", subscription(["t"], [], -1)), JoinedMember("b", subscription(["other"], [], -1))]
    assert subscribed_topics(members) == {"t", "other"}
    assert shares("range", members) == {"a": frozenset(EIGHT), "b": frozenset({TopicPartition("other", 0)})}


def test_an_empty_share_is_no_partitions() -> None:
    assert decode_assignment(b"") == frozenset()


@pytest.mark.parametrize(
    ("names", "cooperative"),
    [
        (["cooperative-sticky"], True),
        (["range", "roundrobin", "sticky"], False),
        (["range", "cooperative-sticky"], False),
        (["cooperative-sticky", "range"], False),
    ],
)
def test_partitions_are_kept_across_a_rebalance_only_where_all_assignors_can(
    names: list[str], cooperative: bool
) -> None:
    assert Assignors(names).cooperative is cooperative


def test_a_users_assignor_that_fails_is_named() -> None:
    assignors = Assignors(["tests.unit.group.classic.test_assignors:Fails"])
    for call in (
        lambda: assignors.subscriptions(["t"], [], -1),
        lambda: assignors.assign("fails", [], LAYOUT),
        lambda: assignors.assigned("fails", [], 3),
    ):
        with pytest.raises(OptionError, match=r"assignor 'fails'.*KeyError\('oops'\)"):
            call()
