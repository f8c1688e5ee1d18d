"""The requests of a query until its first batch. Those that wait for each other cost a round trip each, far away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import LATEST
from spark_group_source.wire.offset_lookup import list_offsets
from tests.drivers import drivers
from tests.fake import FakeKafka

BROKERS = 3


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=BROKERS, heartbeat_interval=5.0) as running:
        running.create_topic("t", partitions=BROKERS)
        for number in range(BROKERS):
            running.produce("t", ["value"] * 5, partition=number)
        yield running


def options(fake: FakeKafka, protocol: str = "classic") -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "kafka.group.id": "g",
        "kafka.group.protocol": protocol,
        "subscribe": "t",
        "startingOffsets": "earliest",
    }


def apis(fake: FakeKafka, since: int = 0) -> list[str]:
    return [api for api, _, _ in fake.requests[since:]]


def until_the_first_commit(fake: FakeKafka) -> list[str]:
    asked = apis(fake)
    return asked[: asked.index("OffsetCommit") + 1]


@pytest.mark.parametrize(
    ("protocol", "lookups"),
    [
        # Each broker at the start, the leader of the group for its assignment, and once for all that a start needs.
        ("classic", BROKERS + 1 + 1),
        # Each broker at the start, the member before its join, and once for all that a start needs.
        ("consumer", BROKERS + 1 + 1),
    ],
)
def test_each_lookup_until_the_first_commit_is_needed(fake: FakeKafka, protocol: str, lookups: int) -> None:
    with drivers(options(fake, protocol)) as begin:
        begin()
        asked = Counter(until_the_first_commit(fake))
    assert asked["Metadata"] == lookups
    assert asked["OffsetFetch"] == asked["FindCoordinator"] == 1
    assert asked["ListOffsets"] == BROKERS, "the leaders are known"


def test_a_client_that_has_not_asked_before_asks_once_for_all_that_a_start_needs(fake: FakeKafka) -> None:
    """Such is that of a member that does not lead its group."""
    with drivers(options(fake)) as begin:
        driver = begin()
        assigned, me = driver._assigned_partitions, driver._member.snapshot()
        partitions = frozenset(me.owned)
        assert len(partitions) == BROKERS
        assigned.partitions_revoked(partitions)
        assigned.tracker.partitions_assigned(partitions, me)
        started = len(fake.requests)
        clients = KafkaClients.connect(driver._settings, Timings(), driver._identity)
        with closing(clients.cluster):
            assigned.resolve(partitions, me, clients)
            list_offsets(
                clients.cluster, dict.fromkeys(partitions, LATEST), read_committed=False, deadline=Deadline.after(30.0)
            )
        asked = Counter(apis(fake, started))
    assert asked["Metadata"] == asked["OffsetFetch"] == 1
    assert asked["ListOffsets"] == BROKERS, "the leaders are known"
