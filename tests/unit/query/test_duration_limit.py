"""``targetBatchDuration`` between the plan and the completion of batches: what is measured, and what is not."""

from __future__ import annotations

import pytest

from spark_group_source.offsets import BatchOffset, OffsetRange, Offsets, TopicPartition
from spark_group_source.query import duration_limit
from spark_group_source.query.duration_limit import UNREACHABLE_BATCHES, DurationLimit
from tests.unit.hand_clock import Hand

BACKLOG = 10**9
OFF_TRIGGER = 1_790_000_000.5
"""A time that is not the start of a trigger's interval."""


class Query:
    """A query of some partitions without an end. A batch takes 0.5 s, and by default 20 us for each offset."""

    def __init__(self, hand: Hand, target: float = 10.0, partitions: int = 4, per_offset: float = 20e-6) -> None:
        self.hand = hand
        self.per_offset = per_offset
        self.now = OFF_TRIGGER
        self.limit = DurationLimit(target, "g", hand, lambda: self.now)
        self.positions: dict[TopicPartition, int] = {TopicPartition("t", number): 0 for number in range(partitions)}
        self.sizes: list[int] = []

    def plan(self, ends: Offsets | None = None) -> BatchOffset:
        ends = self.limit.limit(self.positions, ends or dict.fromkeys(self.positions, BACKLOG))
        ranges = [OffsetRange(*tp, at, ends[tp], "id") for tp, at in self.positions.items()]
        batch = BatchOffset.from_ranges(ranges, "g")
        self.limit.planned(batch)
        self.positions = batch.ends()
        self.sizes.append(sum(each.size for each in batch.reads()))
        return batch

    def run(self, batches: int = 1, *, waits: float = 0.0, may_have_waited: bool = False) -> None:
        for _ in range(batches):
            self.plan()
            self.hand.now += self.duration + waits
            self.limit.completed(may_have_waited=may_have_waited)

    @property
    def duration(self) -> float:
        """That of the last batch, without waits."""
        return 0.5 + self.per_offset * self.sizes[-1]


@pytest.fixture
def query(hand: Hand) -> Query:
    return Query(hand)


def test_batches_reach_the_target_and_name_what_was_measured(query: Query) -> None:
    assert query.limit.reason == "no batch has been measured yet"
    query.run(10)
    assert query.duration == pytest.approx(10.0, rel=0.05)
    assert query.limit.reason == f"the last batch took {query.duration:.1f} s for {query.sizes[-1]:,} offsets"


def test_a_batch_that_is_made_small_says_why(hand: Hand) -> None:
    query = Query(hand, target=1.0)  # half of which is fixed
    for _ in range(30):
        query.run()
        if "what a batch costs without records" in query.limit.reason:
            break
    last = query.sizes[-1]
    measured = f"the last batch took {query.duration:.1f} s for {last:,} offsets"
    assert query.limit.reason.startswith(f"{measured}, and a small one")
    query.run()
    assert query.sizes[-1] < last / 2
    assert query.limit.reason.endswith(" offsets")


def test_idle_time_teaches_nothing(query: Query) -> None:
    query.run(10)
    query.hand.now += 86_400
    query.run()
    assert query.duration == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("what", ["a suspended machine", "a repeated request", "no offsets", "no plan"])
def test_a_batch_that_shows_nothing_changes_nothing(query: Query, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    query.run(10)
    before = query.limit._pace
    if what == "no offsets":
        query.plan(query.positions)
    elif what != "no plan":
        query.plan()
    if what == "a suspended machine":
        monkeypatch.setattr(duration_limit, "suspended_seconds", lambda: 1e9)
    if what == "a repeated request":
        query.limit.requested_again()
    query.hand.now += 7200
    query.limit.completed(may_have_waited=False)
    assert query.limit._pace == before
    query.limit.completed(may_have_waited=False)
    assert query.limit._pace == before, "a batch is completed once"


def test_each_partition_gets_an_offset_however_small_the_limit(hand: Hand) -> None:
    query = Query(hand, target=0.001, partitions=50)
    query.run(20)
    assert min(query.sizes) >= 50


@pytest.mark.parametrize("target", [0.1, 0.3, 0.45])
@pytest.mark.parametrize("partitions", [2, 3, 4, 12, 100, 500])
def test_a_target_below_the_costs_of_a_batch_starves_no_number_of_partitions(
    hand: Hand, target: float, partitions: int
) -> None:
    query = Query(hand, target, partitions)
    query.run(70)
    largest = max(query.sizes[-10:])  # some are small, to show fixed costs
    assert largest == pytest.approx(12_500, rel=0.1), "records take a third of a batch"


@pytest.mark.parametrize("portion", [2, 3, 5])
def test_many_partitions_do_not_keep_the_limit_at_the_same_portions(hand: Hand, portion: int) -> None:
    partitions = 1000
    query = Query(hand, 1.0, partitions, per_offset=0.5 / (partitions * (portion - 0.1)))
    query.run(20)
    assert query.duration == pytest.approx(1.0, rel=0.05)


def test_the_offset_that_each_partition_gets_is_within_the_limit(query: Query) -> None:
    first, *others = query.positions
    ends = {first: BACKLOG, **dict.fromkeys(others, 5)}
    assert sum(each.size for each in query.plan(ends).reads()) == 1000


def test_few_partitions_that_are_left_read_at_most_twice_their_portions(hand: Hand) -> None:
    query = Query(hand, partitions=100)
    query.run(10)
    portion = query.sizes[-1] / 100
    kept, *_ = query.positions
    query.positions = {kept: query.positions[kept]}
    query.run()
    assert query.sizes[-1] <= 2.2 * portion
    query.run(8)
    assert query.duration == pytest.approx(10.0, rel=0.05), "this sink does not care how many partitions there are"


def test_fewer_offsets_than_the_limit_are_read_whole(query: Query) -> None:
    query.run(10)
    ends = {tp: at + 5 for tp, at in query.positions.items()}
    assert query.plan(ends).ends() == ends


WAIT = 60.0


def test_without_reports_a_wait_for_the_trigger_does_not_shrink_batches(query: Query) -> None:
    query.now = OFF_TRIGGER + 0.52  # 20 ms after a whole second: a trigger has started the batch
    query.run(20, waits=WAIT, may_have_waited=True)
    assert query.sizes == sorted(query.sizes), "no batch is smaller than the one before"
    assert query.sizes[-1] > 100_000


def test_without_reports_a_batch_that_outlasts_the_interval_is_measured(query: Query) -> None:
    query.run(12, may_have_waited=True)
    assert query.duration == pytest.approx(10.0, rel=0.05), "the default trigger waits for nothing"
    query.plan()
    query.hand.now += 100.0
    query.limit.completed(may_have_waited=True)
    query.plan()
    assert query.sizes[-1] < query.sizes[-2] / 5


def test_with_reports_any_moment_will_do(query: Query) -> None:
    query.now = OFF_TRIGGER + 0.5
    query.run(12)
    assert query.duration == pytest.approx(10.0, rel=0.05)


def test_a_target_below_the_costs_of_a_batch_is_said_once(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(hand, target=0.1)
    query.run(UNREACHABLE_BATCHES)
    assert not caplog.records
    query.run(60)
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("group g: targetBatchDuration is 0.1 s, but a batch takes about 0.")
    assert "raise targetBatchDuration" in line


def test_a_target_that_is_reached_is_not_warned_of(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    query.run(100)
    assert not caplog.records
