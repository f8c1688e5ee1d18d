"""Partitions that move between running queries of a group: real Kafka, real Spark."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Read, Stream
from tests.integration.query_process import SESSION_MS, eventually
from tests.integration.standing import caught_up, fill, partitions_per_member

HEARTBEAT_S = 0.2
HELD_S = SESSION_MS / 1000 + 2
MOVE_S = 20.0
"""In which partitions must have moved once the batch that reads them has ended. Less than 2 s are normal: each move
prints its time; this is for machines that are overloaded."""


def test_a_batch_in_flight_is_committed_before_its_partitions_are_revoked(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, stream: Stream, read: Read
) -> None:
    name = topic(partitions=4)
    everything = fill(kafka, name, 25)
    first = read(stream(name), held=True)
    eventually(lambda: len(first.read_by_held) == len(everything))
    second = read(stream(name))
    eventually(lambda: len(kafka.members(group)) == 2)
    # Longer than a session: only its heartbeats keep the first member in the group.
    held_until = time.monotonic() + HELD_S
    while time.monotonic() < held_until:
        assert second.places == []
        assert set(kafka.committed(group, name).values()) == {0}
        time.sleep(HEARTBEAT_S)
    first.may_end.set()
    took = eventually(lambda: partitions_per_member(kafka, group) == [2, 2], deadline=MOVE_S, what="the move")
    print(f"partitions moved {took:.2f} s after a batch of {HELD_S:.0f} s")
    assert caught_up(kafka, name, group), "the batch was committed before the move"
    everything |= fill(kafka, name, 25)
    eventually(lambda: caught_up(kafka, name, group))
    first.stop()
    eventually(lambda: partitions_per_member(kafka, group) == [4])
    everything |= fill(kafka, name, 25)
    eventually(lambda: caught_up(kafka, name, group))
    second.stop()
    assert sorted(first.places + second.places) == sorted(everything), "every record is there, once"
    assert second.places
