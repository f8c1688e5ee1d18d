"""A member's thread on a fake Kafka: the end of the query interrupts each of its waits."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any

import pytest

from spark_group_source import clock
from spark_group_source.clock import Deadline
from spark_group_source.group import protocol
from tests.contract.conftest import TIMEOUT_S, Bench, Query, eventually
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
    """Closes the query from another thread; it must end far below any timeout of a request."""
    closing = threading.Thread(target=query.close)
    closing.start()
    closing.join(6.0)
    assert not closing.is_alive()


@pytest.mark.parametrize("api", ["Heartbeat", "ListOffsets", "OffsetFetch", "OffsetCommit", "Metadata"])
def test_a_query_that_ends_while_a_request_is_pending_leaves_the_group_at_once(on_fake: Bench, api: str) -> None:
    on_fake.produce(5)
    pattern = {"kafka_metadata_max_age_ms": "50", "subscribePattern": "topic"}
    options: dict[str, Any] = pattern if api == "Metadata" else {}
    query = on_fake.query(kafka_session_timeout_ms="60000", **options)
    if api in ("Heartbeat", "Metadata"):
        query.start()
        on_fake.next(api, Fault(silent=True), times=LONG)
    else:
        on_fake.next(api, Fault(silent=True), times=LONG)
        query.driver.start(query.end)
    before = on_fake.request_count(api)
    eventually(lambda: on_fake.request_count(api) > before, "the request without a response")
    thread = query.member._thread
    on_fake.next("LeaveGroup", Fault())
    ends(query)
    assert on_fake.request_count("LeaveGroup") == 1
    thread.join(10.0)
    assert not thread.is_alive()
    joins = on_fake.request_count("JoinGroup")
    on_fake.fake.clear_faults()
    assert on_fake.request_count("JoinGroup") == joins


def test_a_query_that_ends_before_it_finds_its_coordinator_ends_at_once(on_fake: Bench) -> None:
    on_fake.next("FindCoordinator", Fault(silent=True), times=LONG)
    query = on_fake.join()
    eventually(lambda: on_fake.request_count("FindCoordinator"), "the request without a response")
    thread = query.member._thread
    ends(query)
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
        assert caplog.text.count("27 (REBALANCE_IN_PROGRESS)") == 1
        on_fake.next("Heartbeat", Fault(error=15), times=6)
        on_fake.await_fault("Heartbeat")
    assert caplog.text.count("15 (COORDINATOR_NOT_AVAILABLE)") == 1


@pytest.mark.parametrize("api", ["JoinGroup", "SyncGroup"])
@pytest.mark.parametrize("error_code", [22, 25])
@pytest.mark.one_protocol("classic", reason="its requests differ")
def test_a_member_backs_off_if_the_coordinator_rejects_each_join(
    on_fake: Bench, fake: FakeKafka, api: str, error_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backoffs: list[float] = []
    ended = threading.Semaphore(0)

    def back_off(seconds: float, deadline: Deadline) -> None:
        backoffs.append(seconds)
        ended.acquire(timeout=TIMEOUT_S)

    monkeypatch.setattr(protocol, "sleep", back_off)
    query = on_fake.start()
    accepted = on_fake.request_count(api)
    on_fake.next(api, Fault(error=error_code), times=10_000)
    on_fake.next("Heartbeat", Fault(error=27))
    eventually(lambda: backoffs, "the first backoff")
    refused = on_fake.request_count(api)
    assert refused - accepted <= protocol.PROMPT_JOINS
    for count in range(1, 6):
        ended.release()
        eventually(partial(lambda count: len(backoffs) > count, count), "the next backoff")
    assert on_fake.request_count(api) - refused <= 5, "at most one for each backoff"
    assert min(backoffs) >= query.driver._settings.wire.retry_backoff
    fake.clear_faults()
    ended.release(100)
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "the membership")
