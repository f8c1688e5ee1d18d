"""``targetBatchDuration``: batches of about the target, of which a query loses no partition and repeats no record."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from spark_group_source.offsets import BatchLimit, BatchOffset
from tests.contract.conftest import Bench, Query, eventually

Cost = Callable[[int], float]
"""The seconds that a batch of so many offsets takes in the sink."""

TARGET = 1.0
"""Seconds; the options say the same."""


def sink(offsets: int) -> float:
    return 0.1 + offsets / 500


def run_batch(query: Query, cost: Cost, limit: int | None = None, *, reported: bool = True) -> tuple[int, float]:
    """Runs a batch to its end; returns its offsets and its duration, both 0 if there was nothing to read."""
    reads = query.poll(limit)
    if not reads:
        return 0, 0.0
    offsets = sum(each.size for each in reads)
    began = time.monotonic()
    time.sleep(cost(offsets))
    if reported:
        query.complete()
    else:
        query.finish()
    return offsets, time.monotonic() - began


def read_all(query: Query, cost: Cost, limit: int | None = None) -> list[tuple[int, float]]:
    """Runs batches until nothing is left; returns the offsets and duration of each."""
    batches = []
    while (batch := run_batch(query, cost, limit))[0]:
        batches.append(batch)
    return batches


def limit_of(query: Query) -> BatchLimit:
    """What limited the last batch."""
    limit = query.driver.batch_limit()
    assert limit is not None
    return limit


def assert_each_record_once(produced: dict[int, int], *queries: Query) -> None:
    """The ranges that the queries read follow each other in each partition, up to its end."""
    for number, end in produced.items():
        ranges = sorted((each.start, each.end) for query in queries for each in query.read if each.partition == number)
        assert ranges[0][0] == 0
        assert ranges[-1][1] == end
        assert all(before[1] == after[0] for before, after in pairwise(ranges)), "each range begins where one ended"


def test_a_backlog_is_read_in_batches_of_about_the_target(on_fake: Bench) -> None:
    on_fake.produce(1000, 1000, 1000, 1000)
    query = on_fake.start(targetBatchDuration="1 second")
    batches = read_all(query, sink)
    assert batches[0][0] <= 100, "the first one is careful"
    assert max(seconds for _, seconds in batches) <= 1.5 * TARGET
    assert all(abs(seconds / TARGET - 1) <= 0.25 for _, seconds in batches[2:-1])
    assert on_fake.committed() == dict.fromkeys(range(4), 1000)
    assert_each_record_once(dict.fromkeys(range(4), 1000), query)


def test_the_lowest_limit_applies_and_the_progress_names_it(on_fake: Bench) -> None:
    on_fake.produce(1000, 1000)
    query = on_fake.start(targetBatchDuration="1s")
    assert query.driver.batch_limit() is None
    assert run_batch(query, sink, limit=8)[0] == 8
    decided = limit_of(query)
    assert (decided.option, decided.offsets, decided.reason) == ("maxOffsetsPerTrigger", 8, "it is 8")
    for _ in range(3):
        offsets, _ = run_batch(query, sink, limit=1000)
    decided = limit_of(query)
    assert (decided.option, decided.offsets) == ("targetBatchDuration", offsets)
    assert decided.reason.startswith("the last batch took ")
    read_all(query, sink)
    on_fake.produce(1)
    run_batch(query, sink)
    assert (limit_of(query).option, limit_of(query).offsets) == ("", 1)


def test_an_available_now_run_has_several_batches(on_fake: Bench) -> None:
    on_fake.produce(1000, 1000)
    run = on_fake.query(targetBatchDuration="1s").start(available_now=True)
    batches = [run_batch(run, sink)]
    on_fake.produce(500)
    batches += read_all(run, sink)
    assert len(batches) >= 4
    assert sum(offsets for offsets, _ in batches) == 2000, "up to where the topic ended when the run began"
    assert all(abs(seconds / TARGET - 1) <= 0.25 for _, seconds in batches[2:-1])


def test_the_trigger_once_reads_everything_at_once(on_fake: Bench) -> None:
    on_fake.produce(1000, 1000)
    query = on_fake.start(targetBatchDuration="1s")
    planned = query.driver.plan_all_available(query.end)
    assert sum(each.size for each in planned.reads()) == 2000


def test_a_minimum_of_offsets_delays_batches_and_the_target_limits_them(on_fake: Bench) -> None:
    query = on_fake.start(targetBatchDuration="1s", minOffsetsPerTrigger="1500", maxTriggerDelay="1h")
    assert not query.poll(), "a new query logs its starts"
    on_fake.produce(1000)
    assert not query.poll()
    on_fake.produce(1000)
    reads = eventually(query.poll, "enough records")
    assert sum(each.size for each in reads) <= 100


def test_a_query_with_a_trigger_is_limited_by_its_batches_and_not_by_the_interval(on_fake: Bench) -> None:
    on_fake.produce(2000, 2000)
    query = on_fake.start(targetBatchDuration="1s")
    durations = []
    for _ in range(6):
        durations.append(run_batch(query, sink)[1])
        time.sleep(5.0 - durations[-1])
    assert all(abs(seconds / TARGET - 1) <= 0.25 for seconds in durations[2:])


def test_a_restarted_query_replays_its_batch_exactly_and_begins_carefully(on_fake: Bench) -> None:
    on_fake.produce(1500, 1500)
    crashed = on_fake.start(targetBatchDuration="1s")
    for _ in range(4):
        run_batch(crashed, sink)
    before = crashed.end
    large = sum(each.size for each in crashed.begin())
    logged = crashed.running
    assert logged is not None
    crashed.close()
    again = on_fake.query(BatchOffset.from_json(logged.as_json()), targetBatchDuration="1s").start(replayed=True)
    time.sleep(100.0)  # Spark replays the batch from its ranges; that it takes this long teaches nothing
    again.driver.complete(again.end)
    first, _ = run_batch(again, sink)
    assert first < large
    assert spans_of(logged, before)
    read_all(again, sink)
    assert_each_record_once(dict.fromkeys(range(2), 1500), crashed, again)


def spans_of(logged: BatchOffset, before: BatchOffset) -> bool:
    """Whether the batch begins where the one before ended."""
    ends = before.ends()
    return all(each.start == ends[each.tp] for each in logged.reads())


@pytest.mark.parametrize("slowness", [1, 5])
def test_members_share_a_backlog_over_a_rebalance_and_a_restart_without_losing_a_partition(
    on_fake: Bench, slowness: int
) -> None:
    """A revocation waits for about 10 s here, and batches take one: none is cut off."""
    given = {"targetBatchDuration": "1s", "kafka_max_poll_interval_ms": "20000", "kafka_session_timeout_ms": "6000"}
    on_fake.produce(1000, 1000, 1000, 1000)
    first = on_fake.start(None, **given)
    for _ in range(3):
        run_batch(first, sink)
    second = on_fake.join(None, **given)

    def slow(offsets: int) -> float:
        return slowness * sink(offsets)

    def both_own() -> bool:
        run_batch(first, sink)
        run_batch(second, slow)
        return bool(first.owns()) and bool(second.owns())

    eventually(both_own, "partitions to move")
    for _ in range(2):
        run_batch(first, sink)
        run_batch(second, slow)
    logged = second.end
    second.close()
    third = on_fake.join(logged, **given)

    def all_read() -> bool:
        return run_batch(first, sink)[0] + run_batch(third, slow)[0] == 0 and on_fake.committed() == dict.fromkeys(
            range(4), 1000
        )

    eventually(all_read, "everything to be read")
    for query in (first, second, third):
        assert query.driver.counters.lost == 0
        assert query.driver.counters.revocation_timed_out == 0
    assert_each_record_once(dict.fromkeys(range(4), 1000), first, second, third)
