"""Whether ranges have records, on a fake Kafka."""

from __future__ import annotations

import contextlib

import pytest

from spark_group_source.errors import DeadlineExceeded
from spark_group_source.fetch.visible import with_records
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.wire.identity import ClusterIdentity
from tests.fake import FakeKafka, Fault
from tests.unit.fetch.tasks import aborted, fill
from tests.unit.records.build import Record, batch, marker
from tests.unit.wire_options import LONG, wire_options

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def found(fake: FakeKafka, *ranges: tuple[int, int, int], committed: bool = True, timeout: float = LONG) -> set[object]:
    given = [OffsetRange("t", *each) for each in ranges]
    wire = wire_options(fake, retry_backoff_max=0.02)
    return set(with_records(given, wire, read_committed=committed, timeout=timeout))


def test_a_range_of_records_has_some_and_one_of_a_marker_has_none(fake: FakeKafka) -> None:
    fill(fake, batches=1, rows=5)
    fill(fake, batches=1, rows=5, partition=1)
    fake.append("t", 1, marker(0, producer=7, commit=True), 1)
    assert found(fake, (0, 3, 5), (1, 5, 6)) == {FIRST}
    assert found(fake, (0, 4, 5), (1, 4, 6)) == {FIRST, SECOND}


def test_aborted_records_are_seen_by_read_uncommitted_only(fake: FakeKafka) -> None:
    fake.append("t", 1, batch([Record(b"a"), Record(b"b")], producer=7, transactional=True), 2)
    fake.append("t", 1, marker(0, producer=7, commit=False), 1)
    fake.next("Fetch", Fault(edit=aborted), times=3)
    assert found(fake, (1, 0, 3)) == set()
    fake._faults.clear()
    assert found(fake, (1, 0, 3), committed=False) == {SECOND}


def test_a_gap_at_the_end_of_a_record_batch_has_none(fake: FakeKafka) -> None:
    fake.append("t", 1, batch([Record(b"a"), Record(b"b")], last_delta=9), 10)
    assert found(fake, (1, 2, 10)) == set()
    assert found(fake, (1, 1, 10)) == {SECOND}


def test_a_leader_without_an_answer_is_an_error_within_the_time(fake: FakeKafka) -> None:
    fill(fake, batches=1)
    fake.next("Fetch", Fault(silent=True), times=10)
    with pytest.raises(DeadlineExceeded):
        found(fake, (0, 0, 5), timeout=0.3)


def test_leaders_of_another_cluster_say_nothing(fake: FakeKafka) -> None:
    fill(fake, batches=1)
    for identity, answers in ((ClusterIdentity(str(fake.cluster_id)), True), (ClusterIdentity("another"), False)):
        wire, given = wire_options(fake, retry_backoff_max=0.02), [OffsetRange("t", 0, 0, 5)]
        with contextlib.nullcontext() if answers else pytest.raises(DeadlineExceeded, match="'another'"):
            assert with_records(given, wire, read_committed=True, timeout=0.3, identity=identity) == {FIRST}
    assert fake.request_count("Fetch") == 1
