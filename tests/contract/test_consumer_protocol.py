"""What only a member with the group protocol of KIP-848 does, on the fake Kafka and on a real one."""

from __future__ import annotations

import threading
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
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.conftest import KAFKA_3
from tests.contract.conftest import CONSUMER_BASE, TIMEOUT_S, Background, Bench, Query, coordinator_version, eventually
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


def test_two_queries_split_the_topic_and_a_revocation_waits_for_the_batch(filled: Bench) -> None:
    first = filled.start()
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    second = filled.query()
    second.driver.start(second.end)
    eventually(lambda: first.me.phase is Phase.REVOKING, "the revocation to wait for the batch")
    before = membership(first).session_ends
    eventually(lambda: membership(first).session_ends > before, "a heartbeat during the revocation")
    assert (first.me.phase, len(first.owns()), second.owns()) == (Phase.REVOKING, 2, set())
    assert filled.committed() == dict.fromkeys(range(4), 0)
    first.finish()
    first.poll()
    assert filled.committed() == dict.fromkeys(range(4), 5)
    eventually(lambda: len(second.owns()) == 2, "the revoked partitions")
    assert first.owns() | second.owns() == {0, 1, 2, 3}
    assert second.idle().read == []
    assert all_read(first, second) == ONCE
    assert (first.driver.counters.revoked, first.driver.counters.revocation_timed_out) == (2, 0)


def test_a_closed_query_leaves_at_once(filled: Bench) -> None:
    first, second = filled.start(), filled.start()
    eventually(lambda: len(first.owns()) == len(second.owns()) == 2, "an even split")
    first.close()
    eventually(lambda: second.owns() == {0, 1, 2, 3}, "all partitions")
    assert second.driver.counters.lost == 0


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
    query.begin()
    query.finish()
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
    second = filled.query()
    second.driver.start(second.end)
    eventually(lambda: first.me.phase is Phase.REVOKING, "the revocation to wait for the batch")
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


def test_a_commit_whose_epoch_the_coordinator_has_just_changed_is_no_failed_commit(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = filled.start(offsetCommit_timeoutMs="60000")
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    answered, answer = hold_answer_with_a_new_epoch(first, monkeypatch)
    more_partitions(filled, 6)
    assert answered.wait(TIMEOUT_S)
    refused = threading.Event()
    commit_rejected = first.member.commit_rejected

    def rejected(*arguments: Any) -> Any:
        refused.set()
        return commit_rejected(*arguments)

    monkeypatch.setattr(first.member, "commit_rejected", rejected)
    first.finish()
    committing = threading.Thread(target=first.poll)
    committing.start()
    if coordinator_version(filled) >= (4, 3):  # the member had the partitions in the older epoch too (KIP-1251)
        committing.join(TIMEOUT_S)
        assert not refused.is_set()
    else:
        assert refused.wait(TIMEOUT_S)
        assert filled.committed()[0] == 0
    answer.set()
    committing.join(TIMEOUT_S)
    assert {number: filled.committed()[number] for number in range(4)} == dict.fromkeys(range(4), 5)
    counters = first.driver.counters
    assert (counters.failed_commits, counters.lost) == (0, 0)


def hold_answer_with_a_new_epoch(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Event]:
    """The member gets the next answer with another epoch only after the second event; the first says it has come."""
    calls, answered, answer = threading.Event(), threading.Event(), threading.Event()
    protocol = query.member._protocol
    assert isinstance(protocol, ConsumerProtocol)
    call, before = protocol.client.call, query.me.generation

    def hold(request: Any, deadline: Deadline) -> Any:
        calls.set()
        response = call(request, deadline)
        if getattr(response, "member_epoch", before) > before:
            answered.set()
            answer.wait(TIMEOUT_S)
        return response

    monkeypatch.setattr(protocol.client, "call", hold)
    assert calls.wait(TIMEOUT_S), "a heartbeat that was under way would not be held"
    return answered, answer


def more_partitions(bench: Bench, count: int) -> None:
    """The topic has this number of partitions from now on."""
    if isinstance(bench.kafka, EmbeddedKafka):
        with bench.kafka.admin() as admin:
            admin.create_partitions({bench.topic: count})
    else:
        bench.kafka.create_topic(bench.topic, partitions=count)


def test_a_static_member_gets_its_partitions_back_without_a_rebalance(filled: Bench) -> None:
    static = {"kafka_group_instance_id": "static-1"}
    first, other = filled.start(None, **static), filled.start()
    eventually(lambda: len(first.owns()) == len(other.owns()) == 2, "an even split")
    had, generation = first.owns(), other.me.generation
    first.close()
    again = filled.start(None, **static)
    eventually(lambda: again.owns() == had, "the same partitions")
    assert (other.me.generation, len(other.owns())) == (generation, 2)


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
    eventually(lambda: len(first.owns()) == len(second.owns()) == 2, "an even split")
    filled.produce(5, 5, 5, 5)
    for query in (first, second):
        query.begin()
        query.finish()
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


def test_new_partitions_are_assigned_by_the_coordinator(filled: Bench) -> None:
    query = filled.start()
    more_partitions(filled, 6)
    eventually(lambda: len(query.me.owned) == 6, "all six partitions")


def test_a_topic_that_is_recreated_while_the_query_runs_is_read_from_its_start(filled: Bench) -> None:
    query = filled.start(failOnDataLoss="false", offsetCommit_retryIntervalMs="50")
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")
    query.idle()
    before = dict(membership(query).topic_ids)
    filled.kafka.delete_topic(filled.topic)
    eventually(lambda: not query.me.owned, "the revocation of the deleted topic")
    filled.kafka.create_topic(filled.topic, 2)
    eventually(lambda: len(query.me.owned) == 2, "the partitions of the new topic")
    assert membership(query).topic_ids[filled.topic] != before[filled.topic]
    filled.produce(3, 3)
    eventually(lambda: len(query.idle().read) == 6, "the records of the new topic")
    assert all_read(query) == sorted([*ONCE, (0, 0, 3), (1, 0, 3)])
    assert (query.driver.counters.lost, filled.committed()[0], filled.committed()[1]) == (0, 3, 3)
    if isinstance(filled.kafka, FakeKafka):
        filled.kafka.commits.clear()  # those of the new topic begin again


def test_an_available_now_run_takes_over_the_partitions_of_a_dead_member(filled: Bench) -> None:
    other, run = filled.start(), filled.query()
    eventually(lambda: other.owns() == {0, 1, 2, 3}, "all partitions")
    run.driver.start(run.end)
    eventually(lambda: len(other.owns()) == len(run.owns()) == 2, "an even split")
    other.begin()
    run.driver.prepare_for_available_now()
    run.begin()
    run.finish()
    last = Background(run.poll)
    other.member._leaving.set()  # dies during its batch, without leaving, and its session ends
    other.member._closing.set()
    filled.expire(other)
    reads = last.result()
    while reads:
        run.finish()
        reads = run.poll()
    assert all_read(run) == ONCE
    assert filled.committed() == dict.fromkeys(range(4), 5)


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


def test_a_connection_checks_that_the_brokers_support_the_protocol(filled: Bench) -> None:
    options = WireOptions(filled.options().wire.bootstrap_servers, "check", consumer_protocol=True)
    cluster = Cluster(options)
    assert cluster.metadata([filled.topic], Deadline.after(TIMEOUT_S)).topics
    cluster.close()


@pytest.mark.integration
@pytest.mark.skipif(not KAFKA_3, reason="Kafka 4 has KIP-848")
def test_kafka_3_ends_the_query_with_what_it_lacks(kafka: EmbeddedKafka, group: str) -> None:
    old = Bench(kafka, "topic", group, CONSUMER_BASE)
    with pytest.raises(ProtocolError, match=r"Kafka 3\.\d+.*It lacks.*group\.version=1.*Use Kafka 4\.0 or later"):
        old.start()
    old.close()
