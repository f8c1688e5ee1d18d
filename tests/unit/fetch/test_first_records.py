"""The timestamps of first records, on a fake Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from spark_group_source.fetch import first_records as module
from spark_group_source.fetch.first_records import NO_TIMESTAMP, FirstRecords, first_records
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault, releases
from tests.unit.fetch.tasks import aborted, fetches
from tests.unit.records.build import Record, batch, marker, resealed
from tests.unit.wire_options import LONG, after, wire_options

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
START = 1_700_000_000_000
LOG_APPEND_TIME, DELETE_HORIZON = 0x08, 0x40
NOTHING = FirstRecords({}, set(), set())


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    with closing(Cluster(wire_options(fake))) as opened:
        yield opened


def at(*timestamps: int, **more: Any) -> bytes:
    """A record batch with a record at each of these times, in milliseconds after :data:`START`."""
    return batch([Record(b"x", timestamp=START + each) for each in timestamps], **more)


def append(fake: FakeKafka, *batches: bytes, partition: int = 0, topic: str = "t") -> None:
    """Appends record batches without gaps."""
    for each in batches:
        fake.append(topic, partition, each, int.from_bytes(each[23:27], "big") + 1)


def found(cluster: Cluster, *ranges: OffsetRange, committed: bool = False, seconds: float = LONG) -> FirstRecords:
    result = first_records(cluster, ranges, read_committed=committed, deadline=after(seconds))
    after_start = {tp: each - START if each >= 0 else each for tp, each in result.timestamps.items()}
    return FirstRecords(after_start, result.empty, result.denied)


def of(start: int, end: int, partition: int = 0, topic: str = "t") -> OffsetRange:
    return OffsetRange(topic, partition, start, end)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4], ids=["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_record_at_the_offset_is_decoded_wherever_it_is_in_its_batch(
    fake: FakeKafka, cluster: Cluster, codec: int
) -> None:
    append(fake, at(10, 20, 30, codec=codec), at(40, codec=codec))
    append(fake, at(50, 60, codec=codec), partition=1)
    for start, timestamp in enumerate((10, 20, 30, 40)):
        assert found(cluster, of(start, 4), of(1, 2, 1)) == FirstRecords({FIRST: timestamp, SECOND: 60}, set(), set())


def test_the_brokers_time_counts_where_the_topic_has_it(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10, 25, 20, attributes=LOG_APPEND_TIME))
    assert found(cluster, of(0, 3)).timestamps == {FIRST: 25}


def test_a_record_without_a_timestamp_has_none(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, batch([Record(b"x", timestamp=-1), Record(b"x", timestamp=START)]))
    assert found(cluster, of(0, 2)).timestamps == {FIRST: NO_TIMESTAMP}


def test_records_come_in_the_order_of_offsets_and_a_wrong_clock_hides_none(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10**9), at(30), at(10))
    assert found(cluster, of(1, 3)).timestamps == {FIRST: 30}


def test_the_next_record_counts_where_compaction_has_left_a_gap(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, batch([Record(b"x", timestamp=START), Record(b"x", timestamp=START + 7, delta=5)], last_delta=9))
    append(fake, at(8))
    assert found(cluster, of(2, 11)).timestamps == {FIRST: 7}
    assert found(cluster, of(6, 11)).timestamps == {FIRST: 8}
    assert found(cluster, of(6, 10)) == FirstRecords({}, {FIRST}, set()), "nothing before the end"


def test_a_compacted_batch_with_a_delete_horizon_has_the_times_of_its_records(
    fake: FakeKafka, cluster: Cluster
) -> None:
    horizon = 10**9  # the builder writes it to the header, as the log cleaner does, and the others relative to it
    append(fake, at(horizon, 1000, 2000, attributes=DELETE_HORIZON))
    assert found(cluster, of(1, 3)).timestamps == {FIRST: 1000}


def test_markers_and_records_beyond_the_end_do_not_count(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10, producer=7, transactional=True), marker(0, producer=7, commit=True), at(20))
    assert found(cluster, of(1, 2), committed=True) == FirstRecords({}, {FIRST}, set())
    assert found(cluster, of(1, 2)) == FirstRecords({}, {FIRST}, set())
    assert found(cluster, of(1, 3), committed=True).timestamps == {FIRST: 20}


def test_aborted_records_count_for_read_uncommitted_only(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10, 11, producer=7, transactional=True), marker(0, producer=7, commit=False), at(20))
    fake.next("Fetch", Fault(edit=aborted), times=2)
    assert found(cluster, of(0, 4), committed=True).timestamps == {FIRST: 20}
    assert found(cluster, of(0, 3), committed=True) == FirstRecords({}, {FIRST}, set())
    assert found(cluster, of(0, 4)).timestamps == {FIRST: 10}


def test_a_long_aborted_transaction_is_skipped_in_few_fetches(fake: FakeKafka, cluster: Cluster) -> None:
    large = batch([Record(bytes(1000), timestamp=START) for _ in range(4)], producer=7, transactional=True)
    append(fake, *[large] * 100, marker(0, producer=7, commit=False), at(20))
    fake.next("Fetch", Fault(edit=aborted), times=20)
    assert found(cluster, of(0, 402), committed=True).timestamps == {FIRST: 20}
    assert len(fetches(fake)) <= 6


def test_the_first_remaining_record_counts_where_retention_has_deleted_the_offset(
    fake: FakeKafka, cluster: Cluster
) -> None:
    append(fake, at(10), at(20), at(30))
    fake.truncate("t", 0, 1)
    assert found(cluster, of(0, 3)).timestamps == {FIRST: 20}
    fake.truncate("t", 0, 3)
    assert found(cluster, of(0, 3)) == FirstRecords({}, {FIRST}, set())


def test_an_offset_beyond_the_log_says_nothing(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10))
    append(fake, at(20), partition=1)
    assert found(cluster, of(5, 9), of(0, 1, 1)) == FirstRecords({SECOND: 20}, set(), set())
    assert found(cluster, of(1, 9)) == NOTHING


@pytest.mark.parametrize("release", [None, releases.kafka(2, 1)], ids=["newest", "2.1"])
def test_all_partitions_of_a_broker_are_in_one_fetch_and_large_batches_in_a_few_more(
    fake: FakeKafka, cluster: Cluster, release: Any
) -> None:
    if release is not None:
        for node in fake.brokers:
            fake.offer(node, release)
    fake.create_topic("u", partitions=40)
    expected = {}
    for number in range(40):
        append(fake, at(number), topic="u", partition=number)
        expected[TopicPartition("u", number)] = number
    assert found(cluster, *[of(0, 1, number, "u") for number in range(40)]).timestamps == expected
    assert len(fetches(fake)) == 2
    for size in (10_000, 300_000, 10 * 2**20):
        append(fake, *[batch([Record(bytes(size), timestamp=START + 5)])] * 2, topic="u", partition=size % 7)
    fake.requests.clear()
    sizes = [size % 7 for size in (10_000, 300_000, 10 * 2**20)]
    ranges = [of(1, 3, number, "u") for number in sizes]
    assert found(cluster, *ranges).timestamps == {TopicPartition("u", number): 5 for number in sizes}
    assert len(fetches(fake)) <= 8


def test_a_fetch_asks_for_no_more_partitions_than_a_response_has_room_for(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 4 * module.FIRST_BYTES)
    fake.create_topic("u", partitions=20)
    for number in range(20):
        append(fake, *[batch([Record(bytes(5000), timestamp=START + number)])] * 9, topic="u", partition=number)
    ranges = [of(0, 9, number, "u") for number in range(20)]
    assert found(cluster, *ranges).timestamps == {each.tp: each.partition for each in ranges}
    for request in fetches(fake):
        asked = [each.partition_max_bytes for topic in request.topics for each in topic.partitions]
        assert len(asked) == 1 or sum(asked) <= module.MAX_BYTES == request.max_bytes


def test_too_many_bytes_end_a_lookup_and_the_first_ranges_come_first(
    fake: FakeKafka, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", module.FIRST_BYTES)
    monkeypatch.setattr(module, "MAX_TOTAL_BYTES", 3 * module.FIRST_BYTES)
    fake.create_topic("u", partitions=20)
    for number in range(20):
        append(fake, *[batch([Record(bytes(3000), timestamp=START)])] * 2, topic="u", partition=number)
    ranges = [of(0, 1, number, "u") for number in reversed(range(20))]
    assert [tp.partition for tp in sorted(found(cluster, *ranges).timestamps)] == [16, 17, 18, 19]


def test_topics_that_may_not_be_read_are_named_and_the_others_known(fake: FakeKafka, cluster: Cluster) -> None:
    fake.create_topic("u", partitions=2)
    append(fake, at(10))
    append(fake, at(20), topic="u")
    fake.denied["u"] = 3
    assert found(cluster, of(0, 1), of(0, 1, 0, "u")) == FirstRecords({FIRST: 10}, set(), {"u"})


def test_a_leader_without_an_answer_leaves_its_partitions_unknown(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10))
    append(fake, at(20), partition=1)
    fake.next("Fetch", Fault(silent=True, broker=2))
    assert found(cluster, of(0, 1), of(0, 1, 1), seconds=1.0) == FirstRecords({FIRST: 10}, set(), set())


@pytest.mark.parametrize("error", [-1, 3, 6, 74, 2, 100])
def test_an_error_of_one_partition_leaves_it_unknown(fake: FakeKafka, cluster: Cluster, error: int) -> None:
    append(fake, at(10))
    append(fake, at(20), partition=1)

    def fail(response: Any) -> None:
        response.responses[0].partitions[0].error_code = error

    fake.next("Fetch", Fault(edit=fail, broker=1))
    assert found(cluster, of(0, 1), of(0, 1, 1)) == FirstRecords({SECOND: 20}, set(), set())
    assert found(cluster, of(0, 1)).timestamps == {FIRST: 10}, "the next lookup finds it"


def test_a_partition_without_a_leader_is_unknown(fake: FakeKafka, cluster: Cluster) -> None:
    append(fake, at(10))
    append(fake, at(20), partition=1)
    fake.logs["t"][0].leader = None
    assert found(cluster, of(0, 1), of(0, 1, 1)) == FirstRecords({SECOND: 20}, set(), set())


def test_damaged_and_unknown_batches_leave_their_partition_unknown(fake: FakeKafka, cluster: Cluster) -> None:
    good, bad = at(10, 11), bytearray(at(20, 21))
    old_format, beyond = bytearray(at(20)), bytearray(at(20))
    bad[-1] ^= 1
    old_format[16] = 1
    beyond[27:35] = (2**62).to_bytes(8, "big")
    fake.create_topic("t", partitions=4)
    for number, each in enumerate((good, bad, old_format, resealed(beyond))):
        append(fake, bytes(each), partition=number)
    assert found(cluster, *[of(0, 1, number) for number in range(4)]) == FirstRecords({FIRST: 10}, set(), set())


def test_a_broker_that_sends_only_earlier_records_or_none_is_not_asked_for_ever(
    fake: FakeKafka, cluster: Cluster
) -> None:
    earlier = at(10)

    def send_earlier(response: Any) -> None:
        response.responses[0].partitions[0].records = earlier

    append(fake, at(10), at(20))
    fake.next("Fetch", Fault(edit=send_earlier), times=50)
    assert found(cluster, of(1, 2)) == NOTHING
    fake.clear_faults()
    fake.logs["t"][1].append_count(9)  # offsets without records: the fake sends nothing
    assert found(cluster, of(0, 9, 1)) == NOTHING
    assert len(fetches(fake)) < 10
