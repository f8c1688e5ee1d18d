"""Faults at a member with the group protocol of KIP-848, on the fake.

``test_trouble.py`` has the faults that members of both protocols have.
"""

from __future__ import annotations

import threading
import time

import pytest

from spark_group_source.errors import ProtocolError
from spark_group_source.wire.metadata import Topic
from tests.contract.conftest import CONSUMER_BASE, Background, Bench, Query, eventually
from tests.fake import FakeKafka, Fault

pytestmark = pytest.mark.one_protocol("consumer", reason="epochs and heartbeats of KIP-848")

FENCED_EPOCH, STALE_EPOCH = 110, 113


@pytest.fixture(autouse=True)
def filled(on_fake: Bench) -> None:
    """Five records in each partition."""
    on_fake.produce(5, 5, 5, 5)


def epoch_changes_behind(query: Query, on_fake: Bench) -> threading.Event:
    """The coordinator gives the member a new epoch, and holds the answer that says so until the event is set."""
    answer = threading.Event()
    number, had = on_fake.request_count("Heartbeat"), query.me.generation
    on_fake.next("Heartbeat", Fault(hold=answer), times=2)
    on_fake.fake.create_topic(on_fake.topic, partitions=5)
    members = on_fake.fake.group(on_fake.group).consumer.members
    eventually(lambda: members[query.me.member_id].epoch > had, "the new epoch")
    assert on_fake.request_count("Heartbeat") > number
    assert query.me.generation == had
    return answer


# Commits


def test_a_commit_with_a_stale_epoch_is_sent_again_with_the_epoch_of_now_and_is_no_failed_commit(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    query = on_fake.start(offsetCommit_retryIntervalMs="600000", offsetCommit_timeoutMs="20000")
    query.begin()
    answer = epoch_changes_behind(query, on_fake)
    sent = len(on_fake.fake.commits)
    query.finish()
    committing = Background(query.poll)
    eventually(lambda: len(on_fake.fake.commits) > sent, "the commit")
    assert on_fake.committed() == dict.fromkeys(range(4), 0)
    answer.set()
    committing.result()
    committed = on_fake.committed()
    assert [committed[number] for number in range(4)] == [5, 5, 5, 5]
    stale, fresh = [each for each in on_fake.fake.commits[sent:] if (on_fake.topic, 0) in each.offsets]
    assert (stale.error, fresh.error, fresh.generation) == (STALE_EPOCH, 0, query.me.generation)
    assert "a commit failed" not in caplog.text
    assert query.driver.counters.failed_commits == 0
    assert query.driver.counters.lost == 0


def test_a_commit_with_a_stale_epoch_fails_at_its_timeout_and_is_retried(on_fake: Bench) -> None:
    query = on_fake.start(offsetCommit_timeoutMs="300")
    query.begin()
    answer = epoch_changes_behind(query, on_fake)
    query.finish()
    began = time.monotonic()
    query.poll()
    assert time.monotonic() - began < 1.0
    assert query.driver.counters.failed_commits >= 1
    answer.set()
    eventually(lambda: query.poll() or on_fake.committed()[0] == 5, "the commit")


# Epochs


def test_a_commit_with_a_stale_epoch_is_not_sent_again_once_the_partitions_are_lost(on_fake: Bench) -> None:
    query = on_fake.start(offsetCommit_timeoutMs="20000")
    query.begin()
    answer = threading.Event()
    before = on_fake.request_count("Heartbeat")
    # Several: a heartbeat whose answer takes too long is sent again.
    on_fake.next("Heartbeat", Fault(error=FENCED_EPOCH, hold=answer), times=10_000)
    eventually(lambda: on_fake.request_count("Heartbeat") > before, "the heartbeat")
    on_fake.next("JoinGroup", Fault(error=14), times=10_000)
    on_fake.next("OffsetCommit", Fault(error=STALE_EPOCH))
    sent = len(on_fake.fake.commits)
    query.finish()
    committing = Background(query.poll)
    eventually(lambda: len(on_fake.fake.commits) > sent, "the commit")
    answer.set()
    committing.result()
    assert query.driver.counters.lost == 4
    assert len(on_fake.fake.commits) == sent + 1
    on_fake.fake.clear_faults()


def test_after_a_heartbeat_without_an_answer_an_assignment_is_told_again(on_fake: Bench) -> None:
    on_fake.produce(1)
    on_fake.start()
    on_fake.next("Heartbeat", Fault(silent=True))
    on_fake.await_fault("Heartbeat")
    sent = on_fake.request_count("Heartbeat")
    eventually(lambda: on_fake.request_count("Heartbeat") > sent + 3)
    assert all(request.topic_partitions for _, request in on_fake.requests("Heartbeat")[sent:])


def test_lookups_that_hang_hold_back_no_heartbeat(on_fake: Bench) -> None:
    def assert_heartbeats_while(api: str, number: int) -> None:
        on_fake.await_request(api, number)
        began = time.monotonic()
        on_fake.await_request("Heartbeat", 3)
        assert time.monotonic() - began < 5.0

    on_fake.fake.heartbeat_interval = 1.0
    on_fake.fake.next("ListOffsets", Fault(silent=True), times=10_000)
    # The brokers' session may be much shorter than the one that the member believes.
    query = on_fake.join(kafka_session_timeout_ms="45000")
    for lookups in (1, 2):
        assert_heartbeats_while("ListOffsets", lookups)
    on_fake.fake.clear_faults()
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "the start positions")
    # The same of a lookup of topics.
    on_fake.fake.next("Metadata", Fault(silent=True), times=10_000)
    other = on_fake.fake.create_topic("other", partitions=1)
    subscribed = query.member._protocol.subscribe({name: Topic(name, "", {}) for name in (on_fake.topic, other)})
    assert subscribed is not None
    query.member.post(subscribed)
    assert_heartbeats_while("Metadata", 1)
    on_fake.fake.clear_faults()
    eventually(lambda: len(query.me.owned) == 5, "the other topic")
    assert query.driver.counters.lost == 0


# Joins


def test_an_assignment_whose_topic_has_no_name_yet_is_taken_over_later(on_fake: Bench, fake: FakeKafka) -> None:
    def unknown(answer: object) -> None:
        for topic in answer.topics:  # type: ignore[attr-defined]
            topic.error_code, topic.partitions = 3, []

    joins = threading.Event()
    on_fake.next("JoinGroup", Fault(hold=joins))
    query = on_fake.join()
    eventually(lambda: on_fake.request_count("JoinGroup"), "the join")
    joins.set()
    fake.next("Metadata", Fault(edit=unknown), times=2)
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")


# Sessions


def test_a_broker_that_does_not_tell_its_session_timeout_is_named_with_the_one_assumed(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    query = on_fake.start(kafka_session_timeout_ms="7000")
    line = "cannot read the group's session timeout, assuming 7 s. Reading it needs DESCRIBE_CONFIGS on the group"
    eventually(lambda: line in caplog.text, "the line")
    on_fake.expire(query)
    eventually(lambda: query.driver.counters.joins > 1, "another join")
    eventually(lambda: len(query.owns()) == 4, "the next assignment")
    assert caplog.text.count(line) == 1


# Brokers


def test_a_throttled_member_sends_nothing_meanwhile_and_keeps_its_membership(on_fake: Bench, fake: FakeKafka) -> None:
    query = on_fake.start()
    epoch = query.me.generation
    on_fake.next("Heartbeat", Fault(throttle=0.5), times=2)
    on_fake.await_request("Heartbeat", 5)
    assert sum(broker.sent_while_muted for broker in fake.brokers.values()) == 0
    assert (query.me.generation, query.driver.counters.lost) == (epoch, 0)


def test_brokers_without_the_protocol_end_the_query_with_what_they_lack(group: str) -> None:
    with FakeKafka(group_version=0) as kafka:
        bench = Bench(kafka, kafka.create_topic("topic"), group, CONSUMER_BASE)
        with pytest.raises(ProtocolError, match=r"lacks the feature group\.version=1.*kafka\.group\.protocol=classic"):
            bench.start()
        bench.close()


# Static members


def test_a_second_process_with_the_same_instance_id_waits_and_the_first_one_reads_on(on_fake: Bench) -> None:
    first = on_fake.start(kafka_group_instance_id="one")
    second = on_fake.join(kafka_group_instance_id="one")
    eventually(lambda: on_fake.request_count("JoinGroup") > 3, "joins")
    first.run_batch()
    first.idle()
    assert (second.owns(), first.driver.counters.lost) == (set(), 0)
    first.close()
    eventually(lambda: second.owns() == {0, 1, 2, 3}, "the partitions of the first")
