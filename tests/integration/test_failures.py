"""Queries that die or stand still in mid-batch, and what the next run does."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.sql import DataFrame

from spark_group_source.testing import EmbeddedKafka
from tests.integration.commit_log import backward
from tests.integration.conftest import Stream
from tests.integration.query_process import Place, PlainQuery, eventually
from tests.integration.standing import caught_up, fill, places_in, shorten_sessions

SESSION_S = 6.0
RUN_S = 90.0
"""In which a run has read what is left and ended, on a machine with other work to do. Less than a static session."""

Plain = Callable[..., PlainQuery]
Run = Callable[..., list[Place]]


@pytest.fixture
def run(stream: Stream, run_available_now: Callable[..., DataFrame]) -> Run:
    """Lets the test's group read what there is, ``run(topic, checkpoint, **options)``: where the rows are, sorted."""

    def read(topic: str, checkpoint: Path | None = None, **more: str) -> list[Place]:
        rows = run_available_now(stream(topic, **more).select("partition", "offset"), checkpoint=checkpoint).collect()
        return sorted((row.partition, row.offset) for row in rows)

    return read


@pytest.mark.core
def test_a_batch_interrupted_by_kill_9_is_replayed_exactly_even_if_another_member_owns_its_partitions(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, plain: Plain
) -> None:
    name = topic(partitions=4)
    everything = fill(kafka, name, 50)
    killed = plain(name, "kept", "read 2", maxOffsetsPerTrigger="60").reaches("read 2")
    killed.kill()
    other = plain(name, "other")
    eventually(lambda: caught_up(kafka, name, group), what="the other member reading all")
    everything |= fill(kafka, name, 20)
    again = plain(name, "kept", "read 2").reaches("read 2")
    assert again.batches() == [0, 1, 2]
    before, replayed = again.attempts(2)
    assert before == replayed
    assert len(replayed) == 60
    again.go_on("read 2")
    again.until(lambda: len(kafka.members(group)) == 2)
    everything |= fill(kafka, name, 20)
    eventually(lambda: caught_up(kafka, name, group))
    again.end()
    other.end()
    assert set(again.places() + other.places()) == everything
    assert not set(again.places(0, 1)) & set(other.places()), "what was committed is not read again"
    assert backward(kafka, group) == []


@pytest.mark.parametrize("static", [False, True])
def test_an_available_now_run_right_after_kill_9_reads_the_rest_and_ends_by_itself(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, plain: Plain, run: Run, static: bool
) -> None:
    # A static member takes its own place again: it need not wait for the end of even a long session.
    session_s = 120 if static else SESSION_S
    more = {"kafka.session.timeout.ms": str(round(session_s * 1000))}
    if static:
        more |= {"kafka.group.instance.id": "one"}
    name = topic(partitions=4)
    everything = fill(kafka, name, 50)
    killed = plain(name, "kept", "read 2", maxOffsetsPerTrigger="60", **more).reaches("read 2")
    killed.kill()
    died_at = time.monotonic()
    left = run(name, **more)
    took = time.monotonic() - died_at
    print(f"static={static}: the run ended {took:.1f} s after the death of the other")
    assert took < RUN_S + (0 if static else session_s)
    # The batch in flight is repeated, nothing else; nothing is left out.
    assert sorted(killed.places(0, 1) + left) == sorted(everything)
    assert set(killed.places(2)) <= set(left)
    assert caught_up(kafka, name, group)


@pytest.mark.core
def test_offsets_that_an_operator_resets_between_runs_are_honoured_forward_and_backward(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, run: Run, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    fill(kafka, name, 30)
    checkpoint = tmp_path / "kept"

    def reset(offset: int) -> None:
        eventually(lambda: kafka.group_state(group) == "Empty")
        with kafka.admin() as admin:
            reached = OffsetAndMetadata(offset, "", None)
            admin.alter_group_offsets(group, {TopicPartition(name, partition): reached for partition in range(2)})

    def offsets(start: int, end: int) -> list[Place]:
        return [(partition, offset) for partition in range(2) for offset in range(start, end)]

    assert run(name, checkpoint) == offsets(0, 30)
    for start in (0, 0, 10):  # twice to the start of the last batch, then into it
        reset(start)
        assert run(name, checkpoint) == offsets(start, 30)
    fill(kafka, name, 30)
    reset(45)
    assert run(name, checkpoint) == offsets(45, 60)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_reader_suspended_beyond_its_session_overwrites_no_commit_and_rejoins(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, plain: Plain, protocol: str
) -> None:
    name = topic(partitions=4)
    fill(kafka, name, 50)
    if protocol == "consumer":
        shorten_sessions(kafka, group)
    suspended = plain(name, "suspended", "read 0", protocol=protocol).reaches("read 0")
    in_flight = suspended.places()
    before = {each.consumer_id for each in kafka.members(group)}
    os.kill(suspended.pid, signal.SIGSTOP)
    try:
        other = plain(name, "other", protocol=protocol)
        fill(kafka, name, 10)
        eventually(lambda: caught_up(kafka, name, group), what="the other member taking over")
        ends = kafka.committed(group, name)
        suspended.go_on("read 0")
    finally:
        os.kill(suspended.pid, signal.SIGCONT)
    eventually(lambda: sorted(each.partitions for each in kafka.members(group)) == [2, 2])
    if protocol == "classic":  # with KIP-848 a member keeps its id when it joins again
        assert not before & {each.consumer_id for each in kafka.members(group)}
    assert all(offset >= ends[tp] for tp, offset in kafka.committed(group, name).items())
    had = set(suspended.places())
    fill(kafka, name, 10)
    suspended.until(lambda: len(set(suspended.places()) - had) == 20, what="the query going on")
    eventually(lambda: caught_up(kafka, name, group))
    suspended.end()
    other.end()
    times = Counter(suspended.places() + other.places())
    assert times.keys() == places_in(kafka, name)
    assert {place for place, count in times.items() if count > 1} <= set(in_flight), "only the batch in flight again"
    assert backward(kafka, group) == []
