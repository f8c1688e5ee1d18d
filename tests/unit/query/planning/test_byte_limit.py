"""Batches by bytes: estimates from samples, on logs whose sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.fetch import size_samples
from spark_group_source.fetch.size_samples import sample_sizes
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.wire import wire_options
from spark_group_source.query.planning.byte_limit import RETRY_INTERVAL, ByteLimit
from spark_group_source.testing.fake import FakeKafka, Fault
from spark_group_source.wire.cluster import Cluster
from tests.unit.hand_clock import Hand

LIMIT = 100_000
Size = Callable[[int], float]


class Logs:
    """Logs with the size of each record by its offset; a sample is the mean of ten records."""

    def __init__(self, hand: Hand, monkeypatch: pytest.MonkeyPatch, *sizes: Size) -> None:
        self.sizes = {TopicPartition("t", number): size for number, size in enumerate(sizes)}
        self.silent: set[TopicPartition] = set()
        self.samples: list[Offsets] = []
        monkeypatch.setattr(size_samples, "sample_sizes", self.sample)
        self.limit = ByteLimit(self, hand)  # type: ignore[arg-type]

    def topics(self, *_: object) -> Mapping[str, object]:
        return {}

    def sample(
        self, cluster: object, topics: object, offsets: Offsets, *_: object
    ) -> tuple[dict[TopicPartition, float], set[TopicPartition]]:
        self.samples.append(offsets)
        found = {tp: self.bytes_of(tp, at, at + 10) / 10 for tp, at in offsets.items() if tp not in self.silent}
        return found, self.silent & offsets.keys()

    def bytes_of(self, tp: TopicPartition, start: int, end: int) -> float:
        return sum(self.sizes[tp](offset) for offset in range(start, end))

    def batches(self, count: int) -> Iterator[float]:
        """The bytes of all batches of logs with this number of records each."""
        positions = dict.fromkeys(self.sizes, 0)
        while any(at < count for at in positions.values()):
            ends = self.limit.limit(positions, dict.fromkeys(positions, count), LIMIT)
            assert all(ends[tp] > at for tp, at in positions.items() if at < count), "no partition starves"
            yield sum(self.bytes_of(tp, at, ends[tp]) for tp, at in positions.items())
            positions = ends


@pytest.mark.parametrize(
    ("sizes", "least", "most"),
    [
        ([lambda _: 100.0], 0.99, 1.0),
        ([lambda _: 10_000.0], 0.99, 1.0),
        ([lambda _: 100.0, lambda _: 10_000.0, lambda _: 0.1], 0.8, 1.2),
        ([lambda offset: 1000.0 if offset % 10 == 0 else 100.0] * 3, 0.9, 1.1),
        ([lambda offset: 50.0 + offset / 10], 0.5, 1.1),
    ],
    ids=["100 B", "10 kB", "different partitions", "mixed", "growing"],
)
def test_batches_have_about_the_bytes_of_the_limit(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, sizes: list[Size], least: float, most: float
) -> None:
    *full, _ = Logs(hand, monkeypatch, *sizes).batches(3000)
    assert full
    assert all(least * LIMIT <= each <= most * LIMIT for each in full)


def test_a_batch_ends_early_where_much_larger_records_begin(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(hand, monkeypatch, lambda offset: 100.0 if offset < 2500 else 50_000.0)
    assert max(logs.batches(3000)) <= 2 * LIMIT


def test_a_batch_far_below_the_limit_is_read_whole_without_further_samples(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(hand, monkeypatch, lambda _: 100.0)
    (tp,) = logs.sizes
    for start in range(0, 500, 50):
        assert logs.limit.limit({tp: start}, {tp: start + 50}, LIMIT) == {tp: start + 50}
    assert logs.samples == [{tp: 0}]


def test_no_sample_is_asked_for_without_new_records(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(hand, monkeypatch, lambda _: 100.0)
    (tp,) = logs.sizes
    assert logs.limit.limit({tp: 5}, {tp: 5}, LIMIT) == {tp: 5}
    assert logs.samples == []


def test_a_partition_of_unknown_size_reads_like_the_others_and_is_asked_again_later(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(hand, monkeypatch, lambda _: 1000.0, lambda _: 1000.0)
    known, unknown = logs.sizes
    logs.silent = {unknown}
    for _ in range(3):
        ends = logs.limit.limit({known: 0, unknown: 0}, {known: 1000, unknown: 1000}, LIMIT)
        assert ends == {known: 50, unknown: 50}
    assert sum(unknown in asked for asked in logs.samples) == 1
    hand.now += RETRY_INTERVAL
    logs.silent = set()
    logs.limit.limit({known: 0, unknown: 0}, {known: 1000, unknown: 1000}, LIMIT)
    assert unknown in logs.samples[-1]


def test_without_any_sample_a_batch_is_limited_all_the_same(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BrokerUnavailable("no broker")

    logs = Logs(hand, monkeypatch, lambda _: 100.0)
    monkeypatch.setattr(size_samples, "sample_sizes", fail)
    (tp,) = logs.sizes
    assert 0 < logs.limit.limit({tp: 0}, {tp: 10**9}, LIMIT)[tp] <= LIMIT // 100


def test_a_limit_below_one_record_reads_one_offset_of_each_partition(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = Logs(hand, monkeypatch, lambda _: 100.0, lambda _: 100.0)
    assert set(logs.limit.limit(dict.fromkeys(logs.sizes, 3), dict.fromkeys(logs.sizes, 9), 1).values()) == {4}


def test_samples_are_bytes_per_offset_of_stored_record_batches() -> None:
    with FakeKafka(brokers=2) as fake:
        fake.create_topic("t", partitions=3)
        for partition, rows in ((0, 5), (1, 50)):
            for _ in range(4):
                fake.produce("t", ["x" * 100] * rows, partition)
        given = {"kafka.bootstrap.servers": fake.bootstrap_servers, "subscribe": "t"}
        cluster = Cluster(wire_options(parse_options(given), "test"))
        try:
            topics = cluster.topics({"t"}, Deadline.after(10))
            offsets = {TopicPartition("t", number): at for number, at in ((0, 7), (1, 0), (2, 0))}
            sizes, silent = sample_sizes(cluster, topics, offsets, 2**20, Deadline.after(10))
            stored = {number: sum(len(raw) for *_, raw in log.batches) for number, log in fake.logs["t"].items()}
            expected = {TopicPartition("t", 0): stored[0] / 20, TopicPartition("t", 1): stored[1] / 200}
            assert sizes == pytest.approx(expected)
            assert silent == set()
            one = TopicPartition("t", 1)
            fake.next("Fetch", Fault(drop="before", broker=topics["t"].partitions[1]))
            sizes, silent = sample_sizes(cluster, topics, offsets, 2**20, Deadline.after(10))
            assert silent == {one}
            assert sizes == pytest.approx({tp: size for tp, size in expected.items() if tp != one})
        finally:
            cluster.close()
