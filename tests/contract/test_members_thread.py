"""A member's thread on a fake Kafka: the end of the query interrupts each of its waits."""

from __future__ import annotations

import logging
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from spark_group_source import clock
from spark_group_source.group import heartbeat_schedule
from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka, Fault

LONG = 1000
"""Times that a broker is silent: until the test clears the faults, or the end."""

events: dict[str, threading.Event] = {}


def block(logged: Any, starts: Any) -> dict[str, dict[int, int]]:
    """A user's callback that does not return before it is released."""
    events["blocked"].set()
    events["released"].wait(60.0)
    return {}


def ends(query: Query) -> None:
    """Closes the query, which takes far less than any timeout of a request."""
    began = time.monotonic()
    query.close()
    assert time.monotonic() - began < 6.0


@pytest.mark.parametrize(
    "api", ["FindCoordinator", "Heartbeat", "ListOffsets", "OffsetFetch", "OffsetCommit", "Metadata"]
)
def test_a_query_that_ends_while_a_request_is_pending_leaves_the_group_at_once(on_fake: Bench, api: str) -> None:
    on_fake.produce(5)
    pattern = {"kafka_metadata_max_age_ms": "50", "subscribePattern": "topic"}
    options: dict[str, Any] = pattern if api == "Metadata" else {}
    query = on_fake.query(kafka_session_timeout_ms="60000", **options)
    if api in ("Heartbeat", "Metadata"):
        query.start()
    on_fake.next(api, Fault(silent=True), times=LONG)
    if api not in ("Heartbeat", "Metadata"):
        query.driver.start(query.end)
    before = on_fake.request_count(api)
    eventually(lambda: on_fake.request_count(api) > before, "the request without a response")
    thread = query.member._thread
    on_fake.next("LeaveGroup", Fault())
    ends(query)
    assert on_fake.request_count("LeaveGroup") == (api != "FindCoordinator"), "it can leave what it has found"
    thread.join(10.0)
    assert not thread.is_alive()


def test_a_member_leaves_without_its_thread_if_a_callback_blocks_it_and_never_rejoins(on_fake: Bench) -> None:
    events["blocked"], events["released"] = threading.Event(), threading.Event()
    query = on_fake.join(startingOffsetsCallback=f"{__name__}:block")
    assert events["blocked"].wait(60.0)
    thread = query.member._thread
    try:
        ends(query)
        assert on_fake.request_count("LeaveGroup") == 1
        joins = on_fake.request_count("JoinGroup")
    finally:
        events["released"].set()
    thread.join(30.0)
    assert not thread.is_alive()
    assert on_fake.request_count("JoinGroup") == joins
    assert on_fake.request_count("LeaveGroup") == 1


def block_the_second_time(logged: Any, starts: Any) -> dict[str, dict[int, int]]:
    if (calls := events["called"]).is_set():
        return block(logged, starts)
    calls.set()
    return {}


def test_a_query_whose_callback_blocks_its_member_stops_when_its_session_ends_and_rejoins(on_fake: Bench) -> None:
    events.update({name: threading.Event() for name in ("called", "blocked", "released")})
    on_fake.produce(5, 5, 5, 5)
    callback = {"startingOffsetsCallback": f"{__name__}:block_the_second_time"}
    query = on_fake.start(None, kafka_session_timeout_ms="2000", **callback).idle()
    other = on_fake.start()
    on_fake.split(query, other)
    other.close()
    assert events["blocked"].wait(60.0)
    on_fake.produce(1, 1, 1, 1)
    query.run_batch()
    query.poll()
    eventually(lambda: clock.monotonic() > query.me.session_ends, "the end of the session")
    on_fake.produce(1, 1, 1, 1)
    assert not query.poll(), "planned after the end of the session"
    events["released"].set()
    eventually(lambda: query.idle().owns() == {0, 1, 2, 3} and on_fake.committed() == dict.fromkeys(range(4), 7), "all")
    assert query.driver.counters.lost


def test_a_member_finds_a_matching_topic_in_a_group_that_rebalances_often(on_fake: Bench, fake: FakeKafka) -> None:
    on_fake.produce(5)
    query = on_fake.start(subscribePattern="t.*", kafka_metadata_max_age_ms="1500")
    fake.create_topic("topic-new", partitions=1)

    def rebalanced_and_found() -> bool:
        on_fake.start().close()  # each join and each leave is a rebalance: more often than the topics are checked
        return any(tp.topic == "topic-new" for tp in query.me.owned)

    eventually(rebalanced_and_found, "the new topic")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.one_protocol("classic", reason="with KIP-848 no member is the leader")
def test_a_returning_static_leader_assigns_partitions_added_in_its_absence(on_fake: Bench, strategy: str) -> None:
    static: dict[str, Any] = {"kafka_group_instance_id": "one", "kafka_partition_assignment_strategy": strategy}
    on_fake.start(**static).close()
    on_fake.fake.create_topic("topic", partitions=6)
    again = on_fake.start(**static)
    eventually(lambda: {tp.partition for tp in again.me.owned} == set(range(6)), "all six partitions")


@pytest.mark.one_protocol("classic", reason="with KIP-848 no error reports a rebalance")
def test_a_rebalance_and_an_unavailable_coordinator_are_one_log_line_each(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start()
    with caplog.at_level(logging.INFO, "spark_group_source.group"):
        on_fake.next("Heartbeat", Fault(error=27))
        eventually(lambda: query.driver.counters.rebalances == 2, "the rebalance")
        assert caplog.text.count("joining, because the group rebalances") == 1
        on_fake.next("Heartbeat", Fault(error=15), times=6)
        on_fake.await_fault("Heartbeat")
    assert caplog.text.count("15 (COORDINATOR_NOT_AVAILABLE)") == 1


@pytest.mark.parametrize(
    ("protocol", "api", "error_code"),
    [
        *(("classic", api, error_code) for api in ("JoinGroup", "SyncGroup") for error_code in (22, 25)),
        *(("consumer", "JoinGroup", error_code) for error_code in (25, 110)),
    ],
)
def test_a_member_backs_off_if_the_coordinator_rejects_each_join(on_fake: Bench, api: str, error_code: int) -> None:
    query = on_fake.start()
    rejected: list[float] = []
    on_fake.next(api, Fault(error=error_code, edit=lambda _: rejected.append(time.monotonic())), times=10_000)
    on_fake.expire(query)
    eventually(lambda: len(rejected) > heartbeat_schedule.PROMPT_JOINS + 5, "joins")
    pauses = [later - earlier for earlier, later in pairwise(rejected)][heartbeat_schedule.PROMPT_JOINS - 1 :]
    assert min(pauses) >= query.driver._settings.wire.retry_backoff
    on_fake.fake.clear_faults()
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "the membership")
