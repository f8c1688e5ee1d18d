"""A leader's view of topics if brokers contradict each other."""

from __future__ import annotations

import logging
from collections.abc import Collection

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.topics import TopicView
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Metadata, Topic

SOON = Deadline.after(90.0)
DENIED = 29
UNKNOWN = 3


def topic(name: str, count: int, error: int = 0) -> Topic:
    return Topic(name, "id", dict.fromkeys(range(count), 1), error=error)


class Brokers:
    """Brokers that each have their own metadata; ``None`` does not respond. The first is asked first."""

    def __init__(self, *answers: dict[str, Topic] | None) -> None:
        self.answers = list(answers)
        self.asked = 0

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        return self.metadata_from(0, topics, deadline)

    def metadata_from(self, broker: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        self.asked += 1
        response = self.answers[broker]
        if response is None:
            raise BrokerUnavailable("it is away")
        return Metadata(topics={name: each for name, each in response.items() if topics is None or name in topics})

    def broker_ids(self) -> list[int]:
        return list(range(len(self.answers)))


def seen(view: TopicView, wanted: Collection[str] | None = ("t",)) -> dict[str, int]:
    """The number of partitions of each topic without an error."""
    topics = view.metadata(wanted, SOON).topics
    return {name: len(each.partitions) for name, each in topics.items() if not each.error}


def view_of(brokers: Brokers) -> TopicView:
    return TopicView(brokers, "g")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "odd", [{}, {"t": topic("t", 0, UNKNOWN)}, {"t": topic("t", 2)}], ids=["left out", "unknown", "fewer partitions"]
)
@pytest.mark.parametrize("wanted", [("t",), None], ids=["by name", "by pattern"])
def test_one_broker_with_old_metadata_removes_no_partition(
    odd: dict[str, Topic], wanted: Collection[str] | None
) -> None:
    brokers = Brokers({"t": topic("t", 4)}, {"t": topic("t", 4)})
    view = view_of(brokers)
    assert seen(view, wanted) == {"t": 4}
    brokers.answers[0] = odd
    assert seen(view, wanted) == {"t": 4}
    assert not view.disputed


def test_a_topic_counts_as_deleted_if_no_broker_knows_it() -> None:
    brokers = Brokers({"t": topic("t", 4)}, {})
    view = view_of(brokers)
    assert seen(view) == {"t": 4}
    brokers.answers[0] = {}
    assert seen(view) == {}
    brokers.asked = 0
    assert seen(view) == {}
    assert brokers.asked == 1, "the partition counts as deleted, and no other broker is asked again"


def test_a_partition_that_no_second_broker_can_confirm_stays_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers({"t": topic("t", 2)}, None)
    view = view_of(brokers)
    seen(view)
    brokers.answers[0] = {"t": topic("t", 1)}
    assert [seen(view), seen(view)] == [{"t": 2}, {"t": 2}]
    assert view.disputed == {TopicPartition("t", 1)}
    assert caplog.text.count("one broker does not know t-1, and no second broker responded") == 1


def test_partitions_that_members_own_are_known_before_any_metadata() -> None:
    brokers = Brokers({}, {"t": topic("t", 3)})
    view = view_of(brokers)
    view.expect([TopicPartition("t", 2)])
    assert seen(view) == {"t": 3}


def test_a_complete_response_needs_no_other_broker() -> None:
    brokers = Brokers({"t": topic("t", 2)}, {"t": topic("t", 2)})
    view = view_of(brokers)
    seen(view)
    brokers.answers[0] = {"t": topic("t", 5)}
    assert seen(view) == {"t": 5}
    assert brokers.asked == 2


def test_a_topic_that_the_leader_may_not_describe_keeps_its_owned_partitions(caplog: pytest.LogCaptureFixture) -> None:
    brokers = Brokers({"t": topic("t", 0, DENIED), "u": topic("u", 1)})
    view = view_of(brokers)
    view.expect([TopicPartition("t", 1)])
    with caplog.at_level(logging.WARNING):
        assert [seen(view, ("t", "u")), seen(view, ("t", "u"))] == [{"t": 1, "u": 1}] * 2
    assert caplog.text.count("may not describe t, to which members are subscribed") == 1
