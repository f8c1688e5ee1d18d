"""A broker that lags in metadata when a query starts: what it does not know is neither new nor gone. On the fake."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.conftest import Bench, Query, eventually
from tests.fake import Fault

LAGGING = 1


@pytest.fixture(autouse=True)
def asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal brokers, the lagging one comes first."""
    monkeypatch.setattr("spark_group_source.wire.cluster.random.random", lambda: 0.5)


@pytest.fixture
def lagging(on_fake: Bench) -> Bench:
    """Broker 1 knows four of six partitions, of which the others begin at offset 0 and 3, and end at 5."""
    fake = on_fake.fake
    fake.freeze_metadata(LAGGING)
    fake.create_topic(on_fake.topic, partitions=6)
    on_fake.produce(5, 5, 5, 5, 5, 5)
    fake.truncate(on_fake.topic, 5, 3)
    return on_fake


def options(bench: Bench, **given: str) -> dict[str, str]:
    """The lagging broker is the first that a query asks; members look for topics often."""
    first = f"127.0.0.1:{bench.fake.brokers[LAGGING].port}"
    return {"kafka_bootstrap_servers": first, "kafka_metadata_max_age_ms": "200", "startingOffsets": "latest"} | given


@pytest.mark.parametrize("caught_up", [False, True])
def test_partitions_that_a_lagging_broker_does_not_know_at_the_start_are_no_added_ones(
    lagging: Bench, caught_up: bool
) -> None:
    query = lagging.join(None, **options(lagging))
    if caught_up:
        lagging.fake.thaw_metadata(LAGGING)
    eventually(lambda: query.idle().owns() == set(range(6)), "all partitions")
    assert query.read == [], "records from before the start"
    lagging.produce(1, 1, 1, 1, 1, 1)
    eventually(lambda: len(query.idle().read) == 6, "the new records")
    assert {each.partition: (each.start, each.end) for each in query.read} == dict.fromkeys(range(6), (5, 6))


def test_a_topic_that_a_lagging_broker_does_not_know_at_the_start_matches_a_pattern(on_fake: Bench) -> None:
    fake = on_fake.fake
    fake.move_coordinator(2)  # offsets need a coordinator that knows the topic
    fake.freeze_metadata(LAGGING)
    fake.create_topic("topic-2", partitions=2)
    fake.produce("topic-2", ["old"], partition=1)  # of which broker 2 is the leader
    query = on_fake.join(None, **options(on_fake, subscribePattern="topic.*"))
    tracker = query.driver._assigned_partitions.tracker
    eventually(lambda: ("topic-2", 1) in tracker.positions(query.idle().me), "its position")
    fake.produce("topic-2", ["new"], partition=1)
    eventually(lambda: query.idle().read, "the new record")
    assert [(*each.tp, each.start, each.end) for each in query.read] == [("topic-2", 1, 1, 2)]


def test_a_partition_that_is_added_after_such_a_start_is_read_from_earliest(lagging: Bench) -> None:
    query = lagging.start(None, **options(lagging))
    lagging.fake.create_topic(lagging.topic, partitions=7)
    lagging.produce(0, 0, 0, 0, 0, 0, 3)
    lagging.fake.thaw_metadata(LAGGING)
    eventually(lambda: query.idle().read, "its records")
    assert [(each.partition, each.start, each.end) for each in query.read] == [(6, 0, 3)]


def test_a_topic_that_one_broker_does_not_know_stays_with_its_pattern_from_the_start(on_fake: Bench) -> None:
    def forget(response: Any) -> None:
        response.topics = [topic for topic in response.topics if topic.name != "topic"]

    often = options(on_fake, subscribePattern="topic.*")
    first, other = on_fake.join(None, **often), on_fake.join(None, **often)
    on_fake.fake.next("Metadata", Fault(edit=forget, broker=LAGGING, only=lambda each: each.topics is None), 100_000)
    on_fake.split(first, other)
    revoked = first.driver.counters.revoked + other.driver.counters.revoked
    on_fake.await_request("Metadata", 40)
    assert first.driver.counters.revoked + other.driver.counters.revoked == revoked
    assert first.driver.counters.lost == other.driver.counters.lost == 0


def was_confirmed(query: Query) -> bool:
    """Whether enough brokers answered the last lookup of topics at the start."""
    return query.driver._topics.confirmed


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_what_only_the_second_lookup_of_a_start_finds_is_no_added_partition(lagging: Bench, start: str) -> None:
    """Spark asks twice as a query starts. The first time, only the lagging broker answers."""
    silent = Fault(silent=True, broker=2)
    for api in ("Metadata", "ApiVersions"):
        lagging.next(api, silent, times=100)
    query = lagging.query(None, **options(lagging, startingOffsets=start))
    query.driver.pin_starts()
    lagging.fake.clear_faults()
    assert was_confirmed(query) is False
    time.sleep(5.0)  # until its backoff ends
    query.start()
    assert was_confirmed(query) is True
    eventually(lambda: query.idle().owns() == set(range(6)), "all partitions")
    old = {} if start == "latest" else dict.fromkeys(range(5), (0, 5)) | {5: (3, 5)}
    assert {each.partition: (each.start, each.end) for each in query.read} == old
    now = round(time.time() * 1000)
    for number in range(6):
        lagging.fake.produce(lagging.topic, ["new"], number, now)
    eventually(lambda: query.idle().read[len(old) + 5 :], "the new records")
    assert {each.partition: (each.start, each.end) for each in query.read[len(old) :]} == dict.fromkeys(
        range(6), (5, 6)
    )
