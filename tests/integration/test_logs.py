"""What only a real broker's log has: gaps of compaction, and a batch that is larger than any fetch asks for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from spark_group_source.fetch.reader import TaskReader
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import ALL_COLUMNS
from spark_group_source.testing.kafka import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions

DEADLINE = 90.0
POLL = 0.2


def rows(kafka: EmbeddedKafka, topic: str, start: int, end: int, max_bytes: int = 4 * 2**20) -> dict[int, bytes]:
    """Offset and value of what a task reads of the topic's only partition."""
    host, port = kafka.bootstrap_servers.split(":")
    wire = WireOptions(((host, int(port)),), "test")
    ranges = (OffsetRange(topic, 0, start, end, ""),)
    task = FetchTask(ranges, wire, ALL_COLUMNS, FetchSettings(fetch_max_bytes=max_bytes))
    with contextlib.closing(Cluster(wire)) as cluster:
        found = [row for each in TaskReader(task, cluster).batches() for row in each.to_pylist()]
    return {row["offset"]: row["value"] for row in found}


def test_a_record_much_larger_than_the_size_of_a_fetch_is_read(kafka: EmbeddedKafka, topic: Callable[..., str]) -> None:
    name = topic(config={"max.message.bytes": str(2**24)})
    sent = [b"before", bytes(range(256)) * 20_000, b"after"]
    for value in sent:
        kafka.produce(name, [value], max_request_size=2**24)
    assert rows(kafka, name, 0, 3, max_bytes=1024) == dict(enumerate(sent))


def test_compacted_ranges_are_read_to_their_end(kafka: EmbeddedKafka, topic: Callable[..., str]) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    name = topic(config=config)
    for number in range(10):
        kafka.produce(name, [(f"k{key}", f"{number}") for key in range(5)])
    end = kafka.end_offsets(name)[0]
    deadline = time.monotonic() + DEADLINE
    while rows(kafka, name, 0, 45):
        assert time.monotonic() < deadline, "not compacted"
        # A segment ends with a record that is segment.ms younger than its first.
        end = kafka.produce(name, [("other", "v")])[0][1] + 1
        time.sleep(POLL)
    last = dict.fromkeys(range(45, 50), b"9")
    assert {offset: value for offset, value in rows(kafka, name, 0, end).items() if offset < 50} == last
    assert rows(kafka, name, 15, 46) == {45: b"9"}
    assert rows(kafka, name, 3, 4) == {}
