"""A task begins with the leaders that its driver knows, and looks them up itself where these are wrong."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source.errors import DataLoss
from spark_group_source.fetch import cluster_pool
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import LATEST, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.known_leaders import known_leaders
from spark_group_source.wire.metadata import Broker, Metadata
from spark_group_source.wire.offset_lookup import list_offsets
from tests.fake import FakeKafka, Fault, releases
from tests.unit.fetch.tasks import fill, of, offsets, task
from tests.unit.wire_options import after, wire_options

PARTITIONS = [TopicPartition("t", number) for number in (0, 1)]


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    fill(fake)
    fill(fake, partition=1)


@pytest.fixture
def driver(fake: FakeKafka) -> Iterator[Cluster]:
    """The cluster as the driver knows it, which has just looked up the end offsets."""
    with closing(Cluster(wire_options(fake))) as cluster:
        list_offsets(cluster, dict.fromkeys(PARTITIONS, LATEST), read_committed=False, deadline=after())
        yield cluster


def told(fake: FakeKafka, driver: Cluster, *ranges: tuple[int, int, int], **given: Any) -> FetchTask:
    """A task with the leaders that the driver knows, as it arrives in another process."""
    wanted = task(fake, *ranges, **given)
    leaders = known_leaders(driver, [each.tp for each in wanted.ranges])
    copied: FetchTask = pickle.loads(pickle.dumps(replace(wanted, leaders=leaders)))
    return copied


def apis_of(fake: FakeKafka, wanted: FetchTask, rows: list[tuple[int, int]]) -> list[str]:
    """What the brokers were asked until the task had these rows."""
    before = len(fake.requests)
    assert sorted(offsets(read(wanted))) == rows
    return [api for api, _, _ in fake.requests[before:]]


ALL = of(0, 0, 20) + of(1, 0, 20)


def test_a_new_worker_fetches_without_a_lookup(fake: FakeKafka, driver: Cluster) -> None:
    apis = apis_of(fake, told(fake, driver, (0, 0, 20), (1, 0, 20)), ALL)
    assert sorted(apis) == sorted(["ApiVersions", "ClusterId", "Fetch"] * 2)


def test_each_task_of_a_worker_adds_the_leaders_of_its_own_partitions(fake: FakeKafka, driver: Cluster) -> None:
    assert "Metadata" not in apis_of(fake, told(fake, driver, (0, 0, 20)), of(0, 0, 20))
    assert apis_of(fake, told(fake, driver, (1, 0, 20)), of(1, 0, 20)) == ["ApiVersions", "ClusterId", "Fetch"]
    assert len(cluster_pool._idle_clusters) == 1, "one worker"


def test_a_worker_that_knows_other_partitions_only_looks_its_own_up_at_once(fake: FakeKafka, driver: Cluster) -> None:
    slow: dict[str, Any] = {"retry_backoff": 50.0, "retry_backoff_max": 50.0}
    apis_of(fake, told(fake, driver, (0, 0, 20), **slow), of(0, 0, 20))
    assert "Metadata" in apis_of(fake, task(fake, (1, 0, 20), **slow), of(1, 0, 20))


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "moved"])
def test_leaders_that_have_changed_since_the_plan_are_looked_up(fake: FakeKafka, driver: Cluster, stops: bool) -> None:
    wanted = told(fake, driver, (0, 0, 20), (1, 0, 20))
    fake.elect("t", 0, leader=2)
    if stops:
        fake.brokers[1].stop()
    assert "Metadata" in apis_of(fake, wanted, ALL)


def test_on_a_host_where_the_address_leads_elsewhere_the_bootstrap_server_is_asked_next(
    fake: FakeKafka, driver: Cluster
) -> None:
    """One attempt: the other brokers that the driver knows are as wrong, and may cost a timeout each."""
    wanted = told(fake, driver, (0, 0, 20), (1, 0, 20))
    assert wanted.leaders is not None
    elsewhere = {each: Broker(each, "127.0.0.1", 1) for each in wanted.leaders.brokers}
    wrong = replace(wanted, leaders=Metadata(elsewhere, wanted.leaders.topics))
    apis = apis_of(fake, wrong, ALL)
    assert apis.index("Metadata") < apis.index("Fetch")
    (kept,) = [each for _, each in cluster_pool._idle_clusters.values()]
    assert not kept._only_told


def test_a_topic_that_was_recreated_since_the_plan_is_data_loss(fake: FakeKafka, driver: Cluster) -> None:
    wanted = told(fake, driver, (0, 0, 20))
    fake.delete_topic("t")
    fake.create_topic("t", partitions=2)
    fill(fake)
    with pytest.raises(DataLoss, match="was deleted"):
        list(read(wanted))


def test_a_leader_of_a_later_epoch_replaces_the_one_that_a_worker_knows(fake: FakeKafka, driver: Cluster) -> None:
    apis_of(fake, told(fake, driver, (0, 0, 10)), of(0, 0, 10))
    fake.elect("t", 0, leader=2)
    driver.metadata(["t"], after())
    apis = apis_of(fake, told(fake, driver, (0, 10, 20)), of(0, 10, 20))
    assert apis == ["ApiVersions", "ClusterId", "Fetch"], "broker 2 at once"


def test_what_only_a_lookup_can_tell_is_not_told(fake: FakeKafka, driver: Cluster) -> None:
    assert known_leaders(driver, [*PARTITIONS, TopicPartition("other", 0)]).topics.keys() == {"t"}
    assert known_leaders(driver, [*PARTITIONS, TopicPartition("t", 7)]) == Metadata(), "an unknown partition"
    fake.logs["t"][1].leader = None
    driver.metadata(["t"], after())
    assert known_leaders(driver, PARTITIONS) == Metadata(), "no leader"
    assert known_leaders(driver, PARTITIONS[:1]).topics.keys() == {"t"}
    driver.close()
    assert known_leaders(driver, PARTITIONS[:1]) == Metadata(), "no connection shows what the broker supports"


@pytest.mark.parametrize("name", ["2.8", "3.0"])
def test_no_leaders_are_told_whose_fetches_compare_no_topic_ids(fake: FakeKafka, name: str) -> None:
    fake.offered = dict.fromkeys(fake.brokers, releases.kafka(*map(int, name.split("."))))
    with closing(Cluster(wire_options(fake))) as driver:
        list_offsets(driver, dict.fromkeys(PARTITIONS, LATEST), read_committed=False, deadline=after())
        assert known_leaders(driver, PARTITIONS) == Metadata()


def test_a_leader_that_does_not_know_the_topic_yet_is_asked_again(fake: FakeKafka, driver: Cluster) -> None:
    fake.next("Fetch", Fault(error=100), times=2)
    apis_of(fake, told(fake, driver, (0, 0, 20), (1, 0, 20)), ALL)
