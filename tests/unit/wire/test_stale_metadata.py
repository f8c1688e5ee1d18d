"""What several brokers know of topics, where each alone may lag."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.wire import stale_metadata
from spark_group_source.wire.metadata import Broker, Metadata, Topic, merge
from spark_group_source.wire.stale_metadata import EveryBroker, is_confirmed


class Brokers:
    """So many brokers; those that are ``silent`` do not answer, and only ``knows`` knows the topic."""

    def __init__(self, count: int, silent: Collection[int] = (), knows: int = 1) -> None:
        self.ids, self.silent, self.knows = list(range(count)), silent, knows
        self.asked: list[int] = []
        self.waits: list[float] = []
        self.view = EveryBroker(self)  # type: ignore[arg-type]

    def broker_ids(self) -> list[int]:
        return self.ids

    def metadata(self, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        return self._answer(0)

    def metadata_from(self, broker: int, topics: Collection[str] | None, deadline: Deadline) -> Metadata:
        self.asked.append(broker)
        self.waits.append(deadline.remaining())
        if broker in self.silent:
            raise BrokerUnavailable("it is away")
        return self._answer(broker)

    def _answer(self, broker: int) -> Metadata:
        topics = {"t": Topic("t", "id", {0: 1})} if broker == self.knows else {}
        return Metadata({each: Broker(each, "h", each) for each in self.ids}, topics)

    def found(self) -> Collection[str]:
        return self.view.metadata(None, Deadline.after(90.0)).topics.keys()


def test_a_topic_exists_if_any_broker_knows_it() -> None:
    assert Brokers(3, knows=2).found() == {"t"}
    assert Brokers(3, knows=7).found() == set()


@pytest.mark.parametrize(
    ("count", "silent", "confirmed"),
    [(1, [], True), (2, [], True), (2, [1], False), (3, [1], True), (3, [1, 2], False), (100, [], True)],
)
def test_what_exists_is_confirmed_by_two_brokers_or_the_only_one(
    count: int, silent: list[int], confirmed: bool
) -> None:
    brokers = Brokers(count, silent, knows=-1)
    brokers.found()
    assert brokers.view.confirmed == confirmed


def test_a_topic_that_only_one_of_two_brokers_knows_is_not_confirmed() -> None:
    brokers = Brokers(2, knows=1)
    assert brokers.found() == {"t"}
    assert not brokers.view.confirmed


def test_few_brokers_are_asked_and_none_holds_the_lookup_for_long() -> None:
    brokers = Brokers(100)
    brokers.found()
    assert len(set(brokers.asked)) == len(brokers.asked) == stale_metadata.MAX_ASKED
    assert max(brokers.waits) <= stale_metadata.ANSWER_TIMEOUT


def test_a_cluster_without_brokers_confirms_nothing() -> None:
    assert not is_confirmed([], 0, [])


KNOWN, UNKNOWN = Topic("t", "id", {0: 1}), Topic("t", "", {}, error=3)
NO_LEADER, DENIED = Topic("t", "", {}, error=5), Topic("t", "", {}, error=29)


@pytest.mark.parametrize(
    ("answers", "confirmed"),
    [
        ([KNOWN, KNOWN], True),
        ([UNKNOWN, UNKNOWN], True),
        ([None, None], True),
        ([DENIED, DENIED], True),
        ([KNOWN, UNKNOWN], False),  # the second broker lags behind
        ([KNOWN, None], False),
        ([KNOWN, NO_LEADER], False),  # the second broker does not say what it knows
        ([NO_LEADER, UNKNOWN], False),
        ([KNOWN, KNOWN, UNKNOWN], True),
    ],
)
def test_a_broker_confirms_the_partitions_of_the_topics_of_which_it_says_something(
    answers: list[Topic | None], confirmed: bool
) -> None:
    of_each = [{} if topic is None else {"t": topic} for topic in answers]
    assert is_confirmed(of_each, 3, ["t"]) == confirmed


def test_of_two_leaders_the_one_of_the_later_epoch_is_the_leader() -> None:
    old = Topic("t", "id", {0: 1, 1: 1}, replicas={0: [1], 1: [1]}, epochs={0: 4, 1: 4})
    new = Topic("t", "id", {0: 2, 1: 2, 2: None}, replicas={0: [2], 1: [2], 2: [2]}, epochs={0: 5, 1: 3, 2: 0})
    merged = merge([{"t": old}, {"t": new}])["t"]
    assert merged.partitions == {0: 2, 1: 1, 2: None}
    assert merged.epochs == {0: 5, 1: 4, 2: 0}
    assert merged.replicas == {0: [2], 1: [1], 2: [2]}


def test_the_epochs_of_a_former_topic_are_not_compared() -> None:
    now, former = Topic("t", "new", {0: 1}, epochs={0: 0}), Topic("t", "old", {0: 2}, epochs={0: 9})
    assert merge([{"t": now}, {"t": former}])["t"].partitions == {0: 1}
