"""Queries and readers that die or stand still in mid-batch, and what the next run does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_group_source.testing import EmbeddedKafka
from tests.integration.commit_log import backward
from tests.integration.query_process import Place, QueryProcess, eventually, source_options
from tests.integration.reader import Reader
from tests.integration.standing import caught_up, fill

SESSION_S = 6.0
RUN_S = 90.0
"""In which a run has read what is left and ended, on a machine with other work to do. Less than a static session."""

Query = Callable[..., QueryProcess]
Start = Callable[..., Reader]
Run = Callable[..., list[Place]]


@pytest.fixture
def run(spark: SparkSession, kafka: EmbeddedKafka, group: str, run_available_now: Callable[..., DataFrame]) -> Run:
    """Lets the test's group read what there is, ``run(topic, checkpoint, **options)``: where the rows are, sorted."""

    def read(topic: str, checkpoint: Path | None = None, **more: str) -> list[Place]:
        frame = spark.readStream.format("kafka-group").options(**source_options(kafka, topic, group, **more)).load()
        rows = run_available_now(frame.select("partition", "offset"), checkpoint=checkpoint).collect()
        return sorted((row.partition, row.offset) for row in rows)

    return read


def places_of(query: QueryProcess, *batches: int) -> list[Place]:
    rows = [query.attempts(batch)[-1] for batch in batches]
    return [
        place for each in rows for place in zip(each["partition"].to_pylist(), each["offset"].to_pylist(), strict=True)
    ]


def test_a_batch_interrupted_by_kill_9_is_replayed_exactly_even_if_another_member_owns_its_partitions(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, query: Query, start: Start
) -> None:
    name = topic(partitions=4)
    everything = fill(kafka, name, 50)
    killed = query(name, checkpoint="kept", maxOffsetsPerTrigger="60").hold(2).start()
    killed.await_held(2)
    killed.kill()
    other = start(name)
    eventually(lambda: caught_up(kafka, name, group), what="the other member reading all")
    everything |= fill(kafka, name, 20)
    again = query(name, checkpoint="kept").hold(2).start()
    again.await_held(2)
    assert again.batches() == [2]
    assert again.attempts(2)[0].equals(killed.attempts(2)[0])
    assert again.attempts(2)[0].num_rows == 60
    again.release()
    again.until(lambda: len(kafka.members(group)) == 2)
    everything |= fill(kafka, name, 20)
    eventually(lambda: caught_up(kafka, name, group))
    again.stop()
    other.stop()
    once = places_of(killed, 0, 1)
    assert set(once + again.places() + other.places) == everything
    assert not set(once) & set(other.places), "what was committed is not read again"
    assert backward(kafka, group) == []


@pytest.mark.parametrize("static", [False, True])
def test_an_available_now_run_right_after_kill_9_reads_the_rest_and_ends_by_itself(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, query: Query, run: Run, static: bool
) -> None:
    # A static member takes its own place again: it need not wait for the end of even a long session.
    session_s = 120 if static else SESSION_S
    more = {"kafka.session.timeout.ms": str(round(session_s * 1000))}
    if static:
        more |= {"kafka.group.instance.id": "one"}
    name = topic(partitions=4)
    everything = fill(kafka, name, 50)
    killed = query(name, maxOffsetsPerTrigger="60", **more).hold(2).start()
    killed.await_held(2)
    killed.kill()
    died_at = time.monotonic()
    left = run(name, **more)
    took = time.monotonic() - died_at
    print(f"static={static}: the run ended {took:.1f} s after the death of the other")
    assert took < RUN_S + (0 if static else session_s)
    # The batch in flight is repeated, nothing else; nothing is left out.
    assert sorted(places_of(killed, 0, 1) + left) == sorted(everything)
    assert set(places_of(killed, 2)) <= set(left)
    assert caught_up(kafka, name, group)


@pytest.mark.core
@pytest.mark.parametrize("kept", [True, False], ids=["old checkpoint", "new checkpoint"])
def test_offsets_that_an_operator_resets_between_runs_are_honoured_forward_and_backward(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, run: Run, tmp_path: Path, kept: bool
) -> None:
    name = topic(partitions=2)
    fill(kafka, name, 30)
    checkpoint = tmp_path / "kept" if kept else None

    def reset(offset: int) -> None:
        eventually(lambda: kafka.group_state(group) == "Empty")
        kafka.consumer_groups(
            "--reset-offsets", "--group", group, "--topic", name, "--to-offset", str(offset), "--execute"
        )

    def offsets(start: int, end: int) -> list[Place]:
        return [(partition, offset) for partition in range(2) for offset in range(start, end)]

    assert run(name, checkpoint) == offsets(0, 30)
    for start in (0, 0, 10):  # twice to the start of the last batch, then into it
        reset(start)
        assert run(name, checkpoint) == offsets(start, 30)
    fill(kafka, name, 30)
    reset(45)
    assert run(name, checkpoint) == offsets(45, 60)


@pytest.mark.core
def test_a_last_batch_that_an_operator_repeats_is_read_once_more_even_if_the_query_dies_in_it(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, query: Query
) -> None:
    name = topic(partitions=2)
    everything = fill(kafka, name, 30)
    first = query(name, checkpoint="kept").start()
    first.until(lambda: caught_up(kafka, name, group))
    first.stop()
    assert first.batches() == [0]
    eventually(lambda: kafka.group_state(group) == "Empty")
    kafka.consumer_groups("--reset-offsets", "--group", group, "--topic", name, "--to-earliest", "--execute")
    killed = query(name, checkpoint="kept").hold(1).start()
    killed.await_held(1)
    killed.kill()
    again = query(name, checkpoint="kept").start()
    again.until(lambda: caught_up(kafka, name, group))
    added = fill(kafka, name, 10)
    again.until(lambda: set(again.places()) >= added, what="the added records")
    again.stop()
    assert sorted(places_of(killed, 1)) == sorted(everything)
    assert sorted(again.places()) == sorted(everything | added)


def test_a_reader_suspended_beyond_its_session_overwrites_no_commit_and_rejoins(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, query: Query, start: Start
) -> None:
    name = topic(partitions=4)
    everything = fill(kafka, name, 50)
    still = query(name, checkpoint="kept").hold(0).start()
    still.await_held(0)
    before = {each.consumer_id for each in kafka.members(group)}
    reader = still.reader()
    os.kill(reader, signal.SIGSTOP)
    try:
        other = start(name)
        everything |= fill(kafka, name, 10)
        eventually(lambda: caught_up(kafka, name, group), what="the other member taking over")
        ends = kafka.committed(group, name)
        still.release()
    finally:
        os.kill(reader, signal.SIGCONT)
    eventually(lambda: sorted(each.partitions for each in kafka.members(group)) == [2, 2])
    assert not before & {each.consumer_id for each in kafka.members(group)}
    assert all(offset >= ends[tp] for tp, offset in kafka.committed(group, name).items())
    had = len(still.places())
    everything |= fill(kafka, name, 10)
    eventually(lambda: caught_up(kafka, name, group))
    still.until(lambda: len(still.places()) == had + 20, what="the query going on")
    still.stop()
    other.stop()
    assert set(still.places() + other.places) == everything
    assert backward(kafka, group) == []
