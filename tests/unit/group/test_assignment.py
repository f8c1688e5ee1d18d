"""Subscriptions and assignments on the wire; ``range`` and ``roundrobin`` against recorded assignments of Kafka's Java
client; the sticky assignors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.errors import OptionError
from spark_group_source.group.assignors import ASSIGNORS
from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.group.classic.assignment import Assignors, JoinedMember, decode_assignment, subscribed_topics
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.wire.metadata import Broker, Metadata, Topic
from tests.assignments import JAVAS, Case, is_complete, ours


def of(topic: str, *numbers: int) -> Partitions:
    return frozenset(TopicPartition(topic, number) for number in numbers)


def counts(**topics: int) -> PartitionCounts:
    return PartitionCounts({topic: frozenset(range(count)) for topic, count in topics.items()})


EIGHT = of("t", *range(8))
LAYOUT = counts(t=8, other=1)
STICKY = ["cooperative-sticky", "sticky"]


def member(
    assignor: str,
    name: str,
    topics: str = "t",
    owned: Iterable[TopicPartition] = (),
    generation: int = -1,
    rack: str | None = None,
) -> JoinedMember:
    """A member with the assignment ``owned`` of this generation, revoked if the assignor is eager."""
    assignors = Assignors([assignor], rack)
    if generation >= 0:
        assignors.assigned(assignor, owned, generation)
    kept = owned if assignors.cooperative else ()
    return JoinedMember(name, assignors.subscriptions(topics.split(), kept, generation)[assignor])


def joined(name: str, **fields: Any) -> JoinedMember:
    """A member of another client."""
    given = {"version": 0, "topics": ["t"], "user_data": b""} | fields
    return JoinedMember(name, ConsumerProtocolSubscription(**given).encode())


def assign(assignor: str, *members: JoinedMember, layout: PartitionCounts = LAYOUT) -> dict[str, Partitions]:
    encoded = Assignors([assignor]).assign(assignor, members, layout)
    return {member_id: decode_assignment(assignment) for member_id, assignment in encoded.items()}


@pytest.mark.parametrize("recorded", JAVAS, ids=itemgetter("name"))
def test_the_assignment_is_the_same_as_javas(recorded: Case) -> None:
    answer = ours(recorded)
    assert is_complete(recorded, answer)
    assert answer == recorded["answer"]


def test_a_subscription_has_owned_partitions_and_their_generation() -> None:
    decoded = ConsumerProtocolSubscription.decode(
        member("cooperative-sticky", "a", "t", sorted(EIGHT)[:2], 7, "eu-1a").subscription
    )
    assert (decoded.version, decoded.topics, decoded.generation_id, decoded.rack_id) == (3, ["t"], 7, "eu-1a")
    assert [(each.topic, each.partitions) for each in decoded.owned_partitions] == [("t", [0, 1])]


def test_cooperative_sticky_assigns_a_partition_only_after_its_owner_revoked_it() -> None:
    new = member("cooperative-sticky", "b")
    first = assign("cooperative-sticky", member("cooperative-sticky", "a", "t", EIGHT, 3), new)
    assert (len(first["a"]), first["b"]) == (4, frozenset())
    second = assign("cooperative-sticky", member("cooperative-sticky", "a", "t", first["a"], 4), new)
    assert second == {"a": first["a"], "b": EIGHT - first["a"]}


JAVAS_USER_DATA = {
    "sticky": "00000002000174000000020000000000000001000175000000010000000700000005",
    "cooperative-sticky": "00000005",
}
"""subscriptionUserData() of Kafka 4.1.1's own assignors after an assignment of t-0, t-1 and u-7 in generation 5."""


def user_data(name: str, *generations: int) -> list[str | None]:
    """What a member sends in these generations after that assignment."""
    assignors = Assignors([name])
    assignors.assigned(name, [*sorted(of("t", 0, 1)), TopicPartition("u", 7)], 5)
    encoded = [assignors.subscriptions(["t", "u"], [], generation)[name] for generation in generations]
    found = [ConsumerProtocolSubscription.decode(each).user_data for each in encoded]
    return [None if each is None else bytes(each).hex() for each in found]


def test_sticky_sends_its_last_assignment_and_generation_as_kafkas_client_does() -> None:
    for name, expected in JAVAS_USER_DATA.items():
        assert user_data(name, 5) == [expected]
    # The member joined generation 6, which ended before its sync: another member may have synced.
    assert user_data("sticky", 6) == [JAVAS_USER_DATA["sticky"]]
    assert user_data("sticky", -1, 9) == [None, None], "after a loss it claims nothing"


OWNS_0_AND_1 = "00000001000174000000020000000000000001"


@pytest.mark.parametrize(
    ("written", "claimed"),
    [
        (bytes.fromhex(OWNS_0_AND_1 + "00000003"), of("t", 0, 1)),
        (b"\0\1" + bytes.fromhex(OWNS_0_AND_1 + "00000003"), of("t", 0, 1)),
        (bytes.fromhex(OWNS_0_AND_1), of("t", 0, 1)),
        (b"\0\1junk", frozenset()),
    ],
    ids=["kafka", "kafka-python", "kafka before 2.3", "unreadable"],
)
def test_the_leader_reads_the_last_assignment_that_any_sticky_client_sends(written: bytes, claimed: Partitions) -> None:
    mine = of("t", 4, 5, 6, 7)
    assigned = assign("sticky", joined("other", user_data=written), member("sticky", "mine", "t", mine, 3))
    assert assigned["mine"] == mine
    assert claimed <= assigned["other"]


def test_a_sticky_leader_remembers_its_assignment_for_members_that_send_none() -> None:
    leader = Assignors(["sticky"])
    # sarama sends back the user data of its assignment, which is null.
    others = [joined(name, user_data=None) for name in ("a", "b", "c")]
    layout = counts(t=9)

    def lead(*members: JoinedMember) -> dict[str, Partitions]:
        encoded = leader.assign("sticky", members, layout)
        return {member_id: decode_assignment(assignment) for member_id, assignment in encoded.items()}

    first = lead(*others)
    assert lead(*reversed(others)) == first
    fewer = lead(*others[1:])
    assert all(first[name] <= fewer[name] for name in ("b", "c"))
    claims = member("sticky", "new", "t", first["b"], 3)
    assert lead(claims, *others[1:])["new"] <= first["b"], "a member's own claim precedes what the leader remembers"


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("version", [0, 1])
def test_members_with_an_older_subscription_version_get_partitions(assignor: str, version: int) -> None:
    old = joined("old", version=version, owned_partitions=[])
    assigned = assign(assignor, member("cooperative-sticky", "a"), old)
    assert assigned["a"] | assigned["old"] == EIGHT
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
    members = [JoinedMember("odd", written), member("cooperative-sticky", "a")]
    assert subscribed_topics(members) == {"t"}
    encoded = Assignors([assignor]).assign(assignor, members, LAYOUT)
    assert ConsumerProtocolAssignment.decode(encoded["odd"]).assigned_partitions == []
    assert decode_assignment(encoded["a"]) == EIGHT
    assert "member odd gets no partitions" in caplog.text


def test_a_subscription_without_the_fields_of_its_version_is_read_as_version_0() -> None:
    cut = b"\0\3" + joined("old").subscription[2:]
    assert assign("range", JoinedMember("old", cut)) == {"old": EIGHT}


def test_topics_with_an_error_or_without_partitions_are_not_assigned() -> None:
    topics = {"t": Topic("t", "id", {0: None}), "e": Topic("e", "", {0: 1}, error=29), "n": Topic("n", "", {})}
    assert PartitionCounts.of(Metadata({}, topics)) == counts(t=1)


def test_partitions_have_the_racks_of_their_available_replicas_which_do_not_count_in_comparisons() -> None:
    brokers = {1: Broker(1, "h", 1, "a"), 2: Broker(2, "h", 2, "b"), 3: Broker(3, "h", 3)}
    topic = Topic("t", "id", {0: 1, 1: 3}, replicas={0: (1, 2, 4), 1: (3,)})
    found = PartitionCounts.of(Metadata(brokers, {"t": topic}))
    assert found.racks == {TopicPartition("t", 0): {"a", "b"}, TopicPartition("t", 1): frozenset()}
    assert found == counts(t=2)


def with_racks(racks: str) -> PartitionCounts:
    """A topic with a partition in each of these racks."""
    return PartitionCounts(
        {"t": frozenset(range(len(racks)))},
        {TopicPartition("t", number): frozenset(rack) for number, rack in enumerate(racks)},
    )


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
    now = had
    for generation in (3, 4):
        members = (member(assignor, name, "t", owned, generation, name[0]) for name, owned in now.items())
        now = assign(assignor, *members, layout=with_racks(racks))
    assert now == (new or had)


def test_the_leader_assigns_topics_to_which_only_other_members_subscribe() -> None:
    members = [member("range", "a", "t"), member("range", "b", "other")]
    assert subscribed_topics(members) == {"t", "other"}
    assert decode_assignment(b"") == frozenset()
    assert assign("range", *members) == {"a": EIGHT, "b": of("other", 0)}


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


@pytest.mark.parametrize("assignor", STICKY)
def test_a_balanced_assignment_stays_whoever_has_one_more(assignor: str) -> None:
    topics = {"a": "t", "b": "t", "c": "t u", "d": "u"}
    for had in (
        {"a": of("t", 0, 3), "b": of("t", 4), "c": of("t", 1, 2), "d": of("u", 0, 1, 2)},
        {"a": of("t", 2), "b": of("t", 0, 1), "c": of("t", 3, 4), "d": of("u", 0, 1, 2)},
        {"a": of("t", 0, 1), "b": of("t", 2, 3), "c": of("t", 4) | of("u", 2), "d": of("u", 0, 1)},
    ):
        members = [member(assignor, name, topics[name], owned, 3) for name, owned in had.items()]
        assert assign(assignor, *members, layout=counts(t=5, u=3)) == had
        assert assign(assignor, *reversed(members), layout=counts(t=5, u=3)) == had


@pytest.mark.parametrize("assignor", STICKY)
def test_equal_subscriptions_are_assigned_in_linear_time(assignor: str) -> None:
    def calls(size: int) -> int:
        """The function calls of a first assignment, and of one after a member has left."""
        names, layout, count = [f"m{number}" for number in range(20)], counts(t=size), 0

        def called(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        new = [member(assignor, name) for name in names]
        first = assign(assignor, *new, layout=layout)
        stay = [member(assignor, name, "t", first[name], 1) for name in names[1:]]
        sys.setprofile(called)
        try:
            for members in (new, stay):
                assign(assignor, *members, layout=layout)
        finally:
            sys.setprofile(None)
        return count

    assert calls(2000) < 4.5 * calls(500)
