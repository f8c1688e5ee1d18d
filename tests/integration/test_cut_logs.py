"""What real brokers answer to a task whose range ends behind the end of the log, as after an unclean election."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import DataLoss, DeadlineExceeded
from spark_group_source.fetch import reader
from spark_group_source.fetch.leaders import list_offsets
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import EARLIEST, LATEST, OffsetRange, TopicPartition
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions

pytestmark = pytest.mark.core

TIMEOUT_S = 90.0
Task = Callable[..., FetchTask]


@pytest.fixture
def task(kafka: EmbeddedKafka) -> Iterator[Task]:
    """Makes tasks: ``task(topic, end, **more)`` reads partition 0 from its beginning to ``end``."""
    host, port = kafka.bootstrap_servers.split(",")[0].split(":")
    wire = WireOptions(((host, int(port)),), "test", retry_backoff=0.01, retry_backoff_max=0.05)

    def make(topic: str, end: int, **more: Any) -> FetchTask:
        schema = arrow_schema(["offset"])
        return FetchTask((OffsetRange(topic, 0, 0, end, ""),), wire, schema, FetchSettings(**{"max_wait": 0.05} | more))

    yield make
    for _, kept in reader._idle_clusters.values():
        kept.close()
    reader._idle_clusters.clear()


def offsets(task: FetchTask) -> list[int]:
    return [offset for each in read(task) for offset in each["offset"].to_pylist()]


def test_a_truncated_log_is_data_loss_or_skipped(kafka: EmbeddedKafka, topic: Callable[..., str], task: Task) -> None:
    name = topic()
    kafka.produce(name, [str(each) for each in range(10)])
    with pytest.raises(DataLoss, match=r"\[10, 25\) of .*are lost: the log ends at 10"):
        offsets(task(name, 25))
    assert offsets(task(name, 25, fail_on_data_loss=False)) == list(range(10))


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
            offsets(task(name, 10, read_committed=True, poll_timeout=3.0))
        producer.commit_transaction()
    assert offsets(task(name, 10, read_committed=True, poll_timeout=TIMEOUT_S)) == list(range(10))


def ends(wire: WireOptions, topic: str) -> dict[int, int]:
    """Where the log begins and ends, open transactions included."""
    tp, cluster = TopicPartition(topic, 0), Cluster(wire)
    try:
        return {
            at: list_offsets(cluster, {tp: at}, read_committed=False, deadline=Deadline.after(TIMEOUT_S))[tp]
            for at in (EARLIEST, LATEST)
        }
    finally:
        cluster.close()
