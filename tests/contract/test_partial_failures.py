"""One response, one connection or one broker fails, and the others do not. On the fake."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spark_group_source.group.offsets import COMMIT_TAG
from spark_group_source.query import available_now
from tests.contract.conftest import BASES, TIMEOUT_S, Bench, Query, eventually
from tests.fake import FakeKafka, Fault

UNKNOWN_TOPIC, NOT_LEADER, LOADING, NOT_COORDINATOR, REBALANCING, UNKNOWN_TOPIC_ID = 3, 6, 14, 16, 27, 100
FOR_EVER = 100_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries come at once."""
    for base in BASES.values():
        monkeypatch.setitem(base, "offsetCommit.retryIntervalMs", "50")


# Leaving


@pytest.mark.parametrize(
    "fault",
    [Fault(error=NOT_COORDINATOR), Fault(error=LOADING), Fault(drop="before"), Fault(drop="after"), Fault(silent=True)],
    ids=["moved", "loading", "cut", "answer cut", "no answer"],
)
def test_a_failed_leave_is_retried(on_fake: Bench, caplog: pytest.LogCaptureFixture, fault: Fault) -> None:
    query = on_fake.start()
    on_fake.next("LeaveGroup", fault)
    query.close()
    assert not on_fake.fake.group(on_fake.group).members
    assert "could not leave" not in caplog.text


def test_a_member_that_the_coordinator_does_not_have_any_more_closes_without_a_warning(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start()
    on_fake.next("Heartbeat", Fault(error=LOADING), times=FOR_EVER)
    fake.expire(on_fake.group, query.me.member_id)
    query.close()
    assert "could not leave" not in caplog.text


def test_a_static_member_closes_without_a_warning(
    on_fake: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = on_fake.start(kafka_group_instance_id="one")
    closing = threading.Event()
    monkeypatch.setattr(query.driver._assigned_partitions, "partitions_revoked", lambda *_: closing.wait(TIMEOUT_S))
    wait = query.member._leaving.wait

    def go_on(seconds: float) -> bool:
        closing.set()
        return wait(seconds)

    monkeypatch.setattr(query.member._leaving, "wait", go_on)
    query.close()
    assert not caplog.messages
    assert not query.member._thread.is_alive()


# Joining


@pytest.mark.one_protocol("classic", reason="a classic group's leader has the assignor")
def test_an_eager_member_with_a_lost_join_does_not_wait_for_the_rebalance_timeout(on_fake: Bench) -> None:
    query = on_fake.start(None, kafka_partition_assignment_strategy="range", kafka_max_poll_interval_ms="600000")
    on_fake.next("JoinGroup", Fault(silent=True))
    joins = on_fake.request_count("JoinGroup")
    on_fake.next("Heartbeat", Fault(error=REBALANCING))
    eventually(lambda: on_fake.request_count("JoinGroup") > joins + 1, "another join")
    eventually(lambda: len(query.owns()) == 4, "the assignment")


# Starting


def test_a_run_that_resets_offsets_ends_after_all_its_partitions_are_reset(
    on_fake: Bench, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(available_now, "POLL_INTERVALS", (0.01, 0.05))
    on_fake.produce(5, 5, 5, 5)
    fake.commit(on_fake.group, {(on_fake.topic, number): 5 for number in range(4)}, COMMIT_TAG)
    run = on_fake.query(resetOffsetsOnStart="true", offsetCommit_retryIntervalMs="1000")
    on_fake.next("OffsetFetch", Fault(error=LOADING))
    run.start(available_now=True)
    while (end := run.driver.plan_batch(run.end, None)) != run.end:
        run.read += end.reads()
        run.end = end
    assert sum(each.size for each in run.read) == 20


def test_a_run_reads_all_its_partitions_even_if_one_broker_does_not_know_some(on_fake: Bench) -> None:
    def lag(answer: Any) -> None:
        answer.topics[0].partitions = answer.topics[0].partitions[:2]

    on_fake.produce(5, 5, 5, 5)
    run = on_fake.query().start(available_now=True)
    on_fake.next("Metadata", Fault(edit=lag))
    run.idle()
    assert sum(each.size for each in run.read) == 20


@pytest.mark.parametrize("api", ["OffsetFetch", "OffsetCommit"])
def test_a_start_whose_lookup_or_commit_failed_is_committed_before_its_revocation(on_fake: Bench, api: str) -> None:
    options = {"startingOffsets": "latest", "offsetCommit_retryIntervalMs": "500"}
    on_fake.produce(3, 3, 3, 3)
    on_fake.next(api, Fault(error=LOADING))
    first = on_fake.join(None, **options)
    eventually(lambda: len(first.me.owned) == 4 and not on_fake.has_faults(api), "the failure")
    on_fake.produce(5, 5, 5, 5)
    second = on_fake.join(None, **options)
    read = share(first, second)
    assert read == dict.fromkeys(range(4), 3), "the latest offset when the first query began"


@pytest.mark.parametrize("error_code", [UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, LOADING])
def test_one_error_of_the_commit_for_which_a_revocation_waits_repeats_nothing(on_fake: Bench, error_code: int) -> None:
    first = on_fake.start_batch(5, 5, 5, 5, offsetCommit_retryIntervalMs="500")
    second = on_fake.join_in_mid_batch(first)
    on_fake.next("OffsetCommit", Fault(error=error_code))
    first.finish()
    first.driver.complete(first.end)
    assert share(first, second) == dict.fromkeys(range(4), 0)
    assert not second.read
    assert on_fake.committed() == dict.fromkeys(range(4), 5)


def share(first: Query, second: Query) -> dict[int, int]:
    """Runs both queries until they own half of the partitions each, and have read all; returns where each began."""
    Bench.split(first, second, meanwhile=lambda: (first.advance(), second.advance()))
    for query in (first, second):
        query.advance()
    return {each.partition: each.start for query in (first, second) for each in query.read}


@pytest.mark.parametrize("membership", [*BASES, "assign"])
@pytest.mark.parametrize("meanwhile", ["idle", "in a batch", "at its end"])
def test_a_commit_that_arrives_after_the_next_one_moves_the_group_back_for_a_moment(
    fake: FakeKafka, group: str, membership: str, meanwhile: str
) -> None:
    """The coordinator accepts it, because its member and generation are those of now, or all with ``assign``."""

    def committed(end: int) -> bool:
        query.advance()
        return bench.committed() == dict.fromkeys(range(4), end)

    base = BASES.get(membership, {"startingOffsets": "earliest", "offsetCommit.retryIntervalMs": "50"})
    bench = Bench(fake, fake.create_topic("topic", partitions=4), group, base)
    query = bench.start_batch(5, 5, 5, 5, **({"assign": '{"topic": [0, 1, 2, 3]}'} if membership == "assign" else {}))
    bench.next("OffsetCommit", Fault(drop="before"))
    sent = bench.request_count("OffsetCommit")
    query.finish()
    eventually(lambda: committed(5), "the commit that is sent again")
    _, late = bench.requests("OffsetCommit")[sent]
    bench.produce(5, 5, 5, 5)
    query.run_batch()
    eventually(lambda: committed(10), "the next commit")
    if meanwhile == "in a batch":
        bench.produce(1, 1, 1, 1)
        query.begin()
    answer = fake._handler(fake.coordinator)("OffsetCommit", late, 0)
    assert {part.error_code for topic in answer.topics for part in topic.partitions} == {0}
    assert bench.committed() == dict.fromkeys(range(4), 5)
    if meanwhile == "at its end":
        query.close()
        assert bench.committed() == dict.fromkeys(range(4), 10)
    elif meanwhile == "in a batch" and membership == "assign":  # nothing but the query commits for it
        query.finish()
        eventually(lambda: committed(11), "the commit of the batch")
    else:
        eventually(lambda: committed(10), "the next commit again")
    bench.close()


def test_a_restart_keeps_the_start_of_an_added_topic_whose_commit_failed(on_fake: Bench, fake: FakeKafka) -> None:
    options = {"startingOffsets": "latest", "subscribe": f"{on_fake.topic},{fake.create_topic('added', 1)}"}
    query = on_fake.start(startingOffsets="latest").idle()
    query.close()
    fake.produce("added", ["v"] * 3)
    on_fake.next("OffsetCommit", Fault(error=LOADING), times=FOR_EVER)
    query = on_fake.start(query.end, **options)
    assert not query.poll(), "there is nothing to read"
    query.close()
    fake.clear_faults()
    fake.produce("added", ["v"] * 5)
    query = on_fake.start(query.end, **options)
    assert [(each.topic, each.start, each.end) for each in query.begin()] == [("added", 3, 8)]


# Reading


def test_a_broker_that_does_not_know_a_topic_does_not_end_the_query(on_fake: Bench, fake: FakeKafka) -> None:
    def lag(answer: Any) -> None:
        for topic in answer.topics:
            topic.error_code, topic.partitions = UNKNOWN_TOPIC, []

    on_fake.produce(5, 5, 5, 5)
    query = on_fake.start().idle()
    on_fake.next("Metadata", Fault(edit=lag, broker=2), times=FOR_EVER)

    for _ in range(20):
        on_fake.produce(1, 1, 1, 1)
        on_fake.next("ListOffsets", Fault(error=NOT_LEADER))
        query.advance()
    fake.clear_faults()
    eventually(lambda: not query.advance() and sum(part.size for part in query.read) == 4 * 25, "all to be read")
