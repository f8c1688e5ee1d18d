"""One broker alone removes no partition."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.topics import TopicView
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Broker, Metadata, Topic

ALL = {1, 2, 3}
UNKNOWN_TOPIC = 3


class Brokers:
    """A cluster whose brokers have different metadata. ``asked`` responds for all; ``down`` brokers do not."""

    def __init__(self) -> None:
        self.asked = 1
        self.down: set[int] = set()
        self.topics: dict[int, int] = dict.fromkeys(ALL, 4)
        self.brokers: dict[int, set[int]] = dict.fromkeys(ALL, ALL)
        self._known: set[int] = set()

    def metadata(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        self._known = self.brokers[self.asked]
        return self._told(self.asked)

    def metadata_from(self, broker: int, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        if broker in self.down or broker not in self._known:
            raise BrokerUnavailable(f"Broker {broker} is down.")
        return self._told(broker)

    def broker_ids(self) -> list[int]:
        return sorted(self._known)

    def _told(self, broker: int) -> Metadata:
        partitions = dict.fromkeys(range(self.topics[broker]), 1)
        topic = Topic("t", "id", partitions, error=0 if partitions else UNKNOWN_TOPIC)
        return Metadata({each: Broker(each, "h", each) for each in self.brokers[broker]}, {"t": topic})


@pytest.fixture
def cluster() -> Brokers:
    return Brokers()


@pytest.fixture
def view(cluster: Brokers) -> TopicView:
    """A view that has seen four partitions on three brokers."""
    view = TopicView(cluster, "g")  # type: ignore[arg-type]
    assert seen(view) == {0, 1, 2, 3}
    return view


def seen(view: TopicView) -> set[int]:
    return set(view.metadata(["t"], Deadline.after(60)).topics["t"].partitions)


@pytest.mark.parametrize("lagging", [0, 2], ids=["not the topic", "fewer partitions"])
@pytest.mark.parametrize("down", [set(), {2}, {2, 3}], ids=["others up", "one down", "others down"])
@pytest.mark.parametrize("names", [ALL, {1}], ids=["knows all brokers", "knows itself only"])
def test_a_partition_that_one_broker_does_not_know_stays(
    cluster: Brokers, view: TopicView, lagging: int, down: set[int], names: set[int]
) -> None:
    cluster.topics[1], cluster.brokers[1], cluster.down = lagging, names, down
    for _ in range(3):
        assert seen(view) == {0, 1, 2, 3}
    assert bool(view.disputed) == (down == {2, 3} or names == {1})


@pytest.mark.parametrize("down", [set(), {2}], ids=["all up", "one down"])
def test_a_partition_that_two_brokers_do_not_know_counts_as_deleted(
    cluster: Brokers, view: TopicView, down: set[int]
) -> None:
    cluster.topics, cluster.down = dict.fromkeys(ALL, 2), down
    assert seen(view) == {0, 1}


def test_the_response_of_the_only_broker_counts(cluster: Brokers) -> None:
    cluster.brokers[1] = {1}
    view = TopicView(cluster, "g")  # type: ignore[arg-type]
    assert seen(view) == {0, 1, 2, 3}
    cluster.topics[1] = 2
    assert seen(view) == {0, 1}


def test_the_only_remaining_broker_counts_after_a_complete_response(cluster: Brokers, view: TopicView) -> None:
    cluster.brokers[1] = {1}
    assert seen(view) == {0, 1, 2, 3}
    cluster.topics[1] = 2
    assert seen(view) == {0, 1}


def test_a_partition_that_members_own_exists(cluster: Brokers) -> None:
    view = TopicView(cluster, "g")  # type: ignore[arg-type]
    view.expect({TopicPartition("t", 3)})
    cluster.topics[1] = 2
    assert seen(view) == {0, 1, 2, 3}
