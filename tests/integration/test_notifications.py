"""A batch is committed when Spark has completed it, whatever the trigger: real Kafka, real Spark."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.spark.notifications import set_up
from spark_group_source.testing import EmbeddedKafka
from tests.integration import query_process
from tests.integration.conftest import Read, Stream
from tests.integration.standing import caught_up, fill

eventually = partial(query_process.eventually, deadline=60)

LONG = {"processingTime": "10 minutes"}
SOON_S = 10
"""In which a batch must be committed, far below the trigger's interval. Less than 0.3 s are normal."""


@pytest.fixture
def name(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of three partitions with four records each."""
    topic = kafka.create_topic(unique("topic"), partitions=3)
    fill(kafka, topic, 4)
    return topic


def cut_off_readers() -> None:
    server = set_up._servers[-1]
    with server._lock:
        for reader in list(server._readers):
            server._drop(reader)


@pytest.mark.core
def test_a_batch_is_committed_when_it_ends_and_its_partitions_move_before_the_next_trigger(
    kafka: EmbeddedKafka, name: str, group: str, stream: Stream, read: Read
) -> None:
    first = read(stream(name), **LONG)
    eventually(lambda: len(first.values) == 12)
    print(f"committed after {eventually(lambda: caught_up(kafka, name, group), deadline=SOON_S):.2f} s")
    second = read(stream(name))
    took = eventually(
        lambda: sorted(each.partitions for each in kafka.members(group)) in ([1, 2], [2, 1]), deadline=2 * SOON_S
    )
    print(f"a second member owned its partitions {took:.2f} s after its start")
    assert second.values == []


@pytest.mark.core
@pytest.mark.parametrize("trigger", [{"once": True}, {"availableNow": True}, LONG])
def test_a_new_checkpoint_reads_nothing_again_after_a_query_that_ended(
    kafka: EmbeddedKafka, name: str, group: str, stream: Stream, read: Read, trigger: dict[str, Any]
) -> None:
    first = read(stream(name), **trigger)
    eventually(lambda: len(first.values) == 12)
    if trigger is LONG:
        eventually(lambda: len(first.query.recentProgress) > 0, what="the end of the batch")
        first.stop()
    first.to_end()
    eventually(lambda: kafka.group_state(group) in ("Empty", "Dead"))
    assert caught_up(kafka, name, group)
    assert read(stream(name), availableNow=True).to_end().values == []


@pytest.mark.core
def test_nothing_is_committed_of_a_batch_that_fails_and_all_when_a_restart_has_repeated_it(
    kafka: EmbeddedKafka, name: str, group: str, stream: Stream, read: Read
) -> None:
    other = f"{group}-other"
    read(stream(name, **{"kafka.group.id": other}), **LONG)
    assert "this batch fails" in read(stream(name), "restarted", failing=True, **LONG).error()
    eventually(lambda: caught_up(kafka, name, other), deadline=SOON_S)
    eventually(lambda: kafka.group_state(group) in ("Empty", "Dead"))
    assert set(kafka.committed(group, name).values()) == {0}
    again = read(stream(name), "restarted", **LONG)
    eventually(lambda: len(again.values) == 12)
    eventually(lambda: caught_up(kafka, name, group), deadline=2 * SOON_S)


@pytest.mark.core
def test_batch_interval_paces_batches_and_each_is_committed_at_once_even_if_no_completion_is_reported(
    kafka: EmbeddedKafka, name: str, group: str, stream: Stream, read: Read
) -> None:
    reader = read(stream(name, minBatchInterval="5 seconds"))
    eventually(lambda: len(reader.values) == 12)
    cut_off_readers()
    for batches in (2, 3):
        fill(kafka, name, 4)
        eventually(lambda count=batches: len(reader.values) == 12 * count)  # type: ignore[misc]
        eventually(lambda: caught_up(kafka, name, group), deadline=4)
    progress = [each for each in reader.query.recentProgress if each.numInputRows]
    began = [datetime.fromisoformat(each.timestamp.rstrip("Z")) for each in progress]
    assert all((later - earlier).total_seconds() > 4.5 for earlier, later in itertools.pairwise(began)), began


def test_queries_of_several_groups_and_a_query_of_two_sources_each_commit_their_own_batches(
    kafka: EmbeddedKafka, name: str, unique: Callable[[str], str], stream: Stream, read: Read
) -> None:
    groups = [unique("group") for _ in range(4)]
    one, other, third, fourth = (stream(name, **{"kafka.group.id": each}) for each in groups)
    readers = [read(frame, processingTime="2 seconds") for frame in (one, one, other, third.union(fourth))]
    eventually(lambda: all(caught_up(kafka, name, group) for group in groups))
    fill(kafka, name, 4)
    eventually(lambda: all(caught_up(kafka, name, group) for group in groups))
    eventually(lambda: len(readers[0].values) + len(readers[1].values) == 24)
    assert len(readers[2].values) == 24
    assert len(readers[3].values) == 48


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_queries_that_are_restarted_leave_nothing_behind(
    kafka: EmbeddedKafka, name: str, group: str, stream: Stream, tmp_path: Path
) -> None:
    def left() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    # Not into foreachBatch: it leaves a thread of py4j behind for each query.
    frame = stream(name)
    before = (0, 0)
    for number in range(5):
        fill(kafka, name, 1)
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "restarted"))
        assert writer.trigger(availableNow=True).start().awaitTermination(60)
        eventually(lambda: not set_up._servers[-1]._readers)
        if number == 1:
            before = left()
    assert caught_up(kafka, name, group)
    threads, files = left()
    assert (threads, files) <= (before[0] + 1, before[1] + 2), before
