"""What only a member with the group protocol of KIP-848 does, on the fake Kafka and on a real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupError, ProtocolError
from spark_group_source.group.consumer import ConsumerProtocol
from spark_group_source.group.consumer_messages import ConsumerGroupDescribeRequest
from spark_group_source.group.consumer_state import ConsumerMembership
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.membership import ErrorAction, Phase, RequestFailed
from spark_group_source.group.offsets import CommittedOffset, GroupOffsets
from spark_group_source.testing import EmbeddedKafka
from tests.conftest import WITHOUT_KIP_848
from tests.contract.conftest import CONSUMER_BASE, TIMEOUT_S, Bench, Query, eventually
from tests.fake import FakeKafka

pytestmark = [pytest.mark.core, pytest.mark.one_protocol("consumer", reason="the protocol of KIP-848 itself")]


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A topic of four partitions, with five records each."""
    bench.produce(5, 5, 5, 5)
    return bench


def membership(query: Query) -> ConsumerMembership:
    me = query.me
    assert isinstance(me, ConsumerMembership)
    return me


def all_read(*queries: Query) -> list[tuple[int, int, int]]:
    return sorted((each.tp.partition, each.start, each.end) for query in queries for each in query.read)


ONCE = [(number, 0, 5) for number in range(4)]


def test_a_member_that_the_coordinator_has_removed_loses_everything_and_joins_with_the_same_id(filled: Bench) -> None:
    query = filled.start().idle()
    before = membership(query)
    filled.expire(query)
    eventually(lambda: query.driver.counters.lost, "the loss")
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")
    after = membership(query)
    assert (after.member_id, query.driver.counters.lost) == (before.member_id, 4)
    assert after.generation > before.generation
    filled.produce(1, 1, 1, 1)
    query.run_batch()
    query.idle()
    assert filled.committed() == dict.fromkeys(range(4), 6)


def test_the_coordinator_rejects_a_commit_with_an_older_epoch(filled: Bench) -> None:
    query = filled.start().idle()
    me, offsets = query.me, GroupOffsets(filled.cluster, filled.options().group)
    stale = offsets.commit(
        replace(me, generation=me.generation - 1), {filled.tp(0): CommittedOffset(5)}, Deadline.after(TIMEOUT_S)
    )
    assert stale.failure is not None
    assert stale.failure.action is ErrorAction.STALE_EPOCH
    assert "113 (STALE_MEMBER_EPOCH)" in stale.failure.reason
    assert offsets.commit(me, {filled.tp(0): CommittedOffset(5)}, Deadline.after(TIMEOUT_S)).failure is None


def test_a_long_batch_is_committed_although_the_epoch_has_changed_and_a_revocation_waits_for_it(filled: Bench) -> None:
    first = filled.start()
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    planned = first.me.generation
    more_partitions(filled, 6)
    eventually(lambda: len(first.me.owned) == 6 and first.me.generation > planned, "the new partitions and epoch")
    second = filled.join_in_mid_batch(first)
    for _ in range(5):
        before = membership(first).session_ends
        eventually(lambda before=before: membership(first).session_ends > before, "a heartbeat")  # type: ignore[misc]
    third = filled.query()  # again another epoch of the group
    third.driver.start(third.end)
    eventually(lambda: third.driver.counters.rebalances, "the third member")
    assert first.me.phase is Phase.REVOKING
    assert {number: filled.committed()[number] for number in range(4)} == dict.fromkeys(range(4), 0)
    first.finish()
    first.poll()
    assert {number: filled.committed()[number] for number in range(4)} == dict.fromkeys(range(4), 5)
    queries = first, second, third
    eventually(lambda: all(len(query.owns()) == 2 for query in queries), "an even split")
    assert second.idle().read == third.idle().read == []
    assert all_read(*queries) == ONCE
    for query in queries:
        counters = query.driver.counters
        assert (counters.failed_commits, counters.lost, counters.revocation_timed_out) == (0, 0, 0)


def more_partitions(bench: Bench, count: int) -> None:
    """The topic has this number of partitions from now on."""
    if isinstance(bench.kafka, EmbeddedKafka):
        with bench.kafka.admin() as admin:
            admin.create_partitions({bench.topic: count})
    else:
        bench.kafka.create_topic(bench.topic, partitions=count)


def test_a_static_member_leaves_for_now_and_gets_its_partitions_back_without_a_rebalance(filled: Bench) -> None:
    static = {"kafka_group_instance_id": "static-1"}
    first, other = filled.start(None, **static), filled.start()
    filled.split(first, other)
    had, generation = first.owns(), other.me.generation
    first.close()
    if isinstance(filled.kafka, FakeKafka):
        assert [request.member_epoch for _, request in filled.requests("LeaveGroup")] == [-2]
    again = filled.start(None, **static)
    eventually(lambda: again.owns() == had, "the same partitions")
    assert (other.me.generation, len(other.owns()), len(filled.members())) == (generation, 2, 2)


def test_a_static_member_whose_join_was_not_answered_joins_again_at_once(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = filled.query(kafka_group_instance_id="static-1")
    protocol = query.member._protocol
    assert isinstance(protocol, ConsumerProtocol)
    call, joins = protocol.client.call, []

    def lose_the_first_join(request: Any, deadline: Deadline) -> Any:
        response = call(request, deadline)
        if getattr(request, "member_epoch", None) == 0:
            joins.append(response.error_code)
            if not response.error_code and joins.count(0) == 1:
                return RequestFailed(ErrorAction.RETRY, "the answer was lost", unanswered=True)
        return response

    monkeypatch.setattr(protocol.client, "call", lose_the_first_join)
    query.start()
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")
    # Without leaving its former epoch the member would be refused until its session ends.
    assert [error_code for error_code in joins if error_code not in (14, 15, 16)] == [0, 111, 0]


def test_a_former_epoch_gets_no_committed_offsets(filled: Bench) -> None:
    query = filled.start().idle()
    settings, deadline = filled.options().group, Deadline.after(TIMEOUT_S)
    settings.coordinator.knows_generation = filled.cluster.find_coordinator(filled.group, deadline).id
    offsets = GroupOffsets(filled.cluster, settings)
    former = replace(query.me, generation=query.me.generation - 1)
    refused = offsets.committed([filled.tp(0)], deadline, former)
    assert isinstance(refused, RequestFailed)
    assert "113 (STALE_MEMBER_EPOCH)" in refused.reason
    committed = offsets.committed([filled.tp(0)], deadline, query.me)
    assert not isinstance(committed, RequestFailed)
    assert committed[filled.tp(0)].offset == 5


def test_an_assignor_that_the_brokers_lack_ends_the_query_with_the_option_to_change(filled: Bench) -> None:
    query = filled.query(kafka_group_remote_assignor="no-such-assignor")
    with pytest.raises(GroupError, match=r"112 \(UNSUPPORTED_ASSIGNOR\).*'kafka\.group\.remote\.assignor'"):
        query.start()


def test_a_group_is_converted_while_members_of_both_protocols_read(filled: Bench) -> None:
    if isinstance(filled.kafka, FakeKafka):
        pytest.skip("the fake does not convert groups")
    classic = {"kafka_group_protocol": "classic"}
    first = filled.start(None, **classic).idle()
    second = filled.start()
    filled.split(first, second)
    filled.produce(5, 5, 5, 5)
    for query in (first, second):
        query.run_batch()
        query.idle()
    second.close()
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    assert all_read(first, second) == sorted([*ONCE, *((number, 5, 10) for number in range(4))])
    assert filled.committed() == dict.fromkeys(range(4), 10)


def test_a_pattern_finds_new_topics(filled: Bench, unique: Callable[[str], str]) -> None:
    prefix = unique("pattern")
    filled.kafka.create_topic(f"{prefix}-a", 1)
    query = filled.start(subscribePattern=f"{prefix}-.*", kafka_metadata_max_age_ms="200")
    eventually(lambda: {tp.topic for tp in query.me.owned} == {f"{prefix}-a"}, "the first topic")
    filled.kafka.create_topic(f"{prefix}-b", 2)
    eventually(lambda: len(query.me.owned) == 3, "the new topic")


def test_the_coordinator_learns_the_rack(filled: Bench) -> None:
    filled.start(kafka_client_rack="rack-1")
    client = CoordinatorClient(filled.cluster, filled.group, "describe")
    request = ConsumerGroupDescribeRequest(version=1, group_ids=[filled.group], include_authorized_operations=False)
    (group,) = client.call(request, Deadline.after(TIMEOUT_S)).groups
    assert [each.rack_id for each in group.members] == ["rack-1"]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_the_coordinator_assigns_with_the_assignor_of_the_option(filled: Bench, assignor: str) -> None:
    queries = [filled.start(kafka_group_remote_assignor=assignor) for _ in range(2)]
    eventually(lambda: all(len(query.owns()) == 2 for query in queries), "an even split")
    if assignor == "range":
        assert sorted(sorted(query.owns()) for query in queries) == [[0, 1], [2, 3]]


@pytest.mark.integration
@pytest.mark.skipif(not WITHOUT_KIP_848, reason="Kafka 4 has KIP-848")
def test_kafka_before_4_ends_the_query_with_what_it_lacks(kafka: EmbeddedKafka, group: str) -> None:
    old = Bench(kafka, "topic", group, CONSUMER_BASE)
    with pytest.raises(ProtocolError, match=r"Kafka [1-3]\.\d+.*It lacks.*group\.version=1.*Use Kafka 4\.0 or later"):
        old.start()
    old.close()
