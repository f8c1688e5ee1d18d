"""The controller of ``targetBatchDuration`` over simulated sinks, measured as its users would measure it."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from spark_group_source.query.pace import (
    MAX_FIRST_OFFSETS,
    MeasuredBatch,
    Pace,
    aimed_seconds,
    first_pace,
    fixed_costs,
    next_pace,
    pace_after_wait,
)
from tests.unit.query.sinks import Sink, keep_reading, read

BACKLOG = 20_000_000
TARGET = 10.0
MICROSECOND = 1e-6


def batch(offsets: int, seconds: float, largest: int | None = None) -> MeasuredBatch:
    return MeasuredBatch(offsets, largest or offsets, seconds)


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.2])
@pytest.mark.parametrize(("micros", "before"), [(2, 4), (20, 4), (200, 3)])
def test_a_backlog_is_read_in_batches_of_the_target(micros: int, before: int, jitter: float) -> None:
    sink = Sink(micros * MICROSECOND, jitter=jitter)
    run = read(TARGET, sink, BACKLOG)
    assert run.batches_before_target <= before
    assert max(run.seconds) <= TARGET * (1.01 + 7 * jitter)
    assert run.deviation <= TARGET * (0.08 + 1.4 * jitter)
    assert run.rate >= 0.9 * sink.best_rate(TARGET)


def test_growth_ends_before_a_batch_is_too_long_whatever_the_sink() -> None:
    for micros in (0.1, 1, 10, 100, 1000, 5000):
        for per_batch in (0.0, 0.1, 1.0, 4.0):
            run = keep_reading(TARGET, Sink(micros * MICROSECOND, per_batch), 50)
            assert max(run.seconds) <= 1.5 * TARGET, (micros, per_batch)
            assert run.seconds[-1] == pytest.approx(TARGET, rel=0.02), (micros, per_batch)


@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_a_slowdown_makes_one_batch_too_long_and_a_speedup_is_used_within_three(jitter: float) -> None:
    sink = Sink(20 * MICROSECOND, jitter=jitter)

    def change(number: int) -> None:
        sink.per_offset = (200 if 20 <= number < 40 else 20) * MICROSECOND

    run = keep_reading(TARGET, sink, 60, change)
    assert run.longer_than_twice() == 1
    assert run.seconds[21] <= 1.5 * TARGET
    assert run.seconds[40] < TARGET / 4
    assert any(abs(each / TARGET - 1) <= 0.25 for each in run.seconds[41:44])


@pytest.mark.parametrize("seed", range(20))
def test_batches_with_jitter_stay_near_the_target(seed: int) -> None:
    sink = Sink(20 * MICROSECOND, jitter=0.15, chance=random.Random(seed))
    run = keep_reading(TARGET, sink, 100)
    assert statistics.mean(run.seconds[run.batches_before_target :]) == pytest.approx(TARGET, rel=0.1)
    assert run.deviation <= 0.25 * TARGET
    assert run.longer_than_twice() == 0


def test_one_slow_batch_makes_one_batch_small() -> None:
    sink = Sink(20 * MICROSECOND)

    def straggle(number: int) -> None:
        sink.per_batch = 40.0 if number == 20 else 0.5

    run = keep_reading(TARGET, sink, 30, straggle)
    assert run.seconds[20] == pytest.approx(TARGET + 39.5, rel=0.01)
    assert run.seconds[21] < TARGET / 2
    assert run.seconds[23] == pytest.approx(TARGET, rel=0.25)


@pytest.mark.parametrize(("target", "least"), [(0.1, 0.3), (0.6, 0.5), (1.0, 0.9)])
@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.2])
def test_a_target_near_or_below_the_costs_of_a_batch_starves_nobody(target: float, least: float, jitter: float) -> None:
    aim = aimed_seconds(target, 0.5)
    for micros in (2, 200):
        sink = Sink(micros * MICROSECOND, jitter=jitter)
        run = keep_reading(target, sink, 200)
        late = run.batches[40:]
        rate = sum(each.offsets for each in late) / sum(each.seconds for each in late)
        assert rate >= least * sink.best_rate(aim), "a part of the rate of the best fixed limit"
        assert statistics.mean(each.seconds for each in late) <= 1.3 * aim


@pytest.mark.parametrize(("target", "micros"), [(10.0, 20), (1.0, 1000)])
def test_costs_of_a_batch_near_the_target_are_told_from_those_of_its_records(target: float, micros: int) -> None:
    """Whatever the size, a batch then takes about the target, so only a probe shows that a larger one costs little."""
    parts = []
    for seed in range(20):
        sink = Sink(micros * MICROSECOND, 0.9 * target, jitter=0.2, chance=random.Random(seed))
        late = keep_reading(target, sink, 100).batches[20:]
        rate = sum(each.offsets for each in late) / sum(each.seconds for each in late)
        parts.append(rate / sink.best_rate(aimed_seconds(target, sink.per_batch)))
    assert statistics.median(parts) >= 0.7


def test_growth_is_not_interrupted_by_a_probe() -> None:
    """The next batch differs enough from the last one to show fixed costs itself."""
    cold = batch(1000, 16.0)
    pace = next_pace(Pace(600, fixed=5.0, last=cold, reference=cold), TARGET, batch(600, 4.6))
    assert pace.offsets > 1200
    assert pace.probed is None


def test_a_probe_that_took_longer_than_the_batch_before_shows_a_slower_sink() -> None:
    before = batch(9000, 10.0)
    probing = replace(LEARNT, offsets=3000, largest=6000, fixed=9.0, probed=before)
    assert next_pace(probing, TARGET, batch(3000, 8.0)).offsets >= before.offsets, "costs are mostly fixed"
    slower = next_pace(probing, TARGET, batch(3000, 60.0))
    assert slower.offsets < 3000
    assert slower.probed is None


def test_an_hour_is_reached_in_few_batches() -> None:
    run = keep_reading(3600.0, Sink(20 * MICROSECOND, jitter=0.1), 40)
    assert run.batches_before_target <= 8
    assert max(run.seconds) <= 1.5 * 3600


def test_fixed_costs_that_rise_above_the_target_and_fall_again_are_followed() -> None:
    sink = Sink(20 * MICROSECOND, jitter=0.05)

    def change(number: int) -> None:
        sink.per_batch = 20.0 if 20 <= number < 60 else 0.5

    run = keep_reading(TARGET, sink, 100, change)
    assert run.batches[59].offsets > 1000, "the records still have a part of each batch"
    assert statistics.mean(run.seconds[85:]) == pytest.approx(TARGET, rel=0.1)


def test_costs_that_grow_with_the_square_of_the_size_settle() -> None:
    class Square(Sink):
        def seconds(self, offsets: int) -> float:
            return self.per_batch + self.per_offset * offsets**2

    run = keep_reading(TARGET, Square(9.5 / 475_000**2), 40)
    assert run.seconds[-1] == pytest.approx(TARGET, rel=0.05)
    assert statistics.pstdev(run.seconds[20:]) < 1.0


def test_the_first_batch_is_careful_and_has_an_offset() -> None:
    assert first_pace(0.001).offsets == 1
    assert first_pace(0.1).offsets == 10
    assert first_pace(3600.0).offsets == MAX_FIRST_OFFSETS


def test_a_batch_without_offsets_teaches_nothing() -> None:
    pace = next_pace(first_pace(TARGET), TARGET, batch(1000, 0.5))
    assert next_pace(pace, TARGET, batch(0, 100.0)) == pace


LEARNT = Pace(475_000, largest=950_000, fixed=0.5, last=batch(475_000, 10.0), reference=batch(475_000, 10.0))


def test_small_batches_keep_the_limit_that_large_ones_have_shown() -> None:
    pace = LEARNT
    for number in range(1000):
        pace = next_pace(pace, TARGET, batch(3 + 5 * (number % 7), 0.5 + 0.05 * (number % 5)))
    assert pace.offsets == LEARNT.offsets
    assert pace.fixed == pytest.approx(0.5, abs=0.2)


def test_a_small_batch_that_took_long_lowers_the_limit_not_below_that_of_the_first_batch() -> None:
    assert next_pace(LEARNT, TARGET, batch(5, 60.0)).offsets == first_pace(TARGET).offsets
    assert next_pace(LEARNT, TARGET, batch(100_000, 9.5)).offsets < 120_000, "the sink is slower now"


def test_after_partitions_went_the_others_read_at_most_twice_their_portions() -> None:
    pace = next_pace(LEARNT, TARGET, batch(475_000, 10.0, largest=60_000))
    assert pace.largest == pytest.approx(2 * 60_000 * pace.offsets / 475_000)


def test_batches_of_unknown_duration_raise_the_limit_slowly_and_nothing_else() -> None:
    fresh = first_pace(TARGET)
    assert pace_after_wait(fresh, batch(1000, 60.0)).offsets == 2000
    later = pace_after_wait(LEARNT, batch(475_000, 60.0))
    assert later == replace(LEARNT, offsets=522_500, largest=later.largest)
    assert later.largest == pytest.approx(1_045_000)
    assert pace_after_wait(LEARNT, batch(10, 60.0)) == LEARNT


def test_fixed_costs_are_where_the_line_through_two_batches_begins() -> None:
    assert fixed_costs(batch(1000, 1.5), batch(3000, 3.5)) == pytest.approx(0.5)
    assert fixed_costs(batch(1000, 1.0), batch(3000, 6.0)) == 0.0
    assert fixed_costs(batch(1000, 2.0), batch(3000, 1.0)) == 1.5, "no record costs less than nothing"
