"""Ages of the lag, on a fake Kafka, with a clock of records and one of lookups that the tests set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.lag.ages import DENIED_AGAIN, KEEP, MAX_CLOCK_DIFFERENCE, OldestRecords, age_at
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.model import Sample
from spark_group_source.offsets import TopicPartition
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.unit.records.build import marker

GROUP = "g"
NOW = 1_700_000_000
READ, DESCRIBE = 3, 8


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Topics t of three partitions, and u with one, whose leaders are two brokers."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=3)
        running.create_topic("u")
        yield running


class Client(GroupLagClient):
    """A client at the time ``NOW``, which tells lookups of ages apart by a clock that the test turns."""

    def __init__(self, fake: FakeKafka, clock: Hand, timeout: float = 60.0, /, **more: str) -> None:
        options = {"kafka.bootstrap.servers": fake.bootstrap_servers, "kafka.group.id": GROUP, "subscribe": "t,u"}
        super().__init__(options | more, timeout, now=lambda: float(NOW))
        self._oldest = OldestRecords(self._cluster, read_committed=self._read_committed, clock=clock)

    def ages(self) -> dict[str, float | None]:
        return ages(self.sample())


@pytest.fixture
def client(fake: FakeKafka, hand: Hand) -> Iterator[Client]:
    with closing(Client(fake, hand)) as opened:
        yield opened


def ages(sample: Sample) -> dict[str, float | None]:
    return {str(each.tp): each.age for each in sample.partitions()}


def produce(fake: FakeKafka, *ages: float, partition: int = 0, topic: str = "t") -> None:
    """Appends a record of each of these ages, each in a batch of its own."""
    for age in ages:
        fake.produce(topic, ["x"], partition, timestamp=round((NOW - age) * 1000))


def commit(fake: FakeKafka, topic: str = "t", **offsets: int) -> None:
    fake.commit(GROUP, {(topic, int(number[1:])): offset for number, offset in offsets.items()})


def test_the_age_is_that_of_the_first_record_that_is_not_committed(fake: FakeKafka, client: Client) -> None:
    produce(fake, 300, 200.5, 100)
    produce(fake, 7, partition=1)
    commit(fake, p0=1, p1=0, p2=0)
    assert client.ages() == {"t-0": 200.5, "t-1": 7.0, "t-2": 0.0}
    commit(fake, p0=2, p1=1)
    assert client.ages() == {"t-0": 100.0, "t-1": 0.0, "t-2": 0.0}
    produce(fake, 50, partition=2)
    commit(fake, p0=3)
    assert client.ages() == {"t-0": 0.0, "t-1": 0.0, "t-2": 50.0}


def test_a_partition_without_a_commit_has_no_age_as_it_has_no_lag(fake: FakeKafka, client: Client) -> None:
    produce(fake, 300)
    produce(fake, 300, partition=1)
    commit(fake, p1=0)
    assert client.ages() == {"t-1": 300.0}


def test_timestamps_that_say_nothing_give_no_age(fake: FakeKafka, client: Client) -> None:
    fake.produce("t", ["x"], 0, timestamp=-1)
    fake.produce("t", ["x"], 1, timestamp=NOW * 1_000_000)
    produce(fake, -0.4, partition=2)
    commit(fake, p0=0, p1=0, p2=0)
    assert client.ages() == {"t-0": None, "t-1": None, "t-2": 0.0}


def test_an_age_is_never_negative_and_absent_for_times_that_no_clock_has() -> None:
    assert age_at(100.0, 99_500) == 0.5
    assert age_at(100.0, 100_500) == 0.0
    assert age_at(100.0, round((100 + MAX_CLOCK_DIFFERENCE) * 1000)) == 0.0
    assert age_at(100.0, round((100 + MAX_CLOCK_DIFFERENCE) * 1000) + 1) is None
    assert age_at(100.0, 0) == 100.0
    assert age_at(100.0, -1) is None
    assert age_at(100.0, None) == 0.0


def test_with_read_committed_an_open_transaction_has_no_age_and_what_is_before_it_has(
    fake: FakeKafka, hand: Hand, client: Client
) -> None:
    produce(fake, 300)
    fake.begin("t", 0)
    produce(fake, 200)
    with closing(Client(fake, hand, 60.0, **{"kafka.isolation.level": "read_committed"})) as committed:
        commit(fake, p0=0)
        assert (committed.ages(), client.ages()) == ({"t-0": 300.0}, {"t-0": 300.0})
        commit(fake, p0=1)
        assert (committed.ages(), client.ages()) == ({"t-0": 0.0}, {"t-0": 200.0})


def test_a_marker_that_a_client_does_not_commit_is_no_old_record(fake: FakeKafka, client: Client, hand: Hand) -> None:
    produce(fake, 300)
    fake.append("t", 0, marker(0, producer=7, commit=True), 1)
    commit(fake, p0=1)
    sample = client.sample()
    assert [(each.lag, each.age) for each in sample.partitions()] == [(1, 0.0)]
    produce(fake, 20)
    assert client.ages() == {"t-0": 20.0}


def test_the_oldest_record_left_counts_if_the_committed_offset_has_expired(fake: FakeKafka, client: Client) -> None:
    produce(fake, 300, 200, 100)
    commit(fake, p0=0)
    fake.truncate("t", 0, 2)
    assert client.ages() == {"t-0": 100.0}


def test_a_commit_behind_the_end_of_the_log_has_age_0_as_its_lag(fake: FakeKafka, client: Client) -> None:
    produce(fake, 300)
    commit(fake, p0=9)
    assert [(each.lag, each.age) for each in client.sample().partitions()] == [(0, 0.0)]


def test_the_record_behind_an_unchanged_commit_is_fetched_once_a_minute(
    fake: FakeKafka, client: Client, hand: Hand
) -> None:
    produce(fake, 300, 200, 100)
    commit(fake, p0=0, p1=0)
    for _ in range(3):
        assert client.ages()["t-0"] == 300.0
        produce(fake, 1)
    assert fake.request_count("Fetch") == 1
    fake.truncate("t", 0, 1)
    assert client.ages()["t-0"] == 300.0
    hand.sleep(KEEP)
    assert client.ages()["t-0"] == 200.0
    commit(fake, p0=2)
    assert client.ages()["t-0"] == 100.0
    assert fake.request_count("Fetch") == 4, "one for the offset that the log no longer has"


def test_a_group_without_lag_fetches_nothing(fake: FakeKafka, client: Client) -> None:
    produce(fake, 300)
    commit(fake, p0=1, p1=0)
    assert client.ages() == {"t-0": 0.0, "t-1": 0.0}
    assert fake.request_count("Fetch") == 0


def test_a_topic_that_may_not_be_read_has_lag_without_ages_and_one_warning_says_why(
    fake: FakeKafka, client: Client, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    produce(fake, 300)
    produce(fake, 200, topic="u")
    commit(fake, p0=0)
    commit(fake, "u", p0=0)
    fake.denied["u"] = READ
    for _ in range(3):
        sample = client.sample()
        assert ages(sample) == {"t-0": 300.0, "u-0": None}
        assert sample.total() == 2
    warnings = [each.getMessage() for each in caplog.records]
    assert warnings == ["group g: the age of the lag is unknown for topics that this principal may not read: u"]
    assert fake.request_count("Fetch") == 1
    del fake.denied["u"]
    hand.sleep(DENIED_AGAIN)
    assert client.ages() == {"t-0": 300.0, "u-0": 200.0}


def test_fetches_that_fail_leave_the_lag_known_and_the_others_ages(fake: FakeKafka, hand: Hand) -> None:
    produce(fake, 300)
    produce(fake, 200, partition=1)
    commit(fake, p0=0, p1=0)
    with closing(Client(fake, hand, 1.0)) as client:
        fake.next("Fetch", Fault(silent=True, broker=2))
        sample = client.sample()
        assert (ages(sample), sample.total()) == ({"t-0": 300.0, "t-1": None}, 2)
        assert client.ages() == {"t-0": 300.0, "t-1": 200.0}


def test_a_hung_leader_leaves_time_for_the_ages_of_the_others(fake: FakeKafka, hand: Hand) -> None:
    produce(fake, 300)
    produce(fake, 200, partition=1)
    with closing(Client(fake, hand, 1.0)) as client:
        commit(fake, p0=1, p1=1)
        client.sample()
        commit(fake, p0=0, p1=0)
        fake.brokers[2].hung = True
        sample = client.sample()
    fake.brokers[2].hung = False
    assert (ages(sample), sample.unknown()) == ({"t-0": 300.0}, (TopicPartition("t", 1),))
