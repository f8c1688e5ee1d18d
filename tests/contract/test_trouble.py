"""Errors of the group neither fail nor block a query, except fatal errors, which say what to change. On the fake."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import Any

import pytest

from spark_group_source.errors import (
    BrokerUnavailable,
    CommitFailed,
    GroupError,
    GroupSourceError,
    TopicError,
    describe_error_code,
)
from spark_group_source.group.commits import COMMIT_TAG, CommittedOffset, commit_metadata
from spark_group_source.group.error_actions import ERROR_ACTIONS, ErrorAction, is_denial
from spark_group_source.group.membership import Phase
from spark_group_source.query import driver, topic_validator
from tests.contract.conftest import BASES, TIMEOUT_S, Bench, Query, eventually
from tests.fake import FakeKafka, Fault


def assert_goes_on(bench: Bench, query: Query) -> None:
    """The query still reads, and what it reads is committed."""
    before = bench.committed().get(0, 0)
    bench.produce(1)
    query.run_batch()
    eventually(lambda: not query.poll() and bench.committed()[0] == before + 1, "the commit")


# Commits


@pytest.mark.parametrize("room", [3, len(COMMIT_TAG)])
def test_commit_metadata_that_is_too_large_is_left_out_with_one_warning_and_the_tag_stays_if_it_fits(
    on_fake: Bench, caplog: pytest.LogCaptureFixture, room: int
) -> None:
    on_fake.fake.max_metadata = room
    query = on_fake.start(commitMetadata="true")
    left = COMMIT_TAG if room > 3 else ""
    for end in (0, 5, 10, 15):
        assert on_fake.commits()[0] == CommittedOffset(end, left, epoch=0)
        on_fake.produce(5)
        query.idle()
    assert on_fake.committed() == {0: 20, 1: 0, 2: 0, 3: 0}
    assert caplog.text.count("commitMetadata, or the checkpoint's id, is too long") == 1


def test_a_rewind_holds_for_every_later_owner_although_its_lineage_is_too_large(on_fake: Bench) -> None:
    on_fake.fake.max_metadata = len(COMMIT_TAG)
    on_fake.produce(5)
    first = on_fake.start().idle()
    first.close()
    on_fake.rewind({0: 2})
    second = on_fake.start()
    second.begin(limit=1)
    second.finish()
    second.poll(limit=1)
    second.close()
    first = on_fake.start(first.end).idle()
    assert [(read.start, read.end) for read in first.read] == [(3, 5)]


@pytest.mark.parametrize(
    "fault",
    [Fault(error=15), Fault(error=27), Fault(error=-1), Fault(drop="before"), Fault(truncate=9), Fault(silent=True)],
    ids=str,
)
def test_the_next_commit_includes_a_failed_one_and_the_query_continues(
    on_fake: Bench, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    on_fake.produce(5)
    query = on_fake.start(offsetCommit_retryIntervalMs="600000")  # not retried before the next batch ends
    query.begin()
    on_fake.next("OffsetCommit", fault)
    query.finish()
    on_fake.produce(0, 3)
    query.begin()
    rebalance = fault.error == 27
    line = "rejected during a rebalance, and will be retried" if rebalance else "a commit failed and will be retried"
    eventually(lambda: line in caplog.text, "the failure")
    assert bool(rebalance) != any(each.levelname == "WARNING" for each in caplog.records)
    if not (fault.truncate or fault.silent):  # then the broker has the commit, and only the response is missing
        assert on_fake.committed() == {0: 0, 1: 0, 2: 0, 3: 0}
    query.finish()
    query.poll()
    assert on_fake.committed() == {0: 5, 1: 3, 2: 0, 3: 0}


def test_spark_goes_on_while_a_commit_is_under_way_but_only_for_one_batch(on_fake: Bench) -> None:
    query = on_fake.start_batch(5, 5)
    on_fake.next("OffsetCommit", Fault(delay=1.0), times=2)
    query.finish()
    on_fake.produce(3)
    assert query.begin()[0].end == 8
    assert query.driver.counters.commits == 1, "only that of the starts"
    query.finish()
    on_fake.produce(1)
    assert query.begin()[0].end == 9
    assert query.driver.counters.commits == 2, "the next commit waits for the one before"
    query.finish()
    assert not query.poll()
    assert on_fake.committed() == {0: 9, 1: 5, 2: 0, 3: 0}, "an idle query has committed all"


@pytest.mark.parametrize(
    "fault", [Fault(error=15), Fault(error=28), Fault(drop="before"), Fault(drop="after")], ids=str
)
def test_a_commit_in_several_requests_retries_only_unconfirmed_offsets(
    on_fake: Bench, fake: FakeKafka, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_group_source.group.commits.COMMIT_BYTES", 1)  # a request for each partition
    on_fake.produce(5, 5, 5, 5)
    query = on_fake.start(offsetCommit_retryIntervalMs="1000")  # not before the test checks it
    query.begin()
    on_fake.next("OffsetCommit", Fault(), times=2)
    on_fake.next("OffsetCommit", fault)
    query.finish()
    assert not query.poll()
    assert query.driver._assigned_partitions.tracker.uncommitted() == {on_fake.tp(2), on_fake.tp(3)}
    eventually(lambda: not query.poll() and on_fake.committed() == dict.fromkeys(range(4), 5), "the rest")
    assert [each.offsets for each in fake.commits[-2:]] == [{("topic", 2): 5}, {("topic", 3): 5}]
    assert query.driver.counters.failed_commits == 1


@pytest.mark.parametrize("error_code", [3, 14, 28])
def test_an_idle_query_retries_a_failed_commit_with_its_tag(
    on_fake: Bench, fake: FakeKafka, error_code: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start_batch(5)
    on_fake.next("OffsetCommit", Fault(error=error_code), times=3)
    query.finish()
    eventually(lambda: not query.poll() and on_fake.committed()[0] == 5, "the commit")
    ended = commit_metadata({"checkpoint": query.end.checkpoint})
    start, *retries = [each.metadata for each in fake.commits]
    assert start == COMMIT_TAG, "no batch has ended there"
    assert set(retries) == {ended}
    of_a_partition = error_code == 3  # which the coordinator does not know yet
    assert query.driver.counters.failed_commits == (0 if of_a_partition else 3)
    assert caplog.text.count(" was rejected, and will be retried: ") == of_a_partition, "not once for each retry"


@pytest.mark.parametrize("retries", [0, 2])
def test_a_commit_that_keeps_failing_fails_the_query_after_the_retries_if_so_set(on_fake: Bench, retries: int) -> None:
    query = on_fake.start_batch(5, 5, onCommitFailure="fail", offsetCommit_numRetries=str(retries))
    on_fake.next("OffsetCommit", Fault(error=14), times=10_000)
    query.finish()
    with pytest.raises(CommitFailed) as raised:
        eventually(query.poll, "the failure")
    assert "topic-0, topic-1" in str(raised.value)
    assert f"{retries + 1} tries: OffsetCommit failed with 14 (COORDINATOR_LOAD_IN_PROGRESS)" in str(raised.value)
    assert "onCommitFailure" in str(raised.value)
    on_fake.fake.clear_faults()


def test_a_commit_that_succeeds_within_the_retries_does_not_fail_the_query(on_fake: Bench) -> None:
    query = on_fake.start(onCommitFailure="fail", offsetCommit_numRetries="2")
    uncommitted = query.driver._assigned_partitions.tracker.uncommitted
    for _ in range(3):
        on_fake.produce(1)
        query.begin()
        on_fake.next("OffsetCommit", Fault(error=14), times=2)
        query.finish()
        eventually(lambda: not query.poll() and not uncommitted(), "the commit")
    assert on_fake.committed()[0] == 3


def test_start_positions_that_cannot_be_committed_fail_the_query_if_so_set(on_fake: Bench, fake: FakeKafka) -> None:
    on_fake.next("OffsetCommit", Fault(error=14), times=10_000)
    with pytest.raises(CommitFailed, match=r"topic-0, topic-1, topic-2, topic-3 .* 1 tries: .*14 \(COORDINATOR_LOAD"):
        on_fake.start(onCommitFailure="fail", offsetCommit_numRetries="0")
    eventually(lambda: not fake.group(on_fake.group).members, "the failed member to leave the group")
    fake.clear_faults()


def test_a_revocation_waits_for_a_failed_commit(on_fake: Bench) -> None:
    first = on_fake.start_batch(5, 5, 5, 5)
    on_fake.next("OffsetCommit", Fault(error=14), times=4)
    first.finish()
    first.poll()
    second = on_fake.join()
    eventually(lambda: not first.poll() and len(second.owns()) == 2, "half to move")
    assert on_fake.committed() == {0: 5, 1: 5, 2: 5, 3: 5}
    assert not second.poll()


def test_commits_have_the_member_and_its_generation(on_fake: Bench, fake: FakeKafka) -> None:
    query, other = on_fake.start(), on_fake.start()
    on_fake.split(query, other)
    on_fake.produce(1, 1, 1, 1)
    query.run_batch()
    query.poll()
    me = query.me
    # The other member's start position may be committed last.
    last = next(each for each in reversed(fake.commits) if each.member_id == me.member_id)
    assert last.generation == me.generation
    assert {number for _, number in last.offsets} == query.owns()


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
    assert [fake.group(group).offsets["topic", number][0] for number in range(4)] == [5, 5, 5, 5]
    if meanwhile == "at its end":
        query.close()
        assert bench.committed() == dict.fromkeys(range(4), 10)
    elif meanwhile == "in a batch" and membership == "assign":  # nothing but the query commits for it
        query.finish()
        eventually(lambda: committed(11), "the commit of the batch")
    else:
        eventually(lambda: committed(10), "the next commit again")
    bench.close()


# Start positions


@pytest.mark.parametrize(("api", "error_code"), [("OffsetFetch", 15), ("OffsetCommit", 3)])
def test_start_positions_are_found_and_committed_while_the_query_is_busy(
    on_fake: Bench, api: str, error_code: int
) -> None:
    on_fake.next(api, Fault(error=error_code), times=3)
    on_fake.produce(5)
    query = on_fake.start()
    # Spark makes no more calls from here on: for the query this is a long batch.
    eventually(lambda: on_fake.committed() == {0: 0, 1: 0, 2: 0, 3: 0}, "the member's thread to commit them")
    assert not query.read


def test_a_revocation_waits_until_a_start_position_is_committed(on_fake: Bench, fake: FakeKafka) -> None:
    on_fake.next("OffsetCommit", Fault(error=14), times=10_000)
    first = on_fake.start()
    assert len(first.me.awaited) == 4
    second = on_fake.join()
    eventually(lambda: len(first.me.revoking) == 2, "the revocation")
    fake.clear_faults()
    eventually(lambda: len(second.owns()) == 2, "half to move, by the member's thread alone")
    assert on_fake.committed() == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("api", ["OffsetFetch", "OffsetCommit"])
def test_a_start_whose_lookup_or_commit_failed_is_committed_before_its_revocation(on_fake: Bench, api: str) -> None:
    options = {"startingOffsets": "latest", "offsetCommit_retryIntervalMs": "500"}
    on_fake.produce(3, 3, 3, 3)
    on_fake.next(api, Fault(error=14))
    first = on_fake.join(None, **options)
    eventually(lambda: len(first.me.owned) == 4 and not on_fake.has_faults(api), "the failure")
    on_fake.produce(5, 5, 5, 5)
    second = on_fake.join(None, **options)
    Bench.split(first, second, meanwhile=lambda: (first.advance(), second.advance()))
    for query in (first, second):
        query.advance()
    read = {each.partition: each.start for query in (first, second) for each in query.read}
    assert read == dict.fromkeys(range(4), 3), "the latest offset when the first query began"


def test_a_restart_keeps_the_start_of_an_added_topic_whose_commit_failed(on_fake: Bench, fake: FakeKafka) -> None:
    options = {"startingOffsets": "latest", "subscribe": f"{on_fake.topic},{fake.create_topic('added', 1)}"}
    query = on_fake.start(startingOffsets="latest").idle()
    query.close()
    fake.produce("added", ["v"] * 3)
    on_fake.next("OffsetCommit", Fault(error=14), times=10_000)
    query = on_fake.start(query.end, **options)
    assert not query.poll(), "there is nothing to read"
    query.close()
    fake.clear_faults()
    fake.produce("added", ["v"] * 5)
    query = on_fake.start(query.end, **options)
    assert [(each.topic, each.start, each.end) for each in query.begin()] == [("added", 3, 8)]


def test_a_run_reads_all_its_partitions_even_if_one_broker_does_not_know_some(on_fake: Bench) -> None:
    def lag(answer: Any) -> None:
        answer.topics[0].partitions = answer.topics[0].partitions[:2]

    on_fake.produce(5, 5, 5, 5)
    run = on_fake.query().start(available_now=True)
    on_fake.next("Metadata", Fault(edit=lag))
    run.idle()
    assert sum(each.size for each in run.read) == 20


# The membership


def test_a_member_follows_its_coordinator_and_keeps_its_membership(on_fake: Bench, fake: FakeKafka) -> None:
    query = on_fake.start()
    assert_goes_on(on_fake, query)
    generation = query.me.generation
    fake.coordinator = 2
    eventually(lambda: any(node == 2 for node, _ in on_fake.requests("Heartbeat")), "a heartbeat")
    assert_goes_on(on_fake, query)
    for broker in fake.brokers.values():
        broker.disconnect()
    assert_goes_on(on_fake, query)
    assert (query.me.generation, query.driver.counters.lost) == (generation, 0)


def test_a_pending_join_does_not_keep_the_query_from_ending(on_fake: Bench, fake: FakeKafka, protocol: str) -> None:
    joins = 2 if protocol == "classic" else 1  # with the first one it only gets its id
    on_fake.next("JoinGroup", Fault(), times=joins - 1)
    on_fake.next("JoinGroup", Fault(silent=True))
    query = on_fake.join()
    eventually(lambda: on_fake.request_count("JoinGroup") == joins, "the join")
    query.close()  # no response arrives: without the wakeup the thread would still wait for it
    assert not query.member._thread.is_alive()
    assert not fake.group(on_fake.group).members


@pytest.mark.one_protocol("classic", reason="with KIP-848 no client encodes assignments")
def test_a_member_joins_again_if_its_assignment_cannot_be_decoded(on_fake: Bench) -> None:
    def garble(response: Any) -> None:
        response.assignment = b"\x00\x00\x7f\xff\xff\xff"

    on_fake.next("SyncGroup", Fault(edit=garble), times=2)
    query = on_fake.start()
    eventually(lambda: len(query.owns()) == 4, "a valid assignment")


@pytest.mark.real_time(reason="a response of which one byte has come")
@pytest.mark.one_protocol("classic", reason="only JoinGroup has a long deadline")
def test_a_response_that_stalls_after_its_first_byte_delays_the_join_by_a_request_timeout(on_fake: Bench) -> None:
    on_fake.next("JoinGroup", Fault(dribble=3.0))
    began = time.monotonic()
    query = on_fake.join(kafka_request_timeout_ms="1000", kafka_max_poll_interval_ms="600000")
    eventually(lambda: len(query.owns()) == 4, "the assignment of another join")
    assert time.monotonic() - began < 10.0, "the whole response takes minutes"


def test_a_partition_that_stays_without_a_leader_does_not_block_other_partitions(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start()
    assert not query.poll()
    fake.logs["topic"][3].leader = None
    on_fake.produce(0, 2)  # and broker 2 is asked for nothing that it does not have
    query.driver._clients.cluster.invalidate_topics(["topic"])
    assert {each.partition for each in query.begin()} == {1}
    assert "no leader returns the end of topic-3" in caplog.text


def test_an_offset_in_another_programs_open_transaction_delays_no_other_partition(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    def pending(response: Any) -> None:
        for group in response.groups or [response]:
            for part in (part for topic in group.topics for part in topic.partitions if part.partition_index == 1):
                part.error_code, part.committed_offset = 88, -1

    on_fake.produce(1, 1, 1, 1)
    fake.next("OffsetFetch", Fault(edit=pending), times=100_000)
    query = on_fake.join()
    eventually(lambda: {each.partition for each in query.idle().read} == {0, 2, 3}, "the other partitions")
    asked, warning = (
        on_fake.request_count("OffsetFetch"),
        "no start position for topic-1 yet: OffsetFetch failed with 88",
    )
    eventually(lambda: not query.poll() and on_fake.request_count("OffsetFetch") > asked + 3, "further lookups")
    assert caplog.text.count(warning) == 1
    fake.clear_faults()
    eventually(lambda: {each.partition for each in query.idle().read} == {0, 1, 2, 3}, "the last partition")


@pytest.mark.one_protocol("classic", reason="with KIP-848 no member is the leader")
def test_a_leader_without_metadata_makes_no_empty_assignment(on_fake: Bench, fake: FakeKafka) -> None:
    query = on_fake.join()
    for broker in fake.brokers.values():
        on_fake.next("Metadata", Fault(drop="before", broker=broker.node), times=2)
    query.driver.await_assignment()
    eventually(lambda: len(query.owns()) == 4, "all partitions")


def test_the_wait_for_the_first_assignment_has_a_timeout(on_fake: Bench, caplog: pytest.LogCaptureFixture) -> None:
    on_fake.next("JoinGroup", Fault(error=15), times=10_000)
    query = on_fake.query(kafka_session_timeout_ms="3000")
    query.start()
    assert "no assignment after 3 s" in caplog.text
    assert "reads nothing until it has one: " in caplog.text
    assert "failed with 15 (COORDINATOR_NOT_AVAILABLE)" in caplog.text
    eventually(lambda: query.poll() or caplog.text.count("no assignment after") == 2, "the line a minute later")
    on_fake.fake.clear_faults()
    eventually(lambda: len(query.owns()) == 4, "the assignment, later")
    assert not query.member.last_failure


@pytest.mark.parametrize(
    ("error_code", "cause"),
    [
        (111, "still has the 'kafka.group.instance.id' of this query.*stop that member, or give each query"),
        (14, "still loads the group; if this lasts, see its log"),
        (16, "another coordinator; if this lasts, check that the topic __consumer_offsets has leaders"),
    ],
)
def test_a_query_without_an_assignment_says_why_its_join_is_rejected_and_what_to_do(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture, error_code: int, cause: str
) -> None:
    on_fake.start().idle()
    on_fake.next("JoinGroup", Fault(error=error_code), times=10_000)
    query = on_fake.query(kafka_session_timeout_ms="1000", kafka_group_instance_id="one")
    query.start()
    fake.clear_faults()
    (line,) = [each for each in caplog.messages if "no assignment after" in each]
    assert re.search(f"failed with {error_code} .*{cause}", line)
    assert "waits for other members" not in line


@pytest.mark.one_protocol("classic", reason="with KIP-848 no join waits for other members")
def test_a_query_without_an_assignment_says_which_members_it_waits_for(
    on_fake: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager: dict[str, Any] = {"kafka.partition.assignment.strategy": "range"}
    caplog.set_level("INFO", "spark_group_source")
    monkeypatch.setattr(driver, "FIRST_LINE_AFTER", 1.0)
    first = on_fake.start_batch(1, 1, 1, 1, **eager)
    query = on_fake.query(**eager, kafka_session_timeout_ms="3000")
    query.start()
    soon, late = (each for each in caplog.messages if "no assignment" in each)
    assert "no assignment yet after 1 s; the start of the query waits for it, at most 3 s in all: " in soon
    assert "no assignment after 3 s" in late
    for line in (soon, late):
        assert "the coordinator waits for other members to rejoin; the group is PreparingRebalance, with" in line
        assert "with contract-app-0 at" in line
        assert "A member that ended without leaving stays until its session times out (3 s in this query)." in line
    first.finish()
    eventually(lambda: not first.poll() and len(query.owns()) == 2, "the assignment")


def test_a_query_without_an_assignment_says_which_advertised_address_is_dead(
    on_fake: Bench, fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    fake.coordinator = 2
    fake.brokers[2].stop()
    query = on_fake.query(kafka_session_timeout_ms="3000")
    query.start()
    (line,) = [each for each in caplog.messages if "no assignment after" in each]
    assert f"Broker 127.0.0.1:{fake.brokers[2].port} cannot be reached" in line
    assert "refused" in line
    assert "The brokers advertise this address (advertised.listeners)" in line
    fake.brokers[2].start()
    eventually(lambda: len(query.owns()) == 4, "the assignment, later")


def test_a_lost_answer_leaves_time_for_another_heartbeat_in_a_short_session(on_fake: Bench, protocol: str) -> None:
    # With KIP-848 a member does not learn the brokers' session.
    believed = "6000" if protocol == "classic" else "45000"
    query = on_fake.start(kafka_session_timeout_ms=believed, kafka_heartbeat_interval_ms="2000")
    eventually(lambda: len(query.owns()) == 4, "all partitions")
    on_fake.next("Heartbeat", Fault(silent=True))
    on_fake.await_fault("Heartbeat")
    beats, lost_at, before = on_fake.request_count("Heartbeat"), time.monotonic(), query.me.session_ends
    eventually(lambda: on_fake.request_count("Heartbeat") > beats, "another heartbeat")
    assert time.monotonic() - lost_at < 6.0 - 2.0, "a session without an interval"
    eventually(lambda: query.me.session_ends > before, "its answer")
    assert query.driver.counters.lost == 0


@pytest.mark.parametrize("back", [False, True], ids=["leader", "static leader that is back"])
@pytest.mark.one_protocol("classic", reason="with KIP-848 no member is the leader")
def test_the_leader_finds_a_recreated_topic_of_another_member(on_fake: Bench, fake: FakeKafka, back: bool) -> None:
    def settled() -> bool:
        generation, looks = fake.group(on_fake.group).classic.generation, on_fake.request_count("Metadata")
        eventually(lambda: on_fake.request_count("Metadata") > looks + 10, "topic lookups")
        return fake.group(on_fake.group).classic.generation == generation

    often: dict[str, Any] = {"kafka_metadata_max_age_ms": "50", "failOnDataLoss": "false"}
    leader = on_fake.start(kafka_group_instance_id="one", **often)
    other = on_fake.start(subscribe=fake.create_topic("other"), **often)
    if back:
        leader.close()
        leader = on_fake.start(kafka_group_instance_id="one", **often)
    assert fake.group(on_fake.group).classic.leader == leader.me.member_id
    eventually(lambda: other.owns() == {0}, "the assignment")
    fake.delete_topic("other")
    eventually(lambda: not other.me.owned and settled(), "the assignment without the deleted topic")
    fake.create_topic("other")
    eventually(lambda: other.owns() == {0}, "the assignment of the new topic")


@pytest.mark.one_protocol("classic", reason="a classic group's leader has the assignor")
def test_an_eager_member_with_a_lost_join_does_not_wait_for_the_rebalance_timeout(on_fake: Bench) -> None:
    query = on_fake.start(None, kafka_partition_assignment_strategy="range", kafka_max_poll_interval_ms="600000")
    on_fake.next("JoinGroup", Fault(silent=True))
    joins = on_fake.request_count("JoinGroup")
    on_fake.next("Heartbeat", Fault(error=27))
    eventually(lambda: on_fake.request_count("JoinGroup") > joins + 1, "another join")
    eventually(lambda: len(query.owns()) == 4, "the assignment")


@pytest.mark.parametrize(
    "fault",
    [Fault(error=16), Fault(error=14), Fault(drop="before"), Fault(drop="after"), Fault(silent=True)],
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
    on_fake.next("Heartbeat", Fault(error=14), times=10_000)
    fake.expire(on_fake.group, query.me.member_id)
    query.close()
    assert "could not leave" not in caplog.text


# Static members


@pytest.mark.one_protocol("classic", reason="with KIP-848 a static member leaves for now")
def test_a_static_member_does_not_leave_and_its_next_run_takes_its_place(on_fake: Bench, fake: FakeKafka) -> None:
    first = on_fake.start(kafka_group_instance_id="one")
    first.close()
    assert not on_fake.request_count("LeaveGroup")
    generation = fake.group(on_fake.group).classic.generation
    again = on_fake.start(kafka_group_instance_id="one")
    assert again.owns() == {0, 1, 2, 3}
    assert len(fake.group(on_fake.group).members) == 1
    # Each checks whether it is known, and whether its application is in the group already. A returning member checks
    # for partitions without an owner, and does not rejoin here.
    eventually(lambda: on_fake.request_count("DescribeGroups") == 5, "the check")
    on_fake.await_request("Heartbeat", 2)
    assert fake.group(on_fake.group).classic.generation == generation


def test_a_static_member_leaves_when_it_stops_if_so_set(on_fake: Bench, fake: FakeKafka) -> None:
    on_fake.start(kafka_group_instance_id="one", leaveGroupOnStop="true").close()
    assert on_fake.request_count("LeaveGroup") == 1
    assert not fake.group(on_fake.group).members


@pytest.mark.one_protocol("classic", reason="with KIP-848 no member rejoins in a rebalance")
def test_a_new_static_member_waits_for_a_revocation_and_does_not_rejoin(on_fake: Bench, fake: FakeKafka) -> None:
    first = on_fake.start_batch(5, 5, 5, 5)
    on_fake.join_in_mid_batch(first, kafka_group_instance_id="two")
    on_fake.await_request("Heartbeat", 6)
    assert (fake.group(on_fake.group).classic.state, fake.group(on_fake.group).classic.generation) == ("Stable", 2)


def test_a_member_waits_for_an_unreleased_instance_id_and_warns_each_minute(
    on_fake: Bench, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spark_group_source.group.heartbeat_schedule.WARN_EVERY", 0.05)
    on_fake.next("JoinGroup", Fault(error=111), times=10_000)
    query = on_fake.join(kafka_group_instance_id="one", kafka_retry_backoff_max_ms="100")
    eventually(lambda: caplog.text.count("111 (UNRELEASED_INSTANCE_ID)") >= 3, "warnings")
    fake.clear_faults()
    eventually(lambda: len(query.owns()) == 4, "the assignment")


@pytest.mark.one_protocol("classic", reason="with KIP-848 no error reports a rebalance")
def test_heartbeats_succeed_during_a_pending_revocation_and_only_the_rebalance_is_logged(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first = on_fake.start_batch(5, 5, kafka_partition_assignment_strategy="range")
    with caplog.at_level(logging.INFO, "spark_group_source.group"):
        on_fake.join_in_mid_batch(first, kafka_partition_assignment_strategy="range")
        heard_at = first.member._protocol.heartbeats._succeeded_at
        on_fake.await_request("Heartbeat", 6)
        assert first.me.phase is Phase.REVOKING
    assert first.member._protocol.heartbeats._succeeded_at > heard_at, "or it would warn after a minute without success"
    assert "failed with 27" not in caplog.text, "a rebalance is no failure"
    assert caplog.text.count("joining, because") == 0, "the revocation is still pending"


@pytest.mark.one_protocol("classic", reason="a classic group's leader has the assignor")
def test_a_member_without_a_common_assignor_fails_with_the_option_to_change(bench: Bench) -> None:
    bench.start(kafka_partition_assignment_strategy="roundrobin")
    with pytest.raises(GroupError) as raised:
        bench.start()
    error = raised.value
    assert "INCONSISTENT_GROUP_PROTOCOL" in error.happened
    assert "uses the assignor 'roundrobin' and has 1 member(s): contract-app-0 at 127.0.0.1" in error.happened
    assert "Set 'kafka.partition.assignment.strategy' to roundrobin" in error.action


# The start


def test_a_topic_that_does_not_exist_fails_the_query_at_once(on_fake: Bench) -> None:
    with pytest.raises(TopicError, match="'nowhere' cannot be read.*Correct 'subscribe', or create the topic"):
        on_fake.start(subscribe="nowhere")


def test_unreachable_brokers_are_logged_before_the_query_fails_with_their_names(
    on_fake: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_validator, "START_TIMEOUT", 3.0)
    monkeypatch.setattr(topic_validator, "WARN_AFTER", 1.0)
    with pytest.raises(BrokerUnavailable, match="127.0.0.1:1 .*kafka.bootstrap.servers"):
        on_fake.start(kafka_bootstrap_servers="127.0.0.1:1")
    assert "no broker has answered yet; the query fails in 2 s if none does: " in caplog.text
    assert "127.0.0.1:1 cannot be reached" in caplog.text


# Every row of the error table, at every request whose response may have it


def at(apis: str, *error_codes: int) -> dict[int, list[str]]:
    return {error_code: apis.split() for error_code in error_codes}


def carried_by(membership: str) -> dict[int, list[str]]:
    """The codes that do not depend on the group protocol; ``membership`` are its requests, by their classic names."""
    return (
        at(f"{membership} OffsetCommit OffsetFetch FindCoordinator", -1, 7, 14, 15, 30, 31)
        | at(f"{membership} OffsetCommit OffsetFetch", 16)
        | at(f"{membership} OffsetCommit", 25, 82)
        | at("OffsetCommit", 3, 12, 28, 29, 100)
        | at("JoinGroup FindCoordinator", 24)
        | at("JoinGroup", 81)
        | at("OffsetFetch", 88)
    )


CARRIED_BY = {
    "classic": carried_by("JoinGroup SyncGroup Heartbeat")
    | at("JoinGroup SyncGroup Heartbeat OffsetCommit", 22, 27)
    | at("JoinGroup SyncGroup", 23, 35)
    | at("JoinGroup", 26, 79),
    "consumer": carried_by("JoinGroup Heartbeat")
    | at("JoinGroup Heartbeat OffsetCommit", 29)
    | at("JoinGroup Heartbeat", 110)
    | at("JoinGroup", 35, 111, 112, 128)
    | at("OffsetCommit", 113)
    | at("Heartbeat OffsetCommit", 69),  # a join with it is refused for good: test_consumer_protocol
}
EVERY = sorted(
    (protocol, error_code, api)
    for protocol, codes in CARRIED_BY.items()
    for error_code, apis in codes.items()
    for api in apis
)
NAMED_OPTIONS = {
    23: "kafka.partition.assignment.strategy",
    24: "kafka.group.id",
    26: "kafka.session.timeout.ms",
    82: "kafka.group.instance.id",
    81: "group.max.size",
    30: "READ on the group",
    112: "kafka.group.remote.assignor",
}


def test_every_row_of_the_error_table_is_tested() -> None:
    assert {error_code for codes in CARRIED_BY.values() for error_code in codes} == ERROR_ACTIONS.keys()


@pytest.mark.parametrize(("protocol", "error_code", "api"), EVERY, ids=str)
def test_an_error_code_is_retried_or_fatal_as_in_the_table(
    on_fake: Bench, protocol: str, error_code: int, api: str
) -> None:
    on_fake.produce(3)
    query = on_fake.query(offsetCommit_timeoutMs="1000")  # the coordinator has no other epoch to wait for
    if api in ("Heartbeat", "OffsetCommit"):
        query.start()
    on_fake.next(api, Fault(error=error_code), times=1 if ERROR_ACTIONS[error_code] is ErrorAction.TRIM_METADATA else 2)
    # A failed commit is retried after any error, and any request after a permission is missing that was there before.
    joined = api in ("Heartbeat", "OffsetCommit", "OffsetFetch")
    retried = api == "OffsetCommit" or (joined and is_denial(GroupError("", "", error_code=error_code)))
    if ERROR_ACTIONS[error_code] is ErrorAction.FATAL and not retried:
        with pytest.raises(GroupSourceError) as raised:  # noqa: PT012 - the start may fail, or what comes after it
            if api not in ("Heartbeat", "OffsetCommit"):
                query.start()
            eventually(lambda: query.me is None, "the error")
        assert str(error_code) in str(raised.value)
        assert NAMED_OPTIONS.get(error_code, "") in str(raised.value)
        if error_code not in (30, 82):  # it may not leave, or another member has its place
            eventually(lambda: not on_fake.fake.group(on_fake.group).members, "the member to leave")
        return
    if api not in ("Heartbeat", "OffsetCommit"):
        query.start()
    eventually(lambda: not on_fake.has_faults(api) or query.poll(), "the error")
    if query.running is None:
        query.begin()
    query.finish()
    eventually(lambda: not query.poll() and on_fake.committed() == {0: 3, 1: 0, 2: 0, 3: 0}, "all to be committed")


@pytest.mark.parametrize("error_code", [23, 26, 35, 81, 112])
def test_an_error_that_may_heal_ends_no_query_that_was_a_member(on_fake: Bench, error_code: int) -> None:
    query = on_fake.start()
    on_fake.next("JoinGroup", Fault(error=error_code), times=3)
    on_fake.expire(query)
    on_fake.await_fault("JoinGroup")
    eventually(lambda: query.driver.counters.lost == 4 and len(query.owns()) == 4, "the next assignment")
    assert_goes_on(on_fake, query)


def test_all_clients_of_a_query_follow_the_coordinator_that_one_of_them_finds(on_fake: Bench, fake: FakeKafka) -> None:
    """A former coordinator that is cut off from the others may still answer lookups of offsets."""
    query = on_fake.start().idle()
    fake.former_coordinators.add(fake.coordinator)
    fake.coordinator = 2
    on_fake.next("Heartbeat", Fault(error=16))
    eventually(lambda: any(node == 2 for node, _ in on_fake.requests("Heartbeat")), "a heartbeat to the next one")
    before = on_fake.request_count("OffsetCommit")
    assert_goes_on(on_fake, query)
    assert {node for node, _ in on_fake.requests("OffsetCommit")[before:]} == {2}


def test_an_error_code_outside_the_table_is_fatal(on_fake: Bench, fake: FakeKafka) -> None:
    query = on_fake.start()
    on_fake.next("Heartbeat", Fault(error=42))
    with pytest.raises(GroupError, match="42"):
        eventually(query.poll, "the error")
    assert describe_error_code(42) in str(query.member._state.error)
    eventually(lambda: not fake.group(on_fake.group).members, "the member to leave, although nothing closes the query")


def test_a_member_does_not_join_after_a_fatal_error(on_fake: Bench) -> None:
    first = on_fake.start_batch(1, 1, 1, 1)
    answered = threading.Event()
    on_fake.join_in_mid_batch(first)
    on_fake.next("Heartbeat", Fault(error=82, hold=answered), times=2)
    on_fake.await_fault("Heartbeat")
    first.finish()
    first.driver.complete(first.end)
    joins = on_fake.request_count("JoinGroup")
    answered.set()
    with pytest.raises(GroupError):
        eventually(first.poll, "the error")
    first.member._thread.join(TIMEOUT_S)
    assert on_fake.request_count("JoinGroup") == joins


def test_the_end_of_a_query_commits_a_completed_batch_whose_commit_failed(on_fake: Bench) -> None:
    query = on_fake.start(offsetCommit_retryIntervalMs="600000")
    on_fake.produce(5)
    query.begin()
    on_fake.next("OffsetCommit", Fault(error=14))
    query.finish()
    query.poll()
    assert on_fake.committed()[0] == 0
    query.close()
    assert on_fake.committed()[0] == 5


def test_the_end_of_a_query_waits_for_the_answer_to_a_commit_and_sends_it_again(on_fake: Bench) -> None:
    query = on_fake.start_batch(5, offsetCommit_retryIntervalMs="600000")
    on_fake.next("OffsetCommit", Fault(error=14, delay=3.0))
    query.finish()
    query.driver.complete(query.end)
    query.close()
    assert on_fake.committed()[0] == 5


def test_without_another_thread_the_query_commits_itself(on_fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    query = on_fake.start_batch(5)

    def start(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("spark_group_source.query.committer.threading.Thread.start", start)
        query.complete()
    assert on_fake.committed()[0] == 5


def test_an_unexpected_error_on_the_members_thread_fails_the_query_with_that_error(
    on_fake: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = on_fake.start()

    def stumble(*_: object, **__: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(type(query.member), "_keep_alive", stumble)

    with pytest.raises(GroupSourceError, match=r"The membership in group .* failed: LookupError\('a bug'\)"):
        eventually(query.poll, "the failure")
