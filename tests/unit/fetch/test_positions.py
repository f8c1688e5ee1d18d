"""Ends and beginnings of logs: asked of the leaders of now, in time, one partition's trouble apart from the others'."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError, TopicError
from spark_group_source.fetch.positions import list_offsets
from spark_group_source.offsets import TopicPartition
from spark_group_source.testing.fake import FakeKafka, Fault
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.unit.hand_clock import Hand

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
LONG = 90.0


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=2)
        running.produce("t", ["1", "2", "3"], partition=0)
        yield running


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    brokers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    made = Cluster(WireOptions(brokers, "test", request_timeout=0.3, retry_backoff=0.01, retry_backoff_max=0.02))
    yield made
    made.close()


@pytest.fixture
def unhurried(fake: FakeKafka) -> Iterator[Cluster]:
    """Waits for connections and answers for as long as the deadline allows."""
    brokers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    made = Cluster(WireOptions(brokers, "test"))
    yield made
    made.close()


@pytest.fixture
def patient(fake: FakeKafka, hand: Hand) -> Iterator[Cluster]:
    """Pauses for so long, on the clock turned by hand, that a deadline comes between two tries and never in one."""
    brokers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    made = Cluster(WireOptions(brokers, "test", retry_backoff=30.0, retry_backoff_max=30.0))
    yield made
    made.close()


def ends(
    cluster: Cluster, missing: set[TopicPartition] | None = None, within: float = LONG, clock: Clock = monotonic
) -> dict[str, int]:
    deadline = Deadline.after(within, clock)
    found = list_offsets(cluster, {A: -1, B: -1}, read_committed=False, deadline=deadline, missing=missing)
    return {str(tp): offset for tp, offset in found.items()}


def test_beginnings_ends_and_stable_ends_are_told(fake: FakeKafka, cluster: Cluster) -> None:
    fake.truncate("t", 0, 1)
    fake.logs["t"][0].stable = 2
    deadline = Deadline.after(LONG)
    assert list_offsets(cluster, {A: -2, B: -1}, read_committed=False, deadline=deadline) == {A: 1, B: 0}
    assert list_offsets(cluster, {A: -1}, read_committed=True, deadline=deadline) == {A: 2}
    assert list_offsets(cluster, {}, read_committed=True, deadline=deadline) == {}


@pytest.mark.parametrize("errno", [-1, 3, 5, 6, 7, 9, 13, 56, 74, 75, 78])
def test_a_leader_that_moves_is_asked_for_again(fake: FakeKafka, cluster: Cluster, errno: int) -> None:
    fake.next("ListOffsets", Fault(error=errno), times=3)
    assert ends(cluster) == {"t-0": 3, "t-1": 0}


@pytest.mark.parametrize("fault", [Fault(drop="before"), Fault(silent=True), Fault(truncate=9)], ids=str)
def test_a_broken_connection_is_opened_again(fake: FakeKafka, cluster: Cluster, fault: Fault) -> None:
    fake.next("ListOffsets", fault)
    began = time.monotonic()
    assert ends(cluster) == {"t-0": 3, "t-1": 0}
    assert time.monotonic() - began < 25.0, "an answer is waited for for 30 s by default"


def test_pauses_between_tries_double_up_to_the_longest(fake: FakeKafka, hand: Hand) -> None:
    made = Cluster(
        WireOptions((("127.0.0.1", fake.brokers[1].port),), "test", retry_backoff=5.0, retry_backoff_max=15.0)
    )
    fake.next("ListOffsets", Fault(error=6, broker=1), times=4)
    try:
        assert ends(made, within=1000.0, clock=hand) == {"t-0": 3, "t-1": 0}
    finally:
        made.close()
    assert hand.now == 5 + 10 + 15 + 15


@pytest.mark.parametrize("errno", [5, 6, 9, 78])
def test_an_election_that_outlasts_the_deadline_may_be_tried_again(
    fake: FakeKafka, patient: Cluster, hand: Hand, errno: int
) -> None:
    fake.next("ListOffsets", Fault(error=errno), times=1000)
    with pytest.raises(GroupSourceError) as error:
        ends(patient, within=100.0, clock=hand)
    assert error.value.retriable
    assert f"{errno} (" in str(error.value)
    fake.clear_faults()
    assert ends(patient, clock=hand) == {"t-0": 3, "t-1": 0}


def test_the_trouble_is_told_also_where_nobody_tells_the_new_leaders_until_the_deadline(
    fake: FakeKafka, patient: Cluster, hand: Hand
) -> None:
    ends(patient, clock=hand)
    fake.next("ListOffsets", Fault(error=9), times=1000)
    fake.next("Metadata", Fault(drop="before"), times=1000)
    with pytest.raises(GroupSourceError, match=r"9 \(REPLICA_NOT_AVAILABLE\)") as error:
        ends(patient, within=100.0, clock=hand)
    assert error.value.retriable
    assert hand.now >= 70.0, "it is tried until the deadline"


def test_what_is_found_is_returned_also_where_nobody_tells_the_new_leaders_until_the_deadline(
    fake: FakeKafka, patient: Cluster, hand: Hand
) -> None:
    ends(patient, clock=hand)
    fake.next("ListOffsets", Fault(error=9, broker=2), times=1000)
    fake.next("Metadata", Fault(drop="before"), times=1000)
    missing: set[TopicPartition] = set()
    assert ends(patient, missing, within=100.0, clock=hand) == {"t-0": 3}
    assert not missing, "it exists"
    fake.clear_faults()
    assert ends(patient, missing, clock=hand) == {"t-0": 3, "t-1": 0}


def test_a_topic_that_may_not_be_described_is_said_at_once(fake: FakeKafka, cluster: Cluster) -> None:
    fake.next("ListOffsets", Fault(error=29))
    with pytest.raises(TopicError, match="DESCRIBE") as error:
        ends(cluster)
    assert error.value.errno == 29


def test_a_partition_that_does_not_exist_is_an_error_or_left_out_as_missing(
    fake: FakeKafka, patient: Cluster, hand: Hand
) -> None:
    del fake.logs["t"][1]
    with pytest.raises(TopicError, match="t-1 does not exist"):
        ends(patient, within=100.0, clock=hand)
    missing: set[TopicPartition] = set()
    assert ends(patient, missing, within=1000.0, clock=hand) == {"t-0": 3}
    assert missing == {B}


@pytest.mark.parametrize(("rounds", "gone"), [(1, set()), (2, {B})])
def test_a_partition_is_missing_where_two_rounds_in_a_row_say_so(
    fake: FakeKafka, patient: Cluster, hand: Hand, rounds: int, gone: set[TopicPartition]
) -> None:
    def unknown(answer: Any) -> None:
        for topic in answer.topics:
            topic.error_code, topic.partitions = 3, []

    fake.logs["t"][1].leader = None
    fake.next("Metadata", Fault(), times=3)
    fake.next("Metadata", Fault(edit=unknown), times=rounds)
    missing: set[TopicPartition] = set()
    assert ends(patient, missing, within=1000.0, clock=hand) == {"t-0": 3}
    assert missing == gone


def test_partitions_that_are_unknown_at_the_deadline_may_be_asked_for_again_where_it_came_before_the_last_round(
    fake: FakeKafka, patient: Cluster, hand: Hand
) -> None:
    fake.logs["t"].clear()
    missing: set[TopicPartition] = set()
    with pytest.raises(GroupSourceError, match="t-0 .* not told in time: t-0 does not exist") as error:
        ends(patient, missing, within=50.0, clock=hand)
    assert error.value.retriable
    assert not missing


def test_a_partition_without_a_leader_is_left_out_where_others_are_found(
    fake: FakeKafka, patient: Cluster, hand: Hand
) -> None:
    fake.logs["t"][1].leader = None
    missing: set[TopicPartition] = set()
    assert ends(patient, missing, within=1000.0, clock=hand) == {"t-0": 3}
    assert not missing, "it exists"
    with pytest.raises(GroupSourceError, match="t-1 .*no leader"):
        ends(patient, within=100.0, clock=hand)


def test_partitions_that_all_have_no_leader_are_not_waited_for_where_the_caller_asks_again(
    fake: FakeKafka, patient: Cluster, hand: Hand
) -> None:
    for log in fake.logs["t"].values():
        log.leader = None
    with pytest.raises(GroupSourceError, match="t-0 .*no leader") as error:
        ends(patient, set(), within=1000.0, clock=hand)
    assert error.value.retriable
    assert hand.now < 1000.0 / 2


def test_a_leader_that_hangs_is_asked_after_the_next_time(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_group_source.wire.cluster.MIN_BROKER_TIMEOUT", 0.05)
    ends(cluster)
    fake.brokers[2].hung = True
    with pytest.raises(GroupSourceError) as error:
        ends(cluster, within=1.0)
    assert error.value.retriable
    fake.brokers[2].hung = False
    fake.logs["t"][1].leader = 1
    fake.produce("t", ["1"], partition=1)
    before = len(fake.requests)
    assert ends(cluster) == {"t-0": 3, "t-1": 1}
    assert {node for api, node, _ in fake.requests[before:] if api == "ListOffsets"} == {1}


@pytest.mark.parametrize("connected", [True, False])
def test_a_leader_that_hangs_does_not_keep_the_others_answers_from_being_taken(
    fake: FakeKafka, unhurried: Cluster, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    cluster = unhurried
    monkeypatch.setattr("spark_group_source.wire.cluster.MIN_BROKER_TIMEOUT", 0.05)
    cluster.metadata(["t"], Deadline.after(LONG))
    kept = {number: cluster.connection(number, Deadline.after(LONG)) for number in (1, 2)}
    if not connected:
        cluster.close()
    fake.brokers[1].hung = True  # the first to be asked, and waited for
    assert ends(cluster, set(), within=2.0) == {"t-1": 0}
    assert cluster.is_connected(2)
    assert not connected or cluster.connection(2, Deadline.after(LONG)) is kept[2], "it is in order"
    fake.brokers[1].hung = False


def test_a_leader_that_cannot_be_reached_leaves_time_for_an_answer_that_is_slow(
    fake: FakeKafka, unhurried: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    unhurried.metadata(["t"], Deadline.after(LONG))
    unhurried.connection(2, Deadline.after(LONG))
    fake.brokers[1].hung = True
    held = threading.Event()
    fake.next("ListOffsets", Fault(hold=held, broker=2))
    opening = unhurried._connections._open

    def late(*where: Any) -> Any:
        """The answer comes when the time of the connection that is not to be had is over."""
        try:
            return opening(*where)
        finally:
            held.set()

    monkeypatch.setattr(unhurried._connections, "_open", late)
    assert ends(unhurried, set(), within=2.0) == {"t-1": 0}
    fake.brokers[1].hung = False


def test_all_leaders_are_asked_before_an_answer_is_waited_for(fake: FakeKafka, unhurried: Cluster) -> None:
    ends(unhurried)
    held = threading.Event()
    for number in (1, 2):
        fake.next("ListOffsets", Fault(hold=held, broker=number))
    before = len(fake.requests)
    asking = threading.Thread(target=lambda: ends(unhurried))
    asking.start()
    deadline = time.monotonic() + 20.0  # answers are held for 30 s at most
    while sum(api == "ListOffsets" for api, _, _ in fake.requests[before:]) < 2:
        assert time.monotonic() < deadline, "only one is asked"
        time.sleep(0.005)
    held.set()
    asking.join(LONG)
