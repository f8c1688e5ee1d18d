"""What only a member with the group protocol of KIP-848 does, on the fake Kafka and on a real one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from spark_group_source.clock import BOOT_TIME, Deadline, monotonic
from spark_group_source.errors import GroupError, ProtocolError
from spark_group_source.group.commits import CommittedOffset, GroupOffsets
from spark_group_source.group.consumer.messages import ConsumerGroupDescribeRequest
from spark_group_source.group.consumer.protocol import ConsumerProtocol
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Phase, RequestFailed
from spark_group_source.testing import EmbeddedKafka
from tests.conftest import WITHOUT_KIP_848, needs_kip_848
from tests.contract.conftest import CONSUMER_BASE, TIMEOUT_S, Bench, Query, eventually
from tests.fake import FakeKafka

pytestmark = [pytest.mark.core, pytest.mark.one_protocol("consumer", reason="the protocol of KIP-848 itself")]


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A topic of four partitions, with five records each."""
    bench.produce(5, 5, 5, 5)
    return bench


def all_read(*queries: Query) -> list[tuple[int, int, int]]:
    return sorted((each.tp.partition, each.start, each.end) for query in queries for each in query.read)


ONCE = [(number, 0, 5) for number in range(4)]


def test_a_member_that_the_coordinator_has_removed_loses_everything_and_joins_with_the_same_id(filled: Bench) -> None:
    query = filled.start().idle()
    before = query.me
    filled.expire(query)
    eventually(lambda: query.driver.counters.lost and query.owns() == {0, 1, 2, 3}, "all partitions again")
    after = query.me
    assert (after.member_id, query.driver.counters.lost) == (before.member_id, 4)
    assert after.generation > before.generation
    filled.produce(1, 1, 1, 1)
    query.run_batch()
    query.idle()
    assert filled.committed() == dict.fromkeys(range(4), 6)


def test_the_coordinator_refuses_commits_and_lookups_with_a_former_epoch(filled: Bench) -> None:
    query = filled.start().idle()
    settings, deadline = filled.options().group, Deadline.after(TIMEOUT_S)
    settings.coordinator.knows_generation = filled.cluster.find_coordinator(filled.group, deadline).id
    offsets = GroupOffsets(filled.cluster, settings)
    former = replace(query.me, generation=query.me.generation - 1)
    stale = offsets.commit(former, {filled.tp(0): CommittedOffset(5)}, deadline).failure
    assert stale is not None
    assert stale.action is ErrorAction.STALE_EPOCH
    assert "113 (STALE_MEMBER_EPOCH)" in stale.reason
    assert offsets.commit(query.me, {filled.tp(0): CommittedOffset(5)}, deadline).failure is None
    refused = offsets.committed([filled.tp(0)], deadline, former)
    assert isinstance(refused, RequestFailed)
    assert "113 (STALE_MEMBER_EPOCH)" in refused.reason
    committed = offsets.committed([filled.tp(0)], deadline, query.me)
    assert not isinstance(committed, RequestFailed)
    assert committed[filled.tp(0)].offset == 5


def test_a_long_batch_is_committed_although_the_epoch_has_changed_and_a_revocation_waits_for_it(filled: Bench) -> None:
    first = filled.start()
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    planned = first.me.generation
    if isinstance(filled.kafka, FakeKafka):
        filled.kafka.create_topic(filled.topic, partitions=6)
    else:
        with filled.kafka.admin() as admin:
            admin.create_partitions({filled.topic: 6})
    eventually(lambda: len(first.me.owned) == 6 and first.me.generation > planned, "the new partitions and epoch")
    second = filled.join_in_mid_batch(first)
    for _ in range(5):
        before = first.me.session_ends
        eventually(lambda before=before: first.me.session_ends > before, "a heartbeat")  # type: ignore[misc]
    third = filled.join()  # again another epoch of the group
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
    described = GroupOffsets(filled.cluster, filled.options().group).describe(Deadline.after(TIMEOUT_S))
    assert not isinstance(described, RequestFailed)
    assert (other.me.generation, len(other.owns()), len(described.members)) == (generation, 2, 2)


def test_a_static_member_whose_join_has_no_answer_joins_again(filled: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.integration
@needs_kip_848
def test_a_member_without_answers_stops_when_its_session_at_the_brokers_ends(
    kafka: EmbeddedKafka, unique: Callable[[str], str], group: str
) -> None:
    # A member assumes 45 s until a broker tells it another, and a broker knows a new configuration only a little later.
    resource = ConfigResource(ConfigResourceType.GROUP, group, configs={"consumer.session.timeout.ms": "3000"})
    with kafka.admin() as admin:
        admin.alter_configs([resource])
        eventually(lambda: "'3000'" in repr(admin.describe_configs([resource])), "the new configuration")
    base = {name: value for name, value in CONSUMER_BASE.items() if name != "kafka.session.timeout.ms"}
    with contextlib.closing(Bench(kafka, kafka.create_topic(unique("session"), partitions=2), group, base)) as bench:
        query = bench.start()
        eventually(lambda: query.owns() == {0, 1}, "all partitions")
        # The member looks the timeout up once it has its assignment.
        eventually(lambda: query.me.session_ends < monotonic() + 3.0, "the session timeout")
        began = time.monotonic()
        kafka.pause()  # nothing else runs meanwhile
        try:
            eventually(lambda: not query.owns(), "the end of the session")
            took = time.monotonic() - began
        finally:
            kafka.resume()
        assert took < 3.0 + 2.0
        eventually(lambda: query.owns() == {0, 1}, "all partitions")


@pytest.mark.skipif(BOOT_TIME is None, reason="the system has no clock that counts the time of a suspended machine")
def test_a_session_ends_on_a_machine_that_was_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = time.clock_gettime
    assert BOOT_TIME is not None
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asked(clock) + (600.0 if clock == BOOT_TIME else 0.0))
    assert monotonic() - time.monotonic() > 500.0
