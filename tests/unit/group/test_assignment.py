"""Subscriptions and assignments on the wire."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.errors import OptionError
from spark_group_source.group.assignment import Assignors, JoinedMember, decode_assignment, subscribed_topics
from spark_group_source.group.assignors import ASSIGNORS
from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Broker, Metadata, Topic

EIGHT = [TopicPartition("t", number) for number in range(8)]
LAYOUT = PartitionCounts({"t": frozenset(range(8)), "other": frozenset({0})})


def assign(assignor: str, members: list[JoinedMember]) -> dict[str, frozenset[TopicPartition]]:
    encoded = Assignors([assignor]).assign(assignor, members, LAYOUT)
    return {member_id: decode_assignment(assignment) for member_id, assignment in encoded.items()}


def subscription(topics: list[str], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """The subscription of a cooperative-sticky member; eager assignors except sticky read the topics alone."""
    return Assignors(["cooperative-sticky"]).subscriptions(topics, owned, generation)["cooperative-sticky"]


def user_data(assignors: Assignors, name: str, generation: int) -> bytes:
    encoded = assignors.subscriptions(["t", "u"], [], generation)[name]
    return bytes(ConsumerProtocolSubscription.decode(encoded).user_data)


def test_a_subscription_has_owned_partitions_and_their_generation() -> None:
    decoded = ConsumerProtocolSubscription.decode(subscription(["t"], EIGHT[:2], 7))
    assert (decoded.version, decoded.topics, decoded.generation_id) == (3, ["t"], 7)
    assert [(each.topic, each.partitions) for each in decoded.owned_partitions] == [("t", [0, 1])]


def test_a_subscription_has_the_rack_if_set() -> None:
    for rack in ("eu-1a", None):
        encoded = Assignors(["range"], rack).subscriptions(["t"], [], -1)["range"]
        assert ConsumerProtocolSubscription.decode(encoded).rack_id == rack


def test_cooperative_sticky_assigns_a_partition_only_after_its_owner_revoked_it() -> None:
    old, new = JoinedMember("a", subscription(["t"], EIGHT, 3)), JoinedMember("b", subscription(["t"], [], -1))
    first = assign("cooperative-sticky", [old, new])
    assert len(first["a"]) == 4
    assert first["b"] == frozenset()
    kept = JoinedMember("a", subscription(["t"], first["a"], 4))
    second = assign("cooperative-sticky", [kept, new])
    assert second["a"] == first["a"]
    assert second["b"] == frozenset(EIGHT) - first["a"]


SHARE = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 7)]
JAVAS = {
    "sticky": "00000002000174000000020000000000000001000175000000010000000700000005",
    "cooperative-sticky": "00000005",
}
"""subscriptionUserData() of Kafka 4.1.1's own assignors after the assignment above in generation 5."""


@pytest.mark.parametrize("name", sorted(JAVAS))
def test_sticky_sends_its_last_assignment_and_generation_as_kafkas_client_does(name: str) -> None:
    assignors = Assignors([name])
    assignors.assigned(name, SHARE, 5)
    assert user_data(assignors, name, 5).hex() == JAVAS[name]


def test_sticky_sends_the_generation_of_its_assignment_after_one_without_assignment() -> None:
    assignors = Assignors(["sticky"])
    assignors.assigned("sticky", SHARE, 5)
    # The member joined generation 6, which ended before its sync: another member may have synced.
    assert user_data(assignors, "sticky", 6).hex() == JAVAS["sticky"]


def test_sticky_claims_nothing_after_a_loss() -> None:
    assignors = Assignors(["sticky"])
    assignors.assigned("sticky", SHARE, 5)
    assert user_data(assignors, "sticky", -1) == b""
    assert user_data(assignors, "sticky", 9) == b""


def after(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """The subscription of a sticky member that had ``partitions`` in ``generation`` and revoked them."""
    assignors = Assignors(["sticky"])
    assignors.assigned("sticky", partitions, generation)
    return assignors.subscriptions(["t"], [], generation)["sticky"]


def test_sticky_returns_partitions_to_their_members_and_moves_as_few_as_possible() -> None:
    mine = frozenset(EIGHT[::2])
    others = frozenset(EIGHT) - mine
    stayed = assign("sticky", [JoinedMember("a", after(mine, 3)), JoinedMember("b", after(others, 3))])
    assert stayed == {"a": mine, "b": others}
    joined = assign(
        "sticky",
        [JoinedMember("a", after(mine, 3)), JoinedMember("b", after(others, 3)), JoinedMember("c", after([], 3))],
    )
    assert sorted(len(each) for each in joined.values()) == [2, 3, 3]
    assert joined["a"] < mine
    assert joined["b"] < others


def test_the_later_generation_wins_if_two_members_claim_a_partition() -> None:
    assigned = assign(
        "sticky", [JoinedMember("returns", after(EIGHT, 3)), JoinedMember("took-over", after(EIGHT[:4], 4))]
    )
    assert assigned["took-over"] == frozenset(EIGHT[:4])


@pytest.mark.parametrize(
    "written",
    [
        bytes.fromhex("000000010001740000000200000000000000010000" + "0003"),
        b"\0\1" + bytes.fromhex("000000010001740000000200000000000000010000" + "0003"),
        bytes.fromhex("00000001000174000000020000000000000001"),
    ],
    ids=["kafka", "kafka-python", "kafka before 2.3"],
)
def test_the_leader_reads_the_last_assignment_of_a_sticky_member_of_any_client(written: bytes) -> None:
    encoded = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=written).encode()
    assigned = assign("sticky", [JoinedMember("other", encoded), JoinedMember("new", after([], 3))])
    assert {EIGHT[0], EIGHT[1]} <= assigned["other"]


def test_unreadable_user_data_claims_nothing() -> None:
    encoded = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"\0\1junk").encode()
    assigned = assign("sticky", [JoinedMember("other", encoded), JoinedMember("mine", after(EIGHT[:4], 3))])
    assert assigned["mine"] == frozenset(EIGHT[:4])


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("version", [0, 1])
def test_members_with_an_older_subscription_version_get_partitions(assignor: str, version: int) -> None:
    old = ConsumerProtocolSubscription(version=version, topics=["t"], user_data=b"", owned_partitions=[]).encode()
    assigned = assign(assignor, [JoinedMember("a", subscription(["t"], [], -1)), JoinedMember("old", old)])
    assert assigned["a"] | assigned["old"] == set(EIGHT)
    assert len(assigned["old"]) == 4


UNREADABLE = {
    "nothing": b"",
    "cut off": b"\0\3\0\0\0\1\0\5ab",
    "no list of topics": bytes.fromhex("0000ffffffff00000000"),
    "a topic without a name": bytes.fromhex("000000000001ffff00000000"),
    "endless": bytes.fromhex("00007fffffff"),
}


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("written", UNREADABLE.values(), ids=UNREADABLE)
def test_a_member_with_an_unreadable_subscription_gets_an_empty_assignment(
    assignor: str, written: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    members = [JoinedMember("odd", written), JoinedMember("a", subscription(["t"], [], -1))]
    assert subscribed_topics(members) == {"t"}
    encoded = Assignors([assignor]).assign(assignor, members, LAYOUT)
    assert ConsumerProtocolAssignment.decode(encoded["odd"]).assigned_partitions == []
    assert decode_assignment(encoded["a"]) == set(EIGHT)
    assert "member odd gets no partitions" in caplog.text


def test_a_subscription_without_the_fields_of_its_version_is_read_as_version_0() -> None:
    cut = b"\0\3" + ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"").encode()[2:]
    assert assign("range", [JoinedMember("old", cut)]) == {"old": set(EIGHT)}


def test_topics_with_an_error_or_without_partitions_are_not_assigned() -> None:
    metadata = Metadata(
        {}, {"t": Topic("t", "id", {0: None}), "e": Topic("e", "", {0: 1}, error=29), "n": Topic("n", "", {})}
    )
    assert PartitionCounts.of(metadata) == PartitionCounts({"t": frozenset({0})})


def test_partitions_have_the_racks_of_their_available_replicas() -> None:
    brokers = {1: Broker(1, "h", 1, "a"), 2: Broker(2, "h", 2, "b"), 3: Broker(3, "h", 3)}
    partition_counts = PartitionCounts.of(
        Metadata(brokers, {"t": Topic("t", "id", {0: 1, 1: 3}, replicas={0: (1, 2, 4), 1: (3,)})})
    )
    assert partition_counts.racks == {EIGHT[0]: {"a", "b"}, EIGHT[1]: frozenset()}


@pytest.mark.parametrize("assignor", ["range", "sticky", "cooperative-sticky"])
def test_a_member_gets_partitions_in_its_rack_if_the_assignment_stays_balanced(assignor: str) -> None:
    partition_counts = PartitionCounts(
        {"t": frozenset(range(4))}, {tp: frozenset("a" if tp.partition > 1 else "b") for tp in EIGHT[:4]}
    )
    members = [
        JoinedMember(rack, Assignors([assignor], rack).subscriptions(["t"], [], -1)[assignor]) for rack in ("a", "b")
    ]
    encoded = Assignors([assignor]).assign(assignor, members, partition_counts)
    assert decode_assignment(encoded["a"]) == set(EIGHT[2:4])
    assert decode_assignment(encoded["b"]) == set(EIGHT[:2])


def test_racks_do_not_count_in_a_comparison_of_partition_counts() -> None:
    assert PartitionCounts(LAYOUT.partitions, {EIGHT[0]: frozenset("a")}) == LAYOUT


def test_the_leader_assigns_topics_to_which_only_other_members_subscribe() -> None:
    members = [JoinedMember("a", subscription(["t"], [], -1)), JoinedMember("b", subscription(["other"], [], -1))]
    assert subscribed_topics(members) == {"t", "other"}
    assert assign("range", members) == {"a": frozenset(EIGHT), "b": frozenset({TopicPartition("other", 0)})}


def test_an_empty_assignment_has_no_partitions() -> None:
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
def test_a_member_is_cooperative_only_if_all_its_assignors_are(names: list[str], cooperative: bool) -> None:
    assert Assignors(names).cooperative is cooperative


def test_an_error_names_a_users_assignor_that_fails() -> None:
    assignors = Assignors(["tests.unit.group.test_assignors:Fails"])
    for call in (
        lambda: assignors.subscriptions(["t"], [], -1),
        lambda: assignors.assign("fails", [], LAYOUT),
        lambda: assignors.assigned("fails", [], 3),
    ):
        with pytest.raises(OptionError, match=r"assignor 'fails'.*KeyError\('oops'\)"):
            call()
