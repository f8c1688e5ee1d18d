"""A task with a rack reads from the preferred replica, and from the leader after any error."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from spark_group_source.fetch.reader import TaskReader
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.fetch.tasks import fetched, fetches, fill, task
from tests.unit.hand_clock import Hand

LEADER, FOLLOWER = 1, 2


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    """Broker 1 is the leader of partition 0; broker 2 is the preferred replica for rack ``here``."""
    fake.logs["t"][0].nearest["here"] = FOLLOWER
    fill(fake, size=100)


def read_all(fake: FakeKafka, rack: str | None = "here", **given: Any) -> list[int]:
    # Each fetch returns one record batch.
    return [offset for _, offset in fetched(fake, (0, 0, 20), rack=rack, fetch_max_bytes=200, **given)]


def asked(fake: FakeKafka) -> list[int]:
    """The brokers that received fetches, in order."""
    return [node for api, node, _ in fake.requests if api == "Fetch"]


def test_the_leader_is_asked_once_and_the_preferred_replica_serves_the_rest(fake: FakeKafka) -> None:
    assert read_all(fake) == list(range(20))
    assert asked(fake) == [LEADER] + [FOLLOWER] * 4
    assert {request.rack_id for request in fetches(fake)} == {"here"}


@pytest.mark.parametrize("rack", [None, "elsewhere"])
def test_without_a_replica_in_the_rack_the_leader_serves(fake: FakeKafka, rack: str | None) -> None:
    assert read_all(fake, rack=rack) == list(range(20))
    assert set(asked(fake)) == {LEADER}


def test_the_leader_is_asked_again_after_the_maximum_age_of_metadata(fake: FakeKafka) -> None:
    hand = Hand()
    made = task(fake, (0, 0, 20), rack="here", fetch_max_bytes=200, metadata_max_age=5.0)
    with closing(Cluster(made.wire)) as cluster:
        rows = TaskReader(made, cluster, hand).batches()
        for _ in range(4):
            next(rows)
            # The next fetch is already in flight.
            hand.now += 3.0
    assert asked(fake) == [LEADER, FOLLOWER, FOLLOWER, FOLLOWER, LEADER, FOLLOWER][: len(asked(fake))]
    assert asked(fake).count(LEADER) == 2


def behind(answer: Any) -> None:
    part = answer.responses[0].partitions[0]
    part.records, part.high_watermark = b"", 0


@pytest.mark.parametrize(
    "fault",
    [
        *({"error": code} for code in (1, 3, 6, 56, 78)),
        *({"drop": "before"}, {"drop": "after"}, {"silent": True}, {"edit": behind}),
    ],
    ids=lambda fault: ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in fault.items()),
)
def test_after_an_error_of_the_follower_the_leader_is_read(
    fake: FakeKafka, fault: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fake.next("Fetch", Fault(broker=FOLLOWER, **fault))
    assert read_all(fake, request_timeout=0.5) == list(range(20))
    received = [] if fault == {"drop": "before"} else [FOLLOWER]
    assert asked(fake) == [LEADER, *received] + [LEADER] * 4
    assert "reading t-0 from its leader again, because broker 2" in caplog.text


def test_data_loss_is_decided_by_the_leader_and_not_the_follower(fake: FakeKafka) -> None:
    fake.truncate("t", 0, 10)
    fake.next("Fetch", Fault(error=1, broker=FOLLOWER))
    assert read_all(fake, fail_on_data_loss=False) == list(range(10, 20))
