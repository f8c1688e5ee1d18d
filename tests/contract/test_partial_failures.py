"""One response, one connection or one broker fails, and the others do not. On the fake."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import BASES, Bench, eventually
from tests.fake import FakeKafka, Fault

LOADING, NOT_COORDINATOR, REBALANCING = 14, 16, 27
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
    Bench.split(first, second, meanwhile=lambda: (first.advance(), second.advance()))
    for query in (first, second):
        query.advance()
    read = {each.partition: each.start for query in (first, second) for each in query.read}
    assert read == dict.fromkeys(range(4), 3), "the latest offset when the first query began"


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
