"""Earliest and latest offsets come from the current leaders in time; errors of one partition do not affect others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError, RetriableError, TopicError
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import send_to_leaders
from spark_group_source.wire.offset_lookup import ListedOffsets, _list_offsets_request, list_offsets
from tests.fake import FakeKafka, Fault
from tests.unit.fetch.tasks import unknown
from tests.unit.hand_clock import Hand
from tests.unit.wire_options import LONG, after, wire_options
from tests.waiting import eventually

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
Lookup = Callable[..., dict[str, int]]


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    fake.produce("t", ["1", "2", "3"], partition=0)


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    """A cluster whose timeouts are longer than the deadlines here."""
    with closing(Cluster(wire_options(fake, retry_backoff=0.1, retry_backoff_max=1.0))) as made:
        yield made


@pytest.fixture
def lookup(fake: FakeKafka, hand: Hand) -> Iterator[Lookup]:
    """Looks up with a backoff so long, on the manual clock, that a deadline is between two attempts, never in one."""
    with closing(Cluster(wire_options(fake, retry_backoff=30.0, retry_backoff_max=30.0))) as made:
        yield lambda missing=None, within=LONG: ends(made, missing, within, hand)


def ends(
    cluster: Cluster, missing: set[TopicPartition] | None = None, within: float = LONG, clock: Clock = monotonic
) -> dict[str, int]:
    """The latest offsets; adds partitions that do not exist to ``missing``, without which they are an error."""
    deadline, partial = Deadline.after(within, clock), missing is not None
    found = list_offsets(cluster, {A: -1, B: -1}, read_committed=False, deadline=deadline, partial=partial)
    if missing is not None:
        missing |= found.missing
    return {str(tp): offset for tp, offset in found.offsets.items()}


def test_earliest_latest_and_last_stable_offsets_are_found(fake: FakeKafka, cluster: Cluster) -> None:
    fake.truncate("t", 0, 1)
    fake.logs["t"][0].stable = 2
    assert list_offsets(cluster, {A: -2, B: -1}, read_committed=False, deadline=after()).offsets == {A: 1, B: 0}
    assert list_offsets(cluster, {A: -1}, read_committed=True, deadline=after()).offsets == {A: 2}
    assert list_offsets(cluster, {}, read_committed=True, deadline=after()) == ListedOffsets()


def test_the_epochs_are_those_of_the_offsets(fake: FakeKafka, cluster: Cluster) -> None:
    def of_no_record(response: Any) -> None:
        response.topics[0].partitions[0].leader_epoch = -1

    find = partial(list_offsets, cluster, read_committed=False, deadline=after())
    fake.elect("t", 0)
    assert find({A: -1, B: -1}) == ListedOffsets({A: 3, B: 0}, {A: 1, B: 0})
    fake.next("ListOffsets", Fault(edit=of_no_record))
    assert find({A: 2**60}) == ListedOffsets({A: -1})


@pytest.mark.parametrize(
    "fault",
    [
        *({"error": code} for code in (-1, 3, 5, 6, 7, 9, 13, 56, 74, 75, 78)),
        *({"drop": "before"}, {"silent": True}, {"truncate": 9}),
    ],
    ids=str,
)
def test_a_moved_or_unreachable_leader_is_asked_again(fake: FakeKafka, fault: dict[str, Any]) -> None:
    fake.next("ListOffsets", Fault(**fault), times=3 if "error" in fault else 1)
    began = time.monotonic()
    with closing(Cluster(wire_options(fake, request_timeout=0.3, retry_backoff_max=0.02))) as cluster:
        assert ends(cluster) == {"t-0": 3, "t-1": 0}
    assert time.monotonic() - began < 25.0, "a response may take 30 s by default"


def test_a_throttled_leader_takes_no_time_from_the_others(fake: FakeKafka, cluster: Cluster) -> None:
    topics = cluster.metadata({"t"}, after()).topics
    fake.next("ListOffsets", Fault(throttle=LONG, broker=1))
    ends(cluster)
    request = partial(_list_offsets_request, read_committed=False)
    began = time.monotonic()
    answers, errors = send_to_leaders(cluster, topics, {A: -1, B: -1}, request, Deadline.after(1.5 * LONG))
    assert time.monotonic() - began < LONG / 2
    assert [each.topics[0].partitions[0].partition_index for each in answers] == [B.partition]
    assert [*errors] == [A]


def test_an_election_longer_than_the_deadline_is_retriable(fake: FakeKafka, lookup: Lookup) -> None:
    fake.next("ListOffsets", Fault(error=6), times=1000)
    with pytest.raises(RetriableError, match=r"6 \("):
        lookup(within=100.0)
    fake.clear_faults()
    assert lookup() == {"t-0": 3, "t-1": 0}


@pytest.mark.parametrize("error_code", [-1, 2, 3, 5, 6, 7, 9, 13, 41, 56, 72, 74, 75, 78, 89])
def test_an_error_that_kafka_calls_retriable_is_retried(fake: FakeKafka, lookup: Lookup, error_code: int) -> None:
    fake.next("ListOffsets", Fault(error=error_code), times=2)
    assert lookup() == {"t-0": 3, "t-1": 0}


def test_found_offsets_are_returned_even_if_no_broker_sends_metadata(fake: FakeKafka, lookup: Lookup) -> None:
    lookup()
    fake.next("ListOffsets", Fault(error=9, broker=2), times=1000)
    fake.next("Metadata", Fault(drop="before"), times=1000)
    missing: set[TopicPartition] = set()
    assert lookup(missing, within=100.0) == {"t-0": 3}
    assert not missing, "it exists"
    fake.clear_faults()
    assert lookup(missing) == {"t-0": 3, "t-1": 0}


def test_a_denied_describe_fails_at_once(fake: FakeKafka, cluster: Cluster) -> None:
    fake.next("ListOffsets", Fault(error=29))
    with pytest.raises(TopicError, match="DESCRIBE") as error:
        ends(cluster)
    assert error.value.error_code == 29


def test_a_partition_that_does_not_exist_is_an_error_or_missing(fake: FakeKafka, lookup: Lookup) -> None:
    del fake.logs["t"][1]
    with pytest.raises(TopicError, match="t-1 does not exist"):
        lookup(within=100.0)
    missing: set[TopicPartition] = set()
    assert lookup(missing, within=1000.0) == {"t-0": 3}
    assert missing == {B}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [(1, set()), (2, set()), (3, set()), (4, set()), (5, {B})],
    ids=["one", "one and one of two", "one and all", "one, all, and one of two", "one, all, and all"],
)
def test_a_partition_is_missing_after_two_attempts_in_a_row_and_if_no_broker_knows_it(
    fake: FakeKafka, lookup: Lookup, answers: int, expected: set[TopicPartition]
) -> None:
    fake.logs["t"][1].leader = None
    fake.next("Metadata", Fault(), times=3)
    fake.next("Metadata", Fault(edit=unknown), times=answers)
    missing: set[TopicPartition] = set()
    assert lookup(missing, within=1000.0) == {"t-0": 3}
    assert missing == expected


def test_a_partition_that_the_first_broker_does_not_know_is_found_at_another(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_group_source.wire.cluster.random.random", lambda: 0.5)  # broker 1 is always the first
    fake.next("Metadata", Fault(edit=unknown, broker=1), times=1000)
    assert ends(cluster, set()) == {"t-0": 3, "t-1": 0}
    assert ends(cluster) == {"t-0": 3, "t-1": 0}


def test_a_partition_without_a_leader_is_left_out_if_others_are_found(fake: FakeKafka, lookup: Lookup) -> None:
    fake.logs["t"][1].leader = None
    missing: set[TopicPartition] = set()
    assert lookup(missing, within=1000.0) == {"t-0": 3}
    assert not missing, "it exists"
    with pytest.raises(GroupSourceError, match="t-1 .*no leader"):
        lookup(within=100.0)


def test_a_missing_partition_is_returned_even_if_no_other_has_a_leader(fake: FakeKafka, lookup: Lookup) -> None:
    fake.logs["t"][0].leader = None
    del fake.logs["t"][1]
    missing: set[TopicPartition] = set()
    assert lookup(missing, within=1000.0) == {}
    assert missing == {B}


def test_a_partition_that_a_response_lacks_is_asked_for_again_after_a_backoff(
    fake: FakeKafka, lookup: Lookup, hand: Hand
) -> None:
    fake.next("ListOffsets", Fault(edit=lambda response: response.topics.clear(), broker=2), times=2)
    assert lookup() == {"t-0": 3, "t-1": 0}
    assert hand.now >= 30.0, "the backoff of the lookup"
    fake.next("ListOffsets", Fault(edit=lambda response: response.topics.clear(), broker=2), times=1000)
    with pytest.raises(RetriableError, match="t-1 timed out: The response of the leader of t-1 does not have"):
        lookup(within=100.0)


def test_the_lookup_fails_early_if_no_partition_has_a_leader(fake: FakeKafka, lookup: Lookup, hand: Hand) -> None:
    for log in fake.logs["t"].values():
        log.leader = None
    with pytest.raises(RetriableError, match="t-0 .*no leader"):
        lookup(set(), within=1000.0)
    assert hand.now < 1000.0 / 2


@pytest.mark.parametrize("connected", [True, False])
def test_a_hanging_leader_does_not_block_the_responses_of_others(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    monkeypatch.setattr("spark_group_source.wire.any_broker.MIN_BROKER_TIMEOUT", 0.05)
    cluster.metadata(["t"], after())
    kept = [cluster.connection(number, after()) for number in (1, 2)]
    if not connected:
        cluster.close()
    fake.brokers[1].hung = True  # the first to get a request, and to be read
    assert ends(cluster, set(), within=1.0) == {"t-1": 0}
    assert cluster.is_connected(2)
    assert not connected or cluster.connection(2, after()) is kept[1], "the connection is still usable"
    fake.brokers[1].hung = False


def test_all_requests_are_sent_before_the_first_response_is_read(fake: FakeKafka, cluster: Cluster) -> None:
    ends(cluster)
    held = threading.Event()
    for number in (1, 2):
        fake.next("ListOffsets", Fault(hold=held, broker=number))
    before = len(fake.requests)
    asking = threading.Thread(target=lambda: ends(cluster))
    asking.start()
    deadline = time.monotonic() + 20.0  # the fake holds responses for at most 30 s
    eventually(lambda: sum(api == "ListOffsets" for api, _, _ in fake.requests[before:]) == 2)
    assert time.monotonic() < deadline, "only one leader got a request"
    held.set()
    asking.join(LONG)


def test_unknown_partitions_are_retriable_before_the_last_attempt(fake: FakeKafka, lookup: Lookup) -> None:
    fake.logs["t"].clear()
    missing: set[TopicPartition] = set()
    with pytest.raises(RetriableError, match="t-0 .* timed out: t-0 does not exist"):
        lookup(missing, within=50.0)
    assert not missing
