"""The timeout of offset requests, and their maximum size."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.classic.messages import JoinResult, MembershipRequests
from spark_group_source.group.commits import CommittedOffset, GroupOffsets
from spark_group_source.group.coordinator import WhileWaiting, retry_until_response
from spark_group_source.group.current_coordinator import CurrentCoordinator
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand
from tests.waiting import TIMEOUT

MANY = 2_500
TP = TopicPartition("t", 0)
SETTINGS = GroupSettings("g", Subscription(("t",)), WireOptions(()))


@pytest.fixture(autouse=True)
def unknown_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client of the query has found the coordinator yet."""
    monkeypatch.setattr(sys.modules[__name__], "SETTINGS", replace(SETTINGS, coordinator=CurrentCoordinator()))


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def offsets(fake: FakeKafka) -> Iterator[GroupOffsets]:
    with closing(Cluster(WireOptions((("127.0.0.1", fake.brokers[1].port),), "test"))) as cluster:
        yield GroupOffsets(cluster, SETTINGS)


def test_a_lookup_of_committed_offsets_has_a_timeout(fake: FakeKafka, offsets: GroupOffsets) -> None:
    fake.commit("g", {("t", 0): 7})
    committed = offsets.committed([TP], Deadline.after(TIMEOUT))
    assert not isinstance(committed, RequestFailed)
    assert committed[TP].offset == 7
    fake.next("OffsetFetch", Fault(silent=True))
    began = time.monotonic()
    offsets._settings = replace(SETTINGS, offset_fetch_timeout=0.3)
    failure = offsets.committed([TP], Deadline.after(TIMEOUT))
    assert isinstance(failure, RequestFailed)
    assert "did not answer OffsetFetchRequest within " in failure.reason
    assert time.monotonic() - began < TIMEOUT / 2


def test_offsets_share_the_connection_of_other_lookups(fake: FakeKafka, offsets: GroupOffsets) -> None:
    assert not isinstance(offsets.committed([TP], Deadline.after(TIMEOUT)), RequestFailed)
    opened = fake.request_count("ApiVersions")
    offsets._client._cluster.metadata_from(1, ["t"], Deadline.after(TIMEOUT))
    assert fake.request_count("ApiVersions") == opened


def test_a_member_leaves_over_its_open_connection_although_its_lookup_of_offsets_is_interrupted(
    fake: FakeKafka, offsets: GroupOffsets
) -> None:
    membership = MembershipRequests(offsets._client._cluster, SETTINGS)
    assert membership.leave("m", "a test", Deadline.after(TIMEOUT)), "it is no member"
    assert not isinstance(offsets.committed([TP], Deadline.after(TIMEOUT)), RequestFailed)
    opened = fake.request_count("ApiVersions")
    fake.next("OffsetFetch", Fault(silent=True))
    with closing(WakeupPipe()) as ending:
        ending.set()
        with pytest.raises(Interrupted):
            offsets.committed([TP], Deadline.after(TIMEOUT, wakeup=ending))
    assert membership.leave("m", "a test", Deadline.after(TIMEOUT))
    assert fake.request_count("ApiVersions") == opened


def test_an_unknown_partition_does_not_count_as_one_without_a_commit(fake: FakeKafka, offsets: GroupOffsets) -> None:
    def unknown(response: Any) -> None:
        response.groups[0].topics[0].partitions[0].error_code = 3
        response.groups[0].topics[0].partitions[0].committed_offset = -1

    fake.next("OffsetFetch", Fault(edit=unknown))
    failure = offsets.committed([TP], Deadline.after(TIMEOUT))
    assert isinstance(failure, RequestFailed), "its starting offset would skip or repeat records"
    assert failure.error is None, "a retry may succeed"


@pytest.mark.parametrize(("error_code", "of_one"), [(88, True), (3, True), (100, True), (29, True), (14, False)])
def test_the_failure_of_one_partition_leaves_the_others_to_a_caller_that_can_use_them(
    fake: FakeKafka, offsets: GroupOffsets, error_code: int, of_one: bool
) -> None:
    def fail(response: Any) -> None:
        response.groups[0].topics[0].partitions[1].error_code = error_code
        response.groups[0].topics[0].partitions[1].committed_offset = -1

    other = TopicPartition("t", 1)
    fake.commit("g", {("t", 0): 7})
    fake.next("OffsetFetch", Fault(edit=fail))
    unavailable: dict[TopicPartition, RequestFailed] = {}
    found = offsets.committed([TP, other], Deadline.after(TIMEOUT), unavailable=unavailable)
    assert isinstance(found, RequestFailed) != of_one
    assert unavailable.keys() == ({other} if of_one else set())
    if not isinstance(found, RequestFailed):
        assert found.keys() == {TP}


def other_client(fake: FakeKafka, offsets: GroupOffsets) -> tuple[Cluster, GroupOffsets]:
    """Another client of the same query, in a thread of its own."""
    cluster = Cluster(offsets._client._cluster.options)
    return cluster, GroupOffsets(cluster, SETTINGS)


def test_a_client_begins_with_the_coordinator_that_another_client_of_the_query_has_found(
    fake: FakeKafka, offsets: GroupOffsets
) -> None:
    deadline = Deadline.after(TIMEOUT)
    assert offsets.committed([TP], deadline) == {}
    assert fake.request_count("FindCoordinator") == 1
    opened = fake.request_count("ApiVersions")
    cluster, other = other_client(fake, offsets)
    with closing(cluster):
        assert other.committed([TP], deadline) == {}
        assert fake.request_count("FindCoordinator") == 1
        assert fake.request_count("ApiVersions") == opened + 1
        other._client.rediscover()
        assert other.committed([TP], deadline) == {}
        assert fake.request_count("FindCoordinator") == 2, "a client that lost its coordinator asks the brokers"


def test_a_client_looks_the_coordinator_up_if_the_one_of_another_client_cannot_be_reached() -> None:
    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t")
        options = WireOptions((("127.0.0.1", fake.brokers[1].port),), "test")
        deadline = Deadline.after(TIMEOUT)
        fake.coordinator = 2
        with closing(Cluster(options)) as first, closing(Cluster(options)) as second:
            assert GroupOffsets(first, SETTINGS).committed([TP], deadline) == {}
            fake.brokers[2].stop()
            fake.coordinator = 1
            assert GroupOffsets(second, SETTINGS).committed([TP], deadline) == {}
    assert SETTINGS.coordinator.id == 1


def test_a_former_coordinator_never_tells_a_member_what_is_committed() -> None:
    """Suspended or cut off, it still answers lookups of the coordinator and of offsets, with those of its time."""
    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t")
        fake.coordinator = 2
        fake.former_coordinators.add(1)

        def names_broker_1(response: Any) -> None:
            response.coordinators[0].node_id = 1
            response.coordinators[0].port = fake.brokers[1].port

        with closing(Cluster(WireOptions((("127.0.0.1", fake.brokers[1].port),), "test"))) as cluster:
            deadline, offsets = Deadline.after(TIMEOUT), GroupOffsets(cluster, SETTINGS)
            me = _join(MembershipRequests(cluster, SETTINGS), deadline)
            offsets._client.rediscover()
            fake.next("FindCoordinator", Fault(edit=names_broker_1))
            former = offsets.committed([TP], deadline, me)
            assert isinstance(former, RequestFailed)
            assert former.action is ErrorAction.REDISCOVER
            assert offsets.committed([TP], deadline, me) == {}
            assert [node for api, node, _ in fake.requests if api == "OffsetFetch"] == [2]


def _join(member: MembershipRequests, deadline: Deadline) -> Membership:
    """Joins alone."""
    quiet = WhileWaiting(lambda: None, 1)
    joined = member.join(Membership(), {"range": b""}, deadline, quiet)
    if isinstance(joined, RequestFailed):  # which told the member its id
        joined = member.join(Membership(member_id=joined.member_id), {"range": b""}, deadline, quiet)
    assert isinstance(joined, JoinResult)
    assert not isinstance(member.sync(joined, {}, deadline, quiet), RequestFailed)
    return Membership(member_id=joined.joined.member_id, generation=joined.joined.generation)


@pytest.mark.parametrize(("count", "metadata"), [(MANY, ""), (300, "m" * 4096)])
def test_no_commit_request_is_too_large(fake: FakeKafka, offsets: GroupOffsets, count: int, metadata: str) -> None:
    fake.create_topic("many", partitions=MANY)
    wanted = {TopicPartition("many", number): number for number in range(count)}
    commits = {tp: CommittedOffset(offset, metadata) for tp, offset in wanted.items()}
    answer = offsets.commit(Membership(), commits, Deadline.after(TIMEOUT))
    assert (answer.confirmed, answer.errors, answer.failure) == (frozenset(wanted), {}, None)
    assert fake.group("g").offsets == {tp: (offset, metadata) for tp, offset in wanted.items()}
    # A real one takes 112 bytes for a partition with names and metadata of 69, and a million of them in all.
    most = max(len(each.offsets) for each in fake.commits)
    assert most * (112 + len(metadata)) < 1_048_588 / 4
    assert most <= 2_000


@pytest.mark.parametrize("error_code", [69, 82])
def test_a_commit_of_a_former_member_loses_partitions(fake: FakeKafka, offsets: GroupOffsets, error_code: int) -> None:
    fake.next("OffsetCommit", Fault(error=error_code))
    answer = offsets.commit(Membership(member_id="m"), {TP: CommittedOffset(7)}, Deadline.after(TIMEOUT))
    assert answer.failure is not None
    assert answer.failure.action is ErrorAction.RESET_GENERATION


def test_a_lookup_that_is_repeated_returns_a_failure_for_which_there_was_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand()
    monkeypatch.setattr(time, "sleep", hand.sleep)
    deadline = Deadline.after(10.0, hand)

    def request() -> RequestFailed:
        reason = "it loads" if deadline.remaining() >= 1.0 else "it did not answer within 0.1 s"
        return RequestFailed(ErrorAction.RETRY, reason)

    failure = retry_until_response(request, deadline, backoff=0.99)
    assert isinstance(failure, RequestFailed)
    assert failure.reason == "it loads"
    assert hand.now > 5.0
