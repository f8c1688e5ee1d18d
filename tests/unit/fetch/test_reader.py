"""A task reads its ranges to their ends exactly once, or fails in time with an error that names its position."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from spark_group_source.errors import (
    CorruptRecords,
    DataLoss,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
    TopicError,
)
from spark_group_source.fetch import cluster_pool
from spark_group_source.fetch.error_handler import MAX_ATTEMPTS
from spark_group_source.fetch.position import FetchPosition
from spark_group_source.fetch.reader import TaskReader, read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.records.columns import arrow_schema
from spark_group_source.records.responses import DecodeLimits
from spark_group_source.wire import reachability
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.frames import MAX_FRAME
from tests.fake import FakeKafka, Fault, releases
from tests.unit.fetch.tasks import aborted, fetched, fetches, fill, of, offsets, task, unknown
from tests.unit.hand_clock import Hand
from tests.unit.records.build import Record, batch, marker, resealed
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually

GZIP, ZSTD = 1, 4
COLUMNS = arrow_schema(["partition", "offset", "value", "headers"])
MAX_IDLE = 540.0


@pytest.fixture(autouse=True)
def records(fake: FakeKafka) -> None:
    """Partition 0 has twenty records."""
    fill(fake)


def large_task(fake: FakeKafka) -> FetchTask:
    """A task that needs many responses."""
    fill(fake, batches=30, rows=20, size=500)
    return task(fake, (0, 20, 620), fetch_max_bytes=20_000)


# Ranges


def test_exactly_the_range_is_read_across_record_batches(fake: FakeKafka) -> None:
    assert fetched(fake, (0, 5, 5)) == []
    assert not fetches(fake), "an empty task"
    assert fetched(fake, (0, 3, 17)) == of(0, 3, 17)
    assert fetched(fake, (0, 3, 17), topic_id="") == of(0, 3, 17), "the current id"


def test_later_responses_do_not_change_earlier_rows(fake: FakeKafka) -> None:
    kept = list(read(large_task(fake)))
    assert len(fetches(fake)) > 5, "the test needs several responses"
    values = [value.as_py() for each in kept for value in each["value"]]
    assert values == [f"{number:0500d}".encode() for number in range(20, 620)]


@pytest.mark.parametrize(("name", "knows_id"), [*((each, True) for each in releases.ALL), ("4.1", False)])
def test_rows_of_the_fetch_versions_of_other_brokers_are_equal(fake: FakeKafka, name: str, knows_id: bool) -> None:
    fake.offered = dict.fromkeys(fake.brokers, releases.ALL[name])
    fake.append("t", 1, batch([Record(b"%010d" % at, headers=[("h", b"w")]) for at in range(12)], codec=GZIP), 12)
    given = task(fake, (0, 3, 17), (1, 2, 12), topic_id=str(fake.ids["t"]) if knows_id else "", read_committed=True)
    found = (list(row.values()) for each in read(replace(given, schema=COLUMNS)) for row in each.to_pylist())
    headers = (None, [{"key": "h", "value": b"w"}])
    assert sorted(found) == [
        [number, at, b"%010d" % at, headers[number]]
        for number, start, end in ((0, 3, 17), (1, 2, 12))
        for at in range(start, end)
    ]
    assert {each.version for each in fetches(fake)} == {min(13, releases.ALL[name][1][1])}


def test_an_incomplete_record_batch_is_fetched_again_with_more_bytes(fake: FakeKafka) -> None:
    fill(fake, batches=1, rows=3, size=100_000)

    def cut(answer: Any) -> None:
        part = answer.responses[0].partitions[0]
        part.records = part.records[:1000]

    fake.next("Fetch", Fault(edit=cut))
    assert fetched(fake, (0, 20, 23)) == of(0, 20, 23)
    asked = [each.topics[0].partitions[0].partition_max_bytes for each in fetches(fake)]
    assert asked[1] > 300_000


def test_the_next_fetch_is_sent_before_the_last_response_is_decoded(fake: FakeKafka) -> None:
    rows = read(large_task(fake))
    next(rows)
    # The reader is paused while it decodes: the fetch in flight was sent before.
    eventually(lambda: len(fetches(fake)) == 2)
    rows.close()


def test_a_range_may_end_in_a_gap_or_a_marker(fake: FakeKafka) -> None:
    fill(fake, batches=1, rows=2, partition=1)
    fake.append("t", 1, marker(0, producer=7, commit=True), 1)
    fake.append("t", 1, batch([Record(b"a")], last_delta=4), 5)
    assert fetched(fake, (1, 0, 8)) == [(1, 0), (1, 1), (1, 3)]
    assert fetched(fake, (1, 2, 3)) == []
    assert fetched(fake, (1, 4, 8)) == []


def test_a_range_of_only_aborted_records_gives_no_rows(fake: FakeKafka) -> None:
    fake.append("t", 1, batch([Record(b"a"), Record(b"b")], transactional=True, producer=7), 2)
    fake.append("t", 1, marker(0, producer=7, commit=False), 1)
    fake.next("Fetch", Fault(edit=aborted), times=3)
    assert fetched(fake, (1, 0, 3), read_committed=True) == []


# Errors with a successful retry


@pytest.mark.parametrize(
    "fault",
    [
        *({"error": code} for code in (-1, 3, 5, 6, 7, 9, 13, 56, 74, 75, 78, 100, 103, 2)),
        *({"drop": "before"}, {"drop": "after"}, {"silent": True}, {"raw": b"\0\0\1\0abc", "drop": "answered"}),
    ],
    ids=str,
)
def test_a_retriable_error_is_retried_and_a_broken_connection_reopened(fake: FakeKafka, fault: dict[str, Any]) -> None:
    fake.next("Fetch", Fault(**fault), times=3 if "error" in fault else 1)
    assert fetched(fake, (0, 0, 20), request_timeout=0.5) == of(0, 0, 20)


@pytest.mark.parametrize("stops", [True, False], ids=["stops", "runs on"])
def test_a_task_follows_a_leader_that_moved(fake: FakeKafka, stops: bool) -> None:
    rows = read(large_task(fake))
    found = offsets([next(rows)])
    if stops:
        fake.brokers[1].stop()
    fake.logs["t"][0].leader = 2
    assert found + offsets(rows) == of(0, 20, 620)
    assert fetches(fake, 2)


def test_a_partition_without_a_leader_does_not_block_the_others(fake: FakeKafka) -> None:
    fill(fake, partition=1)
    fake.logs["t"][1].leader = None
    rows = read(task(fake, (0, 0, 20), (1, 0, 20)))
    assert offsets([next(rows)])[0] == (0, 0)
    fake.logs["t"][1].leader = 2
    assert set(of(1, 0, 20)) <= set(offsets(rows))


def test_a_throttling_broker_does_not_block_the_others(fake: FakeKafka) -> None:
    fill(fake, partition=1)
    fake.next("Fetch", Fault(edit=empty, throttle=LONG, broker=1))
    # The throttled partition fails the task at its poll timeout; nothing else fails earlier.
    with pytest.raises(DeadlineExceeded, match=r"t-0.*broker 1 throttles this client") as stuck:
        list(read(task(fake, (0, 0, 20), (1, 0, 20), poll_timeout=1.0)))
    assert "t-1" not in str(stuck.value)
    assert [broker.sent_while_muted for broker in fake.brokers.values()] == [0, 0]


def empty(answer: Any) -> None:
    answer.responses[0].partitions[0].records = b""


def lagging(answer: Any) -> None:
    part = answer.responses[0].partitions[0]
    part.high_watermark, part.last_stable_offset, part.records = 0, 0, b""


def end_at(offset: int) -> Fault:
    return Fault(edit=lambda answer: setattr(answer.topics[0].partitions[0], "offset", offset))


@pytest.mark.parametrize(
    ("without_records", "times", "lookup", "lookups"),
    [
        pytest.param(empty, 20, Fault(), 1, id="empty responses"),
        pytest.param(lagging, MAX_ATTEMPTS + 5, Fault(error=78), 3, id="a lagging high watermark"),
        pytest.param(lagging, MAX_ATTEMPTS, end_at(0), 100_000, id="an end offset of a former leader"),
    ],
)
def test_a_leader_whose_records_come_late_is_no_error_and_no_data_loss(
    fake: FakeKafka, without_records: Callable[[Any], None], times: int, lookup: Fault, lookups: int
) -> None:
    fake.next("Fetch", Fault(edit=without_records), times=times)
    fake.next("ListOffsets", lookup, times=lookups)
    assert fetched(fake, (0, 0, 20)) == of(0, 0, 20)
    assert len(fetches(fake)) > times


# Errors that fail the task


def test_no_progress_is_an_error_with_range_offset_and_reason(fake: FakeKafka) -> None:
    fake.next("Fetch", Fault(error=6), times=100_000)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"t-0\[3, 20\) at offset 3 .*NOT_LEADER"):
        fetched(fake, (0, 3, 20), poll_timeout=1.0)
    assert time.monotonic() - began < LONG / 2


def test_a_silent_broker_is_a_timeout(fake: FakeKafka) -> None:
    fake.next("Fetch", Fault(silent=True), times=1000)
    with pytest.raises(DeadlineExceeded, match=r"t-0\[0, 20\) at offset 0"):
        fetched(fake, (0, 0, 20), poll_timeout=0.3, request_timeout=0.1)
    for each in fake.brokers.values():
        each.stop()
    with pytest.raises(GroupSourceError, match="t-0|No Kafka broker"):
        fetched(fake, (0, 0, 20), poll_timeout=0.3, request_timeout=0.1)


@pytest.mark.parametrize(
    ("truncated", "wanted", "says", "left"),
    [
        (10, (0, 0, 20), r"\[0, 10\) .*holds \[10, 20\).*failOnDataLoss", of(0, 10, 20)),
        (10, (0, 0, 8), r"\[0, 8\) .*holds \[10, 20\).*failOnDataLoss", []),
        (0, (0, 22, 30), r"\[22, 30\) of t-0.*holds \[0, 20\)", []),
        (
            0,
            (0, 13, 30),
            r"\[20, 30\) of t-0, in the range t-0\[13, 30\), are lost: the log ends at 20.*failOnDataLoss",
            of(0, 13, 20),
        ),
    ],
    ids=["a part", "all", "after the end", "up to the end"],
)
def test_records_that_retention_deleted_fail_the_task_or_are_skipped(
    fake: FakeKafka, truncated: int, wanted: tuple[int, int, int], says: str, left: list[tuple[int, int]]
) -> None:
    fake.truncate("t", 0, truncated)
    began = time.monotonic()
    with pytest.raises(DataLoss, match=says):
        fetched(fake, wanted)
    assert fetched(fake, wanted, fail_on_data_loss=False) == left
    assert time.monotonic() - began < LONG / 2


def test_an_open_transaction_before_the_end_of_the_range_is_not_a_truncation(fake: FakeKafka) -> None:
    log = fake.logs["t"][0]
    log.stable = 0
    fake.next("Fetch", Fault(), times=MAX_ATTEMPTS + 4)
    fake.next("Fetch", Fault(edit=lambda _: setattr(log, "stable", None)))
    assert fetched(fake, (0, 0, 20), read_committed=True) == of(0, 0, 20)


@pytest.mark.parametrize("known", [True, False], ids=["recreated", "deleted"])
def test_a_recreated_topic_is_data_loss_and_never_other_records(fake: FakeKafka, known: bool) -> None:
    old = str(fake.ids["t"])
    fake.delete_topic("t")
    if known:
        fake.create_topic("t", partitions=2)
        fill(fake)
    with pytest.raises(DataLoss, match=f"{old} was deleted"):
        fetched(fake, (0, 0, 20), topic_id=old, poll_timeout=5.0)
    assert fetched(fake, (0, 0, 20), topic_id=old, poll_timeout=5.0, fail_on_data_loss=False) == []


def test_a_loss_is_decided_before_a_short_poll_timeout_ends_the_task(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts that confirm a loss otherwise take longer."""
    clock = Hand()
    monkeypatch.setattr(time, "sleep", clock.sleep)

    def read_shortly(*ranges: tuple[int, int, int], topic_id: str | None = None, skip: bool) -> list[tuple[int, int]]:
        backoff: dict[str, Any] = {"retry_backoff": 0.125, "retry_backoff_max": 1.0}
        short = task(fake, *ranges, topic_id=topic_id, fail_on_data_loss=not skip, poll_timeout=1.0, **backoff)
        with closing(Cluster(short.wire)) as cluster:
            return sorted(offsets(TaskReader(short, cluster, clock).batches()))

    assert read_shortly((0, 13, 29), skip=True) == of(0, 13, 20)
    with pytest.raises(DataLoss, match="the log ends at 20"):
        read_shortly((0, 13, 29), skip=False)
    fake.next("Fetch", Fault(error=2), times=100_000)
    with pytest.raises(CorruptRecords, match="t-0 at offset 0.*CORRUPT_MESSAGE"):
        read_shortly((0, 0, 20), skip=True)
    fake.clear_faults()
    old = str(fake.ids["t"])
    fake.delete_topic("t")
    fake.create_topic("t", partitions=2)
    fill(fake)
    assert read_shortly((0, 0, 20), (1, 0, 20), topic_id=old, skip=True) == []
    with pytest.raises(DataLoss, match=f"{old} was deleted"):
        read_shortly((0, 0, 20), topic_id=old, skip=False)


def test_a_broker_answers_within_a_short_poll_timeout_so_that_an_early_end_is_seen(fake: FakeKafka) -> None:
    """A broker waits for records at the end of its log."""
    assert fetched(fake, (0, 13, 29), fail_on_data_loss=False, poll_timeout=0.4, max_wait=30.0) == of(0, 13, 20)
    assert {each.max_wait_ms for each in fetches(fake)} == {200}


def test_a_task_fails_at_its_poll_timeout_however_the_clock_rounds(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Hand()
    clock.now = began = 153.9
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        assert pauses[-10:] != [0.0] * 10, "no time is left, and the timeout has not passed"
        clock.sleep(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    for log in fake.logs["t"].values():
        log.leader = None
    stuck = task(fake, (0, 0, 20), poll_timeout=120.0, retry_backoff=50.0, retry_backoff_max=50.0)
    with closing(Cluster(stuck.wire)) as cluster, pytest.raises(DeadlineExceeded, match="no records for 120.0 s"):
        list(TaskReader(stuck, cluster, clock).batches())
    assert clock.now == began + 120.0
    assert clock.now - began < 120.0, "rounded"


@pytest.mark.parametrize("fail_on_data_loss", [True, False], ids=["fail", "skip"])
def test_a_broker_without_the_topic_or_its_id_does_not_delete_it(fake: FakeKafka, fail_on_data_loss: bool) -> None:
    fake.next("Fetch", Fault(error=100), times=MAX_ATTEMPTS + 5)
    assert fetched(fake, (0, 0, 20), fail_on_data_loss=fail_on_data_loss) == of(0, 0, 20)
    wanted = task(fake, (0, 0, 20), fail_on_data_loss=fail_on_data_loss)
    with closing(Cluster(wanted.wire)) as cluster:
        cluster.metadata([], after())
        # A reused worker keeps this connection, and asks this broker first.
        cluster.connection(1, after())
        fake.next("Metadata", Fault(edit=unknown, broker=1), times=100_000)
        assert offsets(TaskReader(wanted, cluster).batches()) == of(0, 0, 20)


def test_a_broker_that_does_not_answer_confirms_no_deletion(fake: FakeKafka) -> None:
    fake.delete_topic("t")
    fake.next("Metadata", Fault(drop="before", broker=2), times=100_000)
    with pytest.raises(DeadlineExceeded, match="not all brokers confirm"):
        fetched(fake, (0, 0, 20), topic_id=str(uuid4()), fail_on_data_loss=False, poll_timeout=1.0)


def test_a_topic_deleted_during_the_check_of_its_log_fails_the_task_or_is_skipped(fake: FakeKafka) -> None:
    old = str(fake.ids["t"])
    fake.next("Fetch", Fault(error=1, edit=lambda _: fake.delete_topic("t")))
    began = time.monotonic()
    assert fetched(fake, (0, 0, 20), topic_id=old, fail_on_data_loss=False) == []
    assert time.monotonic() - began < LONG / 2


@pytest.mark.parametrize(
    ("error_code", "times", "kind", "says"),
    [(31, 1, TopicError, "Cannot fetch t-0.*31 "), (2, 100_000, CorruptRecords, "t-0 at offset 0.*CORRUPT_MESSAGE")],
)
def test_an_error_without_a_retry_fails_at_once(
    fake: FakeKafka, error_code: int, times: int, kind: type[GroupSourceError], says: str
) -> None:
    fake.next("Fetch", Fault(error=error_code), times=times)
    with pytest.raises(kind, match=says):
        fetched(fake, (0, 0, 20))
    assert len(fetches(fake)) == min(times, MAX_ATTEMPTS + 1)


def test_a_task_waits_for_a_permission_that_its_driver_had(fake: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    fake.next("Fetch", Fault(error=29), times=3)
    assert fetched(fake, (0, 0, 20)) == of(0, 0, 20)
    assert len(fetches(fake)) == 4
    assert caplog.text.count("no longer has READ on topic 't'") == 1


def test_a_task_waits_for_the_permission_to_look_up_where_its_log_begins(fake: FakeKafka) -> None:
    fake.truncate("t", 0, 10)
    fake.next("ListOffsets", Fault(error=29), times=3)
    assert fetched(fake, (0, 0, 20), fail_on_data_loss=False) == of(0, 10, 20)


@pytest.mark.parametrize("size", [8, 40, -1])
def test_an_incomplete_response_is_retried_or_an_error(fake: FakeKafka, size: int) -> None:
    fake.next("Fetch", Fault(truncate=size))
    with suppress(ProtocolError):
        assert fetched(fake, (0, 0, 20)) == of(0, 0, 20)
    assert fetched(fake, (0, 0, 20)) == of(0, 0, 20)


# Damage


def behind_mark(answer: Any) -> None:
    """The high watermark is older than the records."""
    answer.responses[0].partitions[0].high_watermark = 2


def damaged(at: int) -> Callable[[Any], None]:
    """Flips a bit in the second record batch of a response: its base offset, or a byte that its checksum covers."""

    def edit(answer: Any) -> None:
        part = answer.responses[0].partitions[0]
        second = 12 + int.from_bytes(part.records[8:12], "big")
        records = bytearray(part.records)
        records[second + at] ^= 1
        part.records = bytes(records)

    return edit


def counted(fake: FakeKafka, count: int) -> None:
    """Record batches of partition 1 claim to have so many records, with a right checksum."""
    raw = bytearray(batch([Record(b"a"), Record(b"b")]))
    raw[57:61] = count.to_bytes(4, "big")
    fake.append("t", 1, resealed(raw), 2)


BASE_OFFSET, LENGTH, CHECKED = 7, 11, 80


def test_records_behind_an_older_high_watermark_are_read(fake: FakeKafka) -> None:
    fake.next("Fetch", Fault(edit=behind_mark), times=100)
    assert fetched(fake, (0, 0, 20)) == of(0, 0, 20)
    assert len(fetches(fake)) == 1


@pytest.mark.parametrize("start", [0, 25])
def test_records_behind_a_gap_of_compaction_and_an_older_high_watermark_are_read(fake: FakeKafka, start: int) -> None:
    log = fake.logs["t"][0]
    log.append_count(70)
    fill(fake, batches=1)
    fake.next("Fetch", Fault(edit=behind_mark), times=100)
    assert fetched(fake, (0, start, 95)) == of(0, start, 20) + of(0, 90, 95)


@pytest.mark.parametrize("at", [BASE_OFFSET, LENGTH, CHECKED])
def test_one_damaged_response_is_fetched_again_from_another_connection(fake: FakeKafka, at: int) -> None:
    fill(fake, partition=1)
    fake.logs["t"][1].leader = 1
    fake.next("Fetch", Fault(edit=damaged(at)))
    opened = fake.request_count("ApiVersions")
    # A task reads more than one response, and another partition with it.
    assert sorted(fetched(fake, (0, 0, 20), (1, 0, 20))) == of(0, 0, 20) + of(1, 0, 20)
    assert fake.request_count("ApiVersions") >= opened + 2


@pytest.mark.parametrize("at", [BASE_OFFSET, LENGTH, CHECKED])
def test_two_responses_with_the_same_damage_are_an_error_that_says_so(fake: FakeKafka, at: int) -> None:
    fake.next("Fetch", Fault(edit=damaged(at)), times=100)
    with pytest.raises(CorruptRecords, match=r"t-0 at offset (5|10) is damaged.* 2 responses had this damage"):
        fetched(fake, (0, 0, 20))


@pytest.mark.parametrize("between", [0, 1, 3])
def test_responses_that_are_damaged_differently_end_too(fake: FakeKafka, between: int) -> None:
    """Responses without records in between show nothing about the damage."""
    for number in range(100):
        fake.next("Fetch", Fault(edit=damaged(CHECKED + number)))
        fake.next("Fetch", Fault(edit=empty), times=between)
    with pytest.raises(CorruptRecords, match=f"{MAX_ATTEMPTS + 1} responses from this offset were damaged"):
        fetched(fake, (0, 0, 20))


def test_a_response_without_records_does_not_hide_that_two_have_the_same_damage(fake: FakeKafka) -> None:
    for edit in (damaged(CHECKED), empty, damaged(CHECKED)):
        fake.next("Fetch", Fault(edit=edit))
    with pytest.raises(CorruptRecords, match="2 responses had this damage"):
        fetched(fake, (0, 0, 20))


@pytest.mark.parametrize("bit", [8, 14, 18, 29, 30])
def test_a_length_beyond_the_records_is_an_error_after_few_fetches_of_bounded_size(fake: FakeKafka, bit: int) -> None:
    """Each of the responses looks as if the record batch had not fitted."""

    def lengthened(answer: Any) -> None:
        part = answer.responses[0].partitions[0]
        length = int.from_bytes(part.records[8:12], "big") ^ 1 << bit
        part.records = part.records[:8] + length.to_bytes(4, "big") + part.records[12:]

    fake.next("Fetch", Fault(edit=lengthened), times=100_000)
    with pytest.raises(CorruptRecords, match=r"t-0 at offset 15 is damaged: its header says \d+ bytes.*2 responses"):
        fetched(fake, (0, 15, 20))
    assert len(fetches(fake)) <= MAX_ATTEMPTS
    assert max(each.max_bytes for each in fetches(fake)) <= MAX_FRAME // 2
    fake.clear_faults()
    fake.next("Fetch", Fault(edit=lengthened))
    assert fetched(fake, (0, 15, 20)) == of(0, 15, 20)


def test_a_count_that_hides_records_is_corrupt(fake: FakeKafka) -> None:
    counted(fake, 0)
    with pytest.raises(CorruptRecords, match=r"t-1 at offset 0.*a count of 0.*2 responses"):
        fetched(fake, (1, 0, 2))


def test_earlier_record_batches_are_skipped_and_alone_they_are_an_error(fake: FakeKafka) -> None:
    log = fake.logs["t"][0]
    earlier = log.batches[0][2]

    def with_earlier(answer: Any) -> None:
        part = answer.responses[0].partitions[0]
        part.records = earlier + part.records

    def only_earlier(answer: Any) -> None:
        answer.responses[0].partitions[0].records = earlier

    fake.next("Fetch", Fault(edit=only_earlier), times=MAX_ATTEMPTS)
    fake.next("Fetch", Fault(edit=with_earlier), times=100)
    assert fetched(fake, (0, 7, 20)) == of(0, 7, 20)
    fake.clear_faults()
    fake.next("Fetch", Fault(edit=only_earlier), times=100)
    with pytest.raises(CorruptRecords, match="t-0 from offset 7 only with record batches that end before it"):
        fetched(fake, (0, 7, 20))


# Responses without progress


def without_partition(answer: Any) -> None:
    answer.responses = []


def names_itself(answer: Any) -> None:
    part = answer.responses[0].partitions[0]
    part.preferred_read_replica, part.records = 1, b""


@pytest.mark.parametrize(
    ("edit", "says"),
    [(without_partition, "lacks the partition"), (names_itself, "names broker 1"), (empty, "sent no records")],
)
@pytest.mark.parametrize("max_wait", [0.0, 0.5])
def test_responses_without_progress_are_not_repeated_at_once(
    fake: FakeKafka, edit: Callable[[Any], None], says: str, max_wait: float
) -> None:
    fake.next("Fetch", Fault(edit=edit), times=100_000)
    with pytest.raises(DeadlineExceeded, match=says):
        fetched(fake, (0, 0, 20), poll_timeout=1.0, max_wait=max_wait, rack="here", retry_backoff=0.1)
    assert len(fetches(fake)) < 25


def test_a_broker_that_names_itself_as_preferred_replica_sends_the_records(
    fake: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    fake.next("Fetch", Fault(edit=names_itself, only=lambda request: bool(request.rack_id)), times=100_000)
    assert fetched(fake, (0, 0, 20), rack="here", poll_timeout=5.0) == of(0, 0, 20)
    assert caplog.text.count("reading t-0 from its leader: broker 1 sent no records") == 1


def test_no_fetch_waits_after_progress_or_after_the_wait_of_a_broker(
    fake: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchPosition, "wait_for_progress", lambda *_: pytest.fail("a healthy fetch waits"))
    fill(fake, partition=1)
    wanted = large_task(fake)
    assert len(offsets(read(wanted))) == 600
    monkeypatch.undo()
    position = FetchPosition.at_start(wanted.ranges[0], 2**20, 0)
    for sent_at in range(10):
        position.wait_for_progress(float(sent_at), 0.1, 0.5)
        assert position.next_fetch_at <= sent_at + 0.5, "a broker has waited for as long"


def test_a_broker_waits_for_records_less_long_than_the_client_for_the_broker(fake: FakeKafka) -> None:
    log = fake.logs["t"][0]
    log.stable = 0
    fake.next("Fetch", Fault(edit=lambda _: setattr(log, "stable", None)))
    assert fetched(fake, (0, 0, 20), read_committed=True, max_wait=30.0, request_timeout=1.0) == of(0, 0, 20)
    assert {each.max_wait_ms for each in fetches(fake)} == {500}


# Connections kept across tasks


def test_connections_are_kept_for_the_next_task_and_not_after_a_failure(fake: FakeKafka) -> None:
    fetched(fake, (0, 0, 20))
    before = fake.request_count("ApiVersions")
    fetched(fake, (0, 0, 20))
    assert fake.request_count("ApiVersions") == before
    fake.next("Fetch", Fault(error=31))
    with pytest.raises(TopicError):
        fetched(fake, (0, 0, 20))
    fetched(fake, (0, 0, 20))
    assert fake.request_count("ApiVersions") > before


def test_idle_connections_are_closed_as_the_next_task_starts(fake: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched(fake, (0, 0, 20))
    ((used, kept),) = cluster_pool._idle_clusters.values()
    for idle, closed in ((MAX_IDLE - 1, False), (MAX_IDLE + 1, True)):
        monkeypatch.setattr(cluster_pool, "monotonic", lambda idle=idle: used + idle)
        cluster_pool._close_idle()
        assert bool(kept._connections._by_purpose) != closed
    assert not cluster_pool._idle_clusters


def test_unread_rows_leave_no_response_for_the_next_task(fake: FakeKafka) -> None:
    rows = read(large_task(fake))
    next(rows)
    rows.close()
    assert fetched(fake, (0, 0, 20)) == of(0, 0, 20)


def test_a_task_returns_small_arrow_batches_however_much_it_reads(fake: FakeKafka) -> None:
    """Arrow's offsets have 32 bits, and Spark accepts no larger ones: a task may read more than 2 GiB."""
    value = bytes(range(250)) * 4000
    packed = batch([Record(value)] * 32, codec=ZSTD)
    count = 32 * 8
    for first in range(0, count, 32):
        # The checksum does not include the base offset.
        fake.append("t", 1, first.to_bytes(8, "big") + packed[8:], 32)
    sizes, held, last, limit = [], [], 0, DecodeLimits().unit_bytes // 4  # decompressed
    for rows in read(task(fake, (1, 0, count))):
        assert rows["offset"][0].as_py() == last
        last = rows["offset"][-1].as_py() + 1
        assert rows["value"][-1].as_py() == value
        sizes.append(rows["value"].buffers()[2].size)
        held.append(pa.total_allocated_bytes())
    assert last == count
    assert sum(sizes) == count * len(value) > 32 * limit
    assert max(sizes) <= limit
    assert max(held) < 16 * limit


# Sizes of fetches


def test_one_partition_takes_only_its_part_of_a_fetch(fake: FakeKafka) -> None:
    fill(fake, batches=30, rows=20, size=500)
    fill(fake, partition=1)
    found = offsets(
        read(task(fake, (0, 20, 620), (1, 0, 20), fetch_max_bytes=400_000, max_partition_fetch_bytes=20_000))
    )
    assert sorted(found) == of(0, 20, 620) + of(1, 0, 20)
    asked = [each.topics[0].partitions[0].partition_max_bytes for each in fetches(fake)]
    assert max(asked) == 20_000
    assert max(each.max_bytes for each in fetches(fake)) == 400_000


def test_a_fetch_requests_no_more_than_a_connection_receives(fake: FakeKafka) -> None:
    fill(fake, partition=1)
    unlimited = task(fake, (0, 0, 2 * MAX_FRAME), (1, 0, 20), fetch_max_bytes=2**31 - 1, fail_on_data_loss=False)
    # The range ends after its log, which does not block the other partition.
    assert sorted(offsets(read(unlimited))) == of(0, 0, 20) + of(1, 0, 20)
    assert max(each.max_bytes for each in fetches(fake)) <= MAX_FRAME // 2
    assert max(each.topics[0].partitions[0].partition_max_bytes for each in fetches(fake)) <= MAX_FRAME // 2


def test_a_fetch_has_the_minimum_size_and_maximum_wait(fake: FakeKafka) -> None:
    assert fetched(fake, (0, 0, 20), min_bytes=5000, max_wait=0.037) == of(0, 0, 20)
    assert {(each.min_bytes, each.max_wait_ms) for each in fetches(fake)} == {(5000, 37)}


def test_a_task_reads_everything_from_a_throttling_broker(fake: FakeKafka) -> None:
    fake.next("Fetch", Fault(throttle=0.1), times=4)
    assert fetched(fake, (0, 0, 20), fetch_max_bytes=200) == of(0, 0, 20)
    assert fake.brokers[1].sent_while_muted == 0


def test_an_early_end_of_the_log_that_list_offsets_denies_times_out(fake: FakeKafka) -> None:
    fake.next("ListOffsets", end_at(29), times=100_000)
    with pytest.raises(DeadlineExceeded, match=r"t-0\[0, 29\) at offset 20 .*ends at 20"):
        # Long enough that a size doubled at every attempt would exceed the request field.
        fetched(fake, (0, 0, 29), poll_timeout=0.8)


def test_kept_connections_release_their_receive_buffers(fake: FakeKafka) -> None:
    fill(fake, rows=100, size=1000)
    fetched(fake, (0, 0, 400))
    (kept,) = [each for _, each in cluster_pool._idle_clusters.values()]
    receivers = [each._frame_reader for each in kept._connections._by_purpose.values()]
    assert receivers
    assert not any(each._spare_buffer or each._buffer for each in receivers)


def test_leaders_that_have_all_moved_away_silently_are_looked_up_before_each_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "FIRST_PATIENCE", 1.0)
    monkeypatch.setattr("spark_group_source.fetch.fetches.CONNECT_TIME", 0.5)
    former = range(1, 13)
    with FakeKafka(brokers=13) as fake:
        fake.create_topic("t", partitions=len(former))
        for number in range(len(former)):
            fill(fake, partition=number)
        ranges = [(number, 0, 20) for number in range(len(former))]
        wanted = task(fake, *ranges, poll_timeout=8.0, request_timeout=5.0)
        wire = replace(wanted.wire, connect_timeout=LONG, connect_timeout_max=LONG)
        wanted = replace(wanted, wire=replace(wire, bootstrap_servers=(("127.0.0.1", fake.brokers[13].port),)))
        assert len(offsets(read(wanted))) == 20 * len(former)
        for node in former:
            fake.brokers[node].hung = True
            fake.brokers[node].disconnect()
            fake.elect("t", node - 1, leader=13)
        fake.fenced = set(former)
        assert len(offsets(read(wanted))) == 20 * len(former)
