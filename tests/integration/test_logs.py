"""What only a real broker's log has: its end before that of a range, open transactions, gaps of compaction, and a
batch that is larger than any fetch asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import DataLoss, DeadlineExceeded
from spark_group_source.fetch import cluster_pool
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import EARLIEST, LATEST, OffsetRange, TopicPartition
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import list_offsets
from spark_group_source.wire.wire_options import WireOptions
from tests.integration.standing import wire

TIMEOUT_S = 90.0
Task = Callable[..., FetchTask]


@pytest.fixture
def task(kafka: EmbeddedKafka) -> Iterator[Task]:
    """Makes tasks: ``task(topic, end, start=0, **more)`` reads partition 0 from ``start`` to ``end``."""
    settings = wire(kafka, retry_backoff=0.01, retry_backoff_max=0.05)

    def make(topic: str, end: int, start: int = 0, **more: Any) -> FetchTask:
        ranges = (OffsetRange(topic, 0, start, end, ""),)
        return FetchTask(
            ranges, settings, arrow_schema(["offset", "value"]), FetchSettings(**{"max_wait": 0.05} | more)
        )

    yield make
    for _, kept in cluster_pool._idle_clusters.values():
        kept.close()
    cluster_pool._idle_clusters.clear()


def rows(task: FetchTask) -> dict[int, bytes]:
    """Offset and value of what a task reads."""
    return {row["offset"]: row["value"] for each in read(task) for row in each.to_pylist()}


@pytest.mark.core
def test_a_truncated_log_is_data_loss_or_skipped(kafka: EmbeddedKafka, topic: Callable[..., str], task: Task) -> None:
    name = topic()
    kafka.produce(name, [str(each) for each in range(10)])
    with pytest.raises(DataLoss, match=r"\[10, 25\) of .*are lost: the log ends at 10"):
        rows(task(name, 25))
    assert list(rows(task(name, 25, fail_on_data_loss=False))) == list(range(10))


@pytest.mark.core
def test_a_task_waits_for_an_open_transaction_and_reads_it_when_it_ends(
    kafka: EmbeddedKafka, topic: Callable[..., str], task: Task, unique: Callable[[str], str]
) -> None:
    name = topic()
    with kafka.producer(transactional_id=unique("writer")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for each in range(10):
            producer.send(name, b"%d" % each)
        producer.flush()
        assert ends(task(name, 10).wire, name) == {EARLIEST: 0, LATEST: 10}
        # Long enough for a log that was cut to be found out.
        with pytest.raises(DeadlineExceeded, match="last stable offset 0, end offset 10"):
            rows(task(name, 10, read_committed=True, poll_timeout=3.0))
        producer.commit_transaction()
    assert list(rows(task(name, 10, read_committed=True, poll_timeout=TIMEOUT_S))) == list(range(10))


def ends(settings: WireOptions, topic: str) -> dict[int, int]:
    """Where the log begins and ends, open transactions included."""
    tp = TopicPartition(topic, 0)
    with closing(Cluster(settings)) as cluster:
        return {
            at: list_offsets(cluster, {tp: at}, read_committed=False, deadline=Deadline.after(TIMEOUT_S)).offsets[tp]
            for at in (EARLIEST, LATEST)
        }


def test_a_record_much_larger_than_the_size_of_a_fetch_is_read(
    kafka: EmbeddedKafka, topic: Callable[..., str], task: Task
) -> None:
    name = topic(config={"max.message.bytes": str(2**24)})
    sent = [b"before", bytes(range(256)) * 20_000, b"after"]
    for value in sent:
        kafka.produce(name, [value], max_request_size=2**24)
    assert rows(task(name, 3, fetch_max_bytes=1024)) == dict(enumerate(sent))


def test_compacted_ranges_are_read_to_their_end(kafka: EmbeddedKafka, topic: Callable[..., str], task: Task) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    name = topic(config=config)
    for number in range(10):
        kafka.produce(name, [(f"k{key}", f"{number}") for key in range(5)])
    end = kafka.end_offsets(name)[0]
    deadline = time.monotonic() + TIMEOUT_S
    while rows(task(name, 45)):
        assert time.monotonic() < deadline, "not compacted"
        # A segment ends with a record that is segment.ms younger than its first.
        end = kafka.produce(name, [("other", "v")])[0][1] + 1
        time.sleep(0.2)
    last = dict.fromkeys(range(45, 50), b"9")
    assert {offset: value for offset, value in rows(task(name, end)).items() if offset < 50} == last
    assert rows(task(name, 46, 15)) == {45: b"9"}
    assert rows(task(name, 4, 3)) == {}
