"""The topics of a subscription, and a leader's view of them if brokers contradict each other."""

from __future__ import annotations

import logging
from collections.abc import Collection

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.subscription import Subscription
from spark_group_source.group.topic_view import TopicView
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.metadata import Broker, Metadata, Topic

SOON = Deadline.after(90.0)
DENIED = 29
UNKNOWN = 3


def topic(name: str, count: int, error: int = 0) -> Topic:
    return Topic(name, "id", dict.fromkeys(range(count), 1), internal=name.startswith("__"), error=error)


TWO, FOUR = {"t": topic("t", 2)}, {"t": topic("t", 4)}


class Brokers:
    """Brokers that each have their own metadata; ``None`` does not respond. The first is asked first."""

    def __init__(self, *answers: dict[str, Topic] | None) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.view = TopicView(self, "g")  # type: ignore[arg-type]

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        return self.metadata_from(0, topics, deadline)

    def metadata_from(self, broker: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        self.asked += 1
        response = self.answers[broker]
        if response is None:
            raise BrokerUnavailable("it is away")
        brokers = {each: Broker(each, "h", each) for each in self.broker_ids()}
        return Metadata(brokers, {name: each for name, each in response.items() if topics is None or name in topics})

    def broker_ids(self) -> list[int]:
        return list(range(len(self.answers)))

    def seen(self, wanted: Collection[str] | None = ("t",)) -> dict[str, int]:
        """The number of partitions of each topic without an error."""
        topics = self.view.metadata(wanted, SOON).topics
        return {name: len(each.partitions) for name, each in topics.items() if not each.error}


@pytest.mark.parametrize(
    "odd", [{}, {"t": topic("t", 0, UNKNOWN)}, TWO], ids=["left out", "unknown", "fewer partitions"]
)
@pytest.mark.parametrize("wanted", [("t",), None], ids=["by name", "by pattern"])
@pytest.mark.parametrize(
    ("others", "disputed"),
    [([FOUR, FOUR], False), ([None, FOUR], False), ([None, None], True), ([], True)],
    ids=["others up", "one down", "others down", "knows itself only"],
)
def test_a_partition_that_one_broker_does_not_know_stays_with_one_warning_if_no_other_confirms_it(
    odd: dict[str, Topic],
    wanted: Collection[str] | None,
    others: list[dict[str, Topic] | None],
    disputed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers(FOUR, FOUR, FOUR)
    assert brokers.seen(wanted) == {"t": 4}
    brokers.answers = [odd, *others]
    for _ in range(3):
        assert brokers.seen(wanted) == {"t": 4}
    lacking = {TopicPartition("t", number) for number in range(2 if odd is TWO else 0, 4)}
    assert brokers.view.disputed == (lacking if disputed else set())
    assert caplog.text.count(", and no second broker has confirmed that, so these partitions stay assigned") == disputed


@pytest.mark.parametrize("others", [[TWO, TWO], [None, TWO]], ids=["all up", "one down"])
def test_a_partition_that_two_brokers_do_not_know_counts_as_deleted(others: list[dict[str, Topic] | None]) -> None:
    brokers = Brokers(FOUR, FOUR, FOUR)
    assert brokers.seen() == {"t": 4}
    brokers.answers = [TWO, *others]
    assert brokers.seen() == {"t": 2}
    brokers.asked = 0
    assert brokers.seen() == {"t": 2}
    assert brokers.asked == 1, "no other broker is asked again"


@pytest.mark.parametrize("before", [0, 2])
def test_the_response_of_the_only_broker_counts_after_a_complete_one(before: int) -> None:
    brokers = Brokers(FOUR, *[FOUR] * before)
    assert brokers.seen() == {"t": 4}
    brokers.answers = [FOUR]
    assert brokers.seen() == {"t": 4}
    brokers.answers = [TWO]
    assert brokers.seen() == {"t": 2}


def test_a_topic_that_the_leader_may_not_describe_keeps_its_owned_partitions(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers({"t": topic("t", 0, DENIED), "u": topic("u", 1)})
    brokers.view.expect([TopicPartition("t", 1)])
    with caplog.at_level(logging.WARNING):
        assert [brokers.seen(("t", "u")) for _ in range(2)] == [{"t": 1, "u": 1}] * 2
    assert caplog.text.count("may not describe t, to which members are subscribed") == 1


@pytest.mark.parametrize(
    ("internal", "found"), [(False, {"orders", "zz-orders-x"}), (True, {"orders", "zz-orders-x", "__orders"})]
)
def test_a_pattern_matches_internal_topics_only_if_they_are_included(internal: bool, found: set[str]) -> None:
    topics = {name: topic(name, 1) for name in ("orders", "zz-orders-x", "bills", "__orders", "__offsets")}
    subscription = Subscription(pattern="orders", internal=internal)
    assert subscription.find(Brokers(topics), SOON).keys() == found  # type: ignore[arg-type]


def test_partitions_that_members_own_are_known_before_any_metadata() -> None:
    brokers = Brokers({}, FOUR)
    brokers.view.expect([TopicPartition("t", 2)])
    assert brokers.seen() == {"t": 4}
