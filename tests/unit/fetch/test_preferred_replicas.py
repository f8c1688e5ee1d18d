"""A task with a rack reads from the preferred replica, and from the leader after any error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_group_source.fetch import reader
from spark_group_source.fetch.reader import TaskReader, read
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.fake import FakeKafka, Fault

LONG = 90.0
LEADER, FOLLOWER = 1, 2


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """One partition with broker 1 as leader; broker 2 is the preferred replica for rack ``here``."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t")
        running.logs["t"][0].nearest["here"] = FOLLOWER
        for first in range(0, 20, 5):
            running.produce("t", [f"{first + each:0100d}" for each in range(5)])
        yield running
    for _, kept in reader._idle_clusters.values():
        kept.close()
    reader._idle_clusters.clear()


WIRE = {"request_timeout", "metadata_max_age"}


def task(fake: FakeKafka, rack: str | None = "here", **given: Any) -> FetchTask:
    brokers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    of_wire = {"request_timeout": LONG} | {key: given.pop(key) for key in WIRE & given.keys()}
    wire = WireOptions(brokers, "test", retry_backoff=0.01, rack=rack, **of_wire)
    ranges = (OffsetRange("t", 0, 0, 20, str(fake.ids["t"])),)
    # Each fetch returns one record batch.
    more = {"max_wait": 0.01, "poll_timeout": LONG, "fetch_max_bytes": 200} | given
    return FetchTask(ranges, wire, arrow_schema(["offset"]), FetchSettings(**more))


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [row["offset"] for each in batches for row in each.to_pylist()]


def asked(fake: FakeKafka) -> list[int]:
    """The brokers that received fetches, in order."""
    return [node for api, node, _ in fake.requests if api == "Fetch"]


def test_the_leader_is_asked_once_and_the_preferred_replica_serves_the_rest(fake: FakeKafka) -> None:
    assert offsets(read(task(fake))) == list(range(20))
    assert asked(fake) == [LEADER] + [FOLLOWER] * 4
    assert {request.rack_id for api, _, request in fake.requests if api == "Fetch"} == {"here"}


@pytest.mark.parametrize("rack", [None, "elsewhere"])
def test_without_a_replica_in_the_rack_the_leader_serves(fake: FakeKafka, rack: str | None) -> None:
    assert offsets(read(task(fake, rack))) == list(range(20))
    assert set(asked(fake)) == {LEADER}


def test_the_leader_is_asked_again_after_the_maximum_age_of_metadata(fake: FakeKafka) -> None:
    hand = [0.0]
    made = task(fake, metadata_max_age=5.0)
    cluster = Cluster(made.wire)
    try:
        rows = TaskReader(made, cluster, lambda: hand[0]).batches()
        for _ in range(4):
            next(rows)
            # The next fetch is already in flight.
            hand[0] += 3.0
    finally:
        cluster.close()
    assert asked(fake) == [LEADER, FOLLOWER, FOLLOWER, FOLLOWER, LEADER, FOLLOWER][: len(asked(fake))]
    assert asked(fake).count(LEADER) == 2


@pytest.mark.parametrize("error", [1, 3, 6, 56, 78])
def test_after_an_error_of_the_follower_the_leader_is_read(fake: FakeKafka, error: int) -> None:
    fake.next("Fetch", Fault(error=error, broker=FOLLOWER))
    assert offsets(read(task(fake))) == list(range(20))
    assert asked(fake) == [LEADER, FOLLOWER] + [LEADER] * 4


@pytest.mark.parametrize("harm", [Fault(drop="before", broker=FOLLOWER), Fault(drop="after", broker=FOLLOWER)])
def test_a_follower_whose_connection_breaks_is_not_used_again(fake: FakeKafka, harm: Fault) -> None:
    fake.next("Fetch", harm)
    assert offsets(read(task(fake))) == list(range(20))
    assert asked(fake).count(FOLLOWER) <= 1


def test_after_a_follower_is_unreachable_the_leader_is_read(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    fake.brokers[FOLLOWER].stop()
    assert offsets(read(task(fake))) == list(range(20))
    assert set(asked(fake)) == {LEADER}
    assert "t-0 is read from its leader again, because broker 2 failed" in caplog.text


def test_after_a_follower_is_silent_the_leader_is_read(fake: FakeKafka) -> None:
    fake.next("Fetch", Fault(silent=True, broker=FOLLOWER))
    assert offsets(read(task(fake, request_timeout=0.5))) == list(range(20))
    assert asked(fake) == [LEADER, FOLLOWER] + [LEADER] * 4


def test_a_task_does_not_wait_for_a_lagging_follower(fake: FakeKafka) -> None:
    def behind(answer: Any) -> None:
        part = answer.responses[0].partitions[0]
        part.records, part.high_watermark = b"", 0

    fake.next("Fetch", Fault(edit=behind, broker=FOLLOWER))
    assert offsets(read(task(fake))) == list(range(20))
    assert asked(fake) == [LEADER, FOLLOWER] + [LEADER] * 4


def test_data_loss_is_decided_by_the_leader_and_not_the_follower(fake: FakeKafka) -> None:
    fake.truncate("t", 0, 10)
    fake.next("Fetch", Fault(error=1, broker=FOLLOWER))
    assert offsets(read(task(fake, fail_on_data_loss=False))) == list(range(10, 20))
