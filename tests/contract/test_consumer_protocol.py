"""The delivery contract with the group protocol of KIP-848, on a real Kafka: the fake does not speak it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupError
from spark_group_source.group.consumer.handshake import ConsumerMembership
from spark_group_source.group.consumer.heartbeat import build_leave
from spark_group_source.group.coordinator_client import CoordinatorClient
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.group.membership import Phase
from spark_group_source.query.group_settings import group_settings
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ivy import KAFKA_VERSION
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions
from tests.contract.conftest import CONSUMER_BASE, TIMEOUT_S, Bench, Query, eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.core,
    pytest.mark.skipif(os.environ.get("KAFKA_VERSION", KAFKA_VERSION).startswith("3."), reason="Kafka 4.0 has KIP-848"),
]


@pytest.fixture
def bench(kafka: EmbeddedKafka, unique: Callable[[str], str], group: str) -> Iterator[Bench]:
    """A topic of four partitions, with five records each."""
    bench = Bench(kafka, kafka.create_topic(unique("kip848"), partitions=4), group, CONSUMER_BASE)
    bench.produce(5, 5, 5, 5)
    yield bench
    bench.close()


def membership(query: Query) -> ConsumerMembership:
    me = query.me
    assert isinstance(me, ConsumerMembership)
    return me


def all_read(*queries: Query) -> list[tuple[int, int, int]]:
    return sorted((each.tp.partition, each.start, each.end) for query in queries for each in query.read)


ONCE = [(number, 0, 5) for number in range(4)]


def test_two_queries_split_the_topic_and_a_revocation_waits_for_the_batch(bench: Bench) -> None:
    first = bench.start()
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    second = bench.query()
    second.driver.start(second.end)
    eventually(lambda: first.me.phase is Phase.REVOKING, "the revocation to wait for the batch")
    before = membership(first).session_ends
    eventually(lambda: membership(first).session_ends > before, "a heartbeat during the revocation")
    assert (first.me.phase, len(first.owns()), second.owns()) == (Phase.REVOKING, 2, set())
    assert bench.committed() == dict.fromkeys(range(4), 0)
    first.finish()
    first.poll()
    assert bench.committed() == dict.fromkeys(range(4), 5)
    eventually(lambda: len(second.owns()) == 2, "the revoked partitions")
    assert first.owns() | second.owns() == {0, 1, 2, 3}
    assert second.idle().read == []
    assert all_read(first, second) == ONCE
    assert (first.driver.counters.revoked, first.driver.counters.revoked_late) == (2, 0)


def test_a_closed_query_leaves_at_once(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    eventually(lambda: len(first.owns()) == len(second.owns()) == 2, "an even split")
    first.close()
    eventually(lambda: second.owns() == {0, 1, 2, 3}, "all partitions")
    assert second.driver.counters.lost == 0


def test_a_member_that_the_coordinator_has_removed_loses_everything_and_joins_with_the_same_id(bench: Bench) -> None:
    query = bench.start().idle()
    before = membership(query)
    client = CoordinatorClient(bench.cluster, bench.group, "expire")
    request = build_leave(before, group_settings(bench.options()))
    assert client.call(request, Deadline.after(TIMEOUT_S)).error_code == 0
    eventually(lambda: query.driver.counters.lost, "the loss")
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")
    after = membership(query)
    assert (after.member_id, query.driver.counters.lost) == (before.member_id, 4)
    assert after.generation > before.generation
    bench.produce(1, 1, 1, 1)
    query.begin()
    query.finish()
    query.idle()
    assert bench.committed() == dict.fromkeys(range(4), 6)


def test_a_commit_with_an_older_epoch_is_retried_with_the_epoch_of_now(bench: Bench) -> None:
    query = bench.start().idle()
    me, offsets = query.me, GroupOffsets(bench.cluster, group_settings(bench.options()))
    stale = offsets.commit(replace(me, generation=me.generation - 1), {bench.tp(0): 5}, "", Deadline.after(TIMEOUT_S))
    assert stale.failure is not None
    assert stale.failure.action is ErrorAction.RETRY
    assert "113 (STALE_MEMBER_EPOCH)" in stale.failure.reason
    assert offsets.commit(me, {bench.tp(0): 5}, "", Deadline.after(TIMEOUT_S)).failure is None


def test_a_static_member_gets_its_partitions_back_without_a_rebalance(bench: Bench) -> None:
    static = {"kafka_group_instance_id": "static-1"}
    first, other = bench.start(None, **static), bench.start()
    eventually(lambda: len(first.owns()) == len(other.owns()) == 2, "an even split")
    had, generation = first.owns(), other.me.generation
    first.close()
    again = bench.start(None, **static)
    eventually(lambda: again.owns() == had, "the same partitions")
    assert (other.me.generation, len(other.owns())) == (generation, 2)


def test_an_assignor_that_the_brokers_lack_ends_the_query_with_the_option_to_change(bench: Bench) -> None:
    query = bench.query(kafka_group_remote_assignor="no-such-assignor")
    with pytest.raises(GroupError, match=r"112 \(UNSUPPORTED_ASSIGNOR\).*'kafka\.group\.remote\.assignor'"):
        query.start()


def test_a_group_is_converted_while_members_of_both_protocols_read(bench: Bench) -> None:
    classic = {"kafka_group_protocol": "classic"}
    first = bench.start(None, **classic).idle()
    second = bench.start()
    eventually(lambda: len(first.owns()) == len(second.owns()) == 2, "an even split")
    bench.produce(5, 5, 5, 5)
    for query in (first, second):
        query.begin()
        query.finish()
        query.idle()
    second.close()
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    assert all_read(first, second) == sorted([*ONCE, *((number, 5, 10) for number in range(4))])
    assert bench.committed() == dict.fromkeys(range(4), 10)


def test_a_pattern_finds_new_topics(bench: Bench, unique: Callable[[str], str]) -> None:
    prefix = unique("pattern")
    assert isinstance(bench.kafka, EmbeddedKafka)
    bench.kafka.create_topic(f"{prefix}-a", 1)
    base = CONSUMER_BASE | {"kafka.metadata.max.age.ms": "200"}
    pattern = Bench(bench.kafka, f"{prefix}-a", unique("group"), base)
    query = Query(
        replace(pattern.options(), topics=(), topic_pattern=f"{prefix}-.*"),
        bench.query().end,
    )
    try:
        query.start()
        eventually(lambda: {tp.topic for tp in query.me.owned} == {f"{prefix}-a"}, "the first topic")
        bench.kafka.create_topic(f"{prefix}-b", 2)
        eventually(lambda: len(query.me.owned) == 3, "the new topic")
    finally:
        query.close()
        pattern.close()


def test_new_partitions_are_assigned_by_the_coordinator(bench: Bench) -> None:
    query = bench.start()
    assert isinstance(bench.kafka, EmbeddedKafka)
    with bench.kafka.admin() as admin:
        admin.create_partitions({bench.topic: 6})
    eventually(lambda: len(query.me.owned) == 6, "all six partitions")


def test_a_connection_checks_that_the_brokers_support_the_protocol(bench: Bench) -> None:
    options = WireOptions(bench.options().bootstrap_servers, "check", consumer_protocol=True)
    cluster = Cluster(options)
    assert cluster.metadata([bench.topic], Deadline.after(TIMEOUT_S)).topics
    cluster.close()
