"""How far a batch reads: by offsets, as literal tables of the arithmetic of Spark's own source; and by bytes, with
estimates from samples, on logs whose sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.query import size_samples
from spark_group_source.query.limits import MAX_OFFSET_SIZE, SAMPLE_RETRY_INTERVAL, ByteLimit, admit
from spark_group_source.query.size_samples import Samples, sample_sizes
from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka, Fault
from tests.unit.hand_clock import Hand

LIMIT = 100_000
Size = Callable[[int], float]


def table(*sizes: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", number): size for number, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("backlog", "limit", "taken"),
    [
        ((101, 11, 1), 10, (8, 1, 1)),
        ((21, 11, 1), 20, (12, 6, 1)),
        ((5, 5, 5, 5), 1, (1, 1, 1, 1)),
        ((5, 0, 7), 12, (5, 0, 7)),
        ((5, 0, 7), None, (5, 0, 7)),
        ((10**17, 10**17), 10**18 - 1, (10**17, 10**17)),
        ((), 5, ()),
    ],
)
def test_each_partition_gets_a_portion_of_the_limit_by_its_backlog(
    backlog: tuple[int, ...], limit: int | None, taken: tuple[int, ...]
) -> None:
    assert admit(table(*[0] * len(backlog)), table(*backlog), limit) == table(*taken)
    ends = {TopicPartition("t", 0): 60, TopicPartition("t", 1): 5}
    assert admit(table(50, 50, 50), ends, 4) == table(54, 50, 50), "unknown ends, and ends before a position"


class Logs:
    """Logs with the size of each record by its offset; a sample is the mean of ten records."""

    def __init__(self, hand: Hand, monkeypatch: pytest.MonkeyPatch, sizes: tuple[Size, ...]) -> None:
        self.sizes = {TopicPartition("t", number): size for number, size in enumerate(sizes)}
        self.silent: set[TopicPartition] = set()
        self.answered: int | None = None
        """How many partitions fit into a sample; all by default."""
        self.samples: list[Offsets] = []
        monkeypatch.setattr(size_samples, "sample_sizes", self.sample)
        self.limit = ByteLimit(self, hand)  # type: ignore[arg-type]

    def topics(self, *_: object) -> Mapping[str, object]:
        return {}

    def sample(self, cluster: object, topics: object, offsets: Offsets, *_: object) -> Samples:
        self.samples.append(offsets)
        answered = [tp for tp in offsets if tp not in self.silent][: self.answered]
        found = {tp: self.bytes_of(tp, offsets[tp], offsets[tp] + 10) / 10 for tp in answered}
        return Samples(found, self.silent & offsets.keys())

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


Make = Callable[..., Logs]


@pytest.fixture
def made(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *sizes: Logs(hand, monkeypatch, sizes)


@pytest.mark.parametrize(
    ("sizes", "least", "most"),
    [
        ([lambda _: 100.0], 0.99, 1.0),
        ([lambda _: 100.0, lambda _: 10_000.0, lambda _: 0.1], 0.8, 1.2),
        ([lambda offset: 1000.0 if offset % 10 == 0 else 100.0] * 3, 0.9, 1.1),
        ([lambda offset: 50.0 + offset / 10], 0.5, 1.1),
        ([lambda offset: 100.0 if offset < 2500 else 50_000.0], 0.0, 2.0),
    ],
    ids=["100 B", "different partitions", "mixed", "growing", "much larger"],
)
def test_batches_have_about_the_bytes_of_the_limit(made: Make, sizes: list[Size], least: float, most: float) -> None:
    *full, _ = made(*sizes).batches(3000)
    assert full
    assert all(least * LIMIT <= each <= most * LIMIT for each in full)


def test_a_backlog_of_large_records_after_small_batches_is_limited(made: Make) -> None:
    logs = made(lambda offset: 100.0 if offset < 5010 else 50_000.0)
    (tp,) = logs.sizes
    for start in range(0, 5000, 50):
        assert logs.limit.limit({tp: start}, {tp: start + 50}, LIMIT) == {tp: start + 50}
    for count in (50, 10_000):
        ends = logs.limit.limit({tp: 5000}, {tp: 5000 + count}, LIMIT)
        assert logs.bytes_of(tp, 5000, ends[tp]) <= 2 * LIMIT


def test_a_batch_whose_offsets_fit_at_any_size_is_read_whole_without_a_sample(made: Make) -> None:
    logs, fits = made(lambda _: 100.0), 100
    (tp,) = logs.sizes
    for end in (0, fits):
        assert logs.limit.limit({tp: 0}, {tp: end}, fits * MAX_OFFSET_SIZE) == {tp: end}
    assert logs.samples == []
    logs.limit.limit({tp: 0}, {tp: fits + 1}, fits * MAX_OFFSET_SIZE)
    assert logs.samples


def test_a_partition_that_comes_back_is_sampled_at_its_new_position(made: Make) -> None:
    logs = made(lambda _: 100.0, lambda offset: 100.0 if offset < 5000 else 50_000.0)
    stays, leaves = logs.sizes
    logs.limit.limit({stays: 0, leaves: 0}, {stays: 50, leaves: 50}, LIMIT)
    logs.limit.limit({stays: 50}, {stays: 100}, LIMIT)
    ends = logs.limit.limit({stays: 100, leaves: 9000}, {stays: 100, leaves: 20_000}, LIMIT)
    assert logs.bytes_of(leaves, 9000, ends[leaves]) <= LIMIT


def test_a_partition_of_unknown_size_reads_like_the_others_and_is_asked_again_later(hand: Hand, made: Make) -> None:
    logs = made(lambda _: 1000.0, lambda _: 1000.0)
    known, unknown = logs.sizes
    logs.silent = {unknown}
    for _ in range(3):
        ends = logs.limit.limit({known: 0, unknown: 0}, {known: 1000, unknown: 1000}, LIMIT)
        assert ends == {known: 50, unknown: 50}
    assert sum(unknown in asked for asked in logs.samples) == 1
    hand.now += SAMPLE_RETRY_INTERVAL
    logs.silent = set()
    logs.limit.limit({known: 0, unknown: 0}, {known: 1000, unknown: 1000}, LIMIT)
    assert unknown in logs.samples[-1]


def test_without_any_sample_a_batch_is_limited_all_the_same(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BrokerUnavailable("no broker")

    logs = made(lambda _: 100.0)
    monkeypatch.setattr(size_samples, "sample_sizes", fail)
    (tp,) = logs.sizes
    assert 0 < logs.limit.limit({tp: 0}, {tp: 10**9}, LIMIT)[tp] <= LIMIT // 100
    assert logs.limit.limit({tp: 3}, {tp: 9}, 1) == {tp: 4}, "a limit below one record"


def sizes_at(cluster: Cluster, offsets: Offsets, max_bytes: int = 2**20) -> Samples:
    deadline = Deadline.after(20)
    return sample_sizes(cluster, cluster.topics({"t"}, deadline), offsets, max_bytes, deadline)


def test_samples_are_bytes_per_offset_of_stored_record_batches(fake: FakeKafka, cluster: Cluster) -> None:
    fake.create_topic("t", partitions=3)
    for partition, rows in ((0, 5), (1, 50)):
        for _ in range(4):
            fake.produce("t", ["x" * 100] * rows, partition)
    offsets = {TopicPartition("t", number): at for number, at in ((0, 7), (1, 0), (2, 0))}
    stored = {number: sum(len(raw) for *_, raw in log.batches) for number, log in fake.logs["t"].items()}
    expected = {TopicPartition("t", 0): stored[0] / 20, TopicPartition("t", 1): stored[1] / 200}
    sizes, silent = sizes_at(cluster, offsets)
    assert sizes == pytest.approx(expected)
    assert silent == set()
    one = TopicPartition("t", 1)
    fake.next("Fetch", Fault(drop="before", broker=fake.logs["t"][1].leader))
    sizes, silent = sizes_at(cluster, offsets)
    assert silent == {one}
    assert sizes == pytest.approx({tp: size for tp, size in expected.items() if tp != one})


def test_large_record_batches_get_a_sample_or_the_first_of_a_broker(fake: FakeKafka, cluster: Cluster) -> None:
    fake.create_topic("t", partitions=12)
    for partition in range(11):
        fake.produce("t", ["x" * 1000] * (1 if partition % 2 else 100), partition)
    offsets = {TopicPartition("t", number): 0 for number in range(12)}
    sizes, silent = sizes_at(cluster, offsets)
    assert silent == set()
    expected = {number: 1100 if number % 2 else 1000 for number in range(11)}
    assert {tp.partition: round(size, -2) for tp, size in sizes.items()} == pytest.approx(expected, rel=0.05)
    sizes, _ = sizes_at(cluster, offsets, max_bytes=1)
    assert sizes.keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}


def test_partitions_with_the_oldest_samples_come_first(made: Make) -> None:
    logs = made(*[lambda _: 100.0] * 5)
    logs.answered = 1
    for batch in range(3):  # the first also samples the start
        logs.limit.limit(dict.fromkeys(logs.sizes, 0), dict.fromkeys(logs.sizes, 1000), LIMIT)
        assert len({next(iter(asked)) for asked in logs.samples}) == min(2 * batch + 2, 5)


def test_a_gap_before_the_first_record_batch_counts(fake: FakeKafka, cluster: Cluster) -> None:
    fake.create_topic("t", partitions=1)
    for _ in range(2):
        fake.produce("t", ["x" * 100] * 50, 0)
    log = fake.logs["t"][0]
    del log.batches[0]  # as compaction does
    sizes, _ = sizes_at(cluster, {TopicPartition("t", 0): 0})
    assert sizes == {TopicPartition("t", 0): pytest.approx(len(log.batches[0][2]) / 100)}
