"""A fenced member plans nothing before it has rejoined. On the fake."""

from __future__ import annotations

import threading
import time

import pytest

from spark_group_source.errors import GroupError
from tests.contract.conftest import POLL, Bench, Query, eventually
from tests.fake import FakeKafka, Fault

SESSION_S, SLACK_S = 1.0, 0.3
NO_NEWS = {"kafka_session_timeout_ms": "60000", "kafka_heartbeat_interval_ms": "20000"}
"""All heartbeats of the test succeed: at most one is sent."""
QUICK = {
    "kafka_session_timeout_ms": f"{SESSION_S * 1000:.0f}",
    "kafka_heartbeat_interval_ms": "100",
    "offsetCommit_timeoutMs": "200",
}
FOR_EVER = 100_000
NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID = 16, 22, 25, 82


def assert_read_once(query: Query, each: int) -> None:
    """The query has read the first ``each`` offsets of all partitions, in order and without a gap."""
    at = dict.fromkeys(range(4), 0)
    for part in query.read:
        assert part.start == at[part.partition], f"{part} begins elsewhere than at {at[part.partition]}"
        at[part.partition] = part.end
    assert at == dict.fromkeys(range(4), each)


@pytest.mark.parametrize(
    ("error_code", "static"),
    [(ILLEGAL_GENERATION, False), (UNKNOWN_MEMBER_ID, False), (UNKNOWN_MEMBER_ID, True), (FENCED_INSTANCE_ID, True)],
    ids=["illegal generation", "unknown member", "unknown static member", "fenced instance"],
)
def test_a_member_fenced_by_its_commit_plans_nothing_before_the_next_join(
    on_fake: Bench, fake: FakeKafka, error_code: int, static: bool
) -> None:
    query = on_fake.start_batch(5, 5, 5, 5, **NO_NEWS, **({"kafka_group_instance_id": "one"} if static else {}))
    on_fake.produce(3, 3, 3, 3)
    member_id, joins, may_join = query.me.member_id, on_fake.request_count("JoinGroup"), threading.Event()
    on_fake.next("OffsetCommit", Fault(error=error_code))
    on_fake.next("JoinGroup", Fault(hold=may_join))
    query.complete()

    def joins_again() -> bool:
        assert not query.poll(), "planned before the member has joined again"
        return on_fake.request_count("JoinGroup") > joins

    try:
        eventually(joins_again, "the member to join again")
        for _ in range(5):
            assert not query.poll(), "planned while the join was pending"
    except GroupError:
        if error_code != FENCED_INSTANCE_ID:
            raise
        return  # another query has this member's place: this one may fail, and must not read
    finally:
        may_join.set()
    if error_code == UNKNOWN_MEMBER_ID:
        fake.expire(on_fake.group, member_id)
    query.run_batch()
    eventually(lambda: not query.poll() and on_fake.committed() == dict.fromkeys(range(4), 8), "the commit of all")
    assert_read_once(query, 8)


@pytest.mark.parametrize(
    "fault", [Fault(error=NOT_COORDINATOR), Fault(drop="before"), Fault(silent=True)], ids=["moved", "cut", "silent"]
)
def test_a_member_whose_session_timed_out_plans_nothing_before_the_next_join(on_fake: Bench, fault: Fault) -> None:
    query = on_fake.start_batch(5, 5, 5, 5, **QUICK)
    for api in ("Heartbeat", "OffsetCommit"):
        on_fake.next(api, fault, times=FOR_EVER)
    on_fake.next("JoinGroup", Fault(error=NOT_COORDINATOR), times=FOR_EVER)
    ended_at = time.monotonic() + SESSION_S + SLACK_S
    query.finish()
    on_fake.produce(1, 1, 1, 1)
    while (asked_at := time.monotonic()) < ended_at + SESSION_S:
        if query.poll():
            assert asked_at < ended_at, "planned after the end of the session"
            query.finish()
            on_fake.produce(1, 1, 1, 1)
        time.sleep(POLL)
    on_fake.fake.clear_faults()
    query.run_batch()
    ends = {number: log.end for number, log in on_fake.fake.logs[on_fake.topic].items()}
    eventually(lambda: not query.poll() and on_fake.committed() == ends, "the commit of all")
    assert_read_once(query, ends[0])
