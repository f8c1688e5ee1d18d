"""Two clusters with a topic of one name, of which one takes over addresses of the other: no row or commit is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from spark_group_source.errors import DeadlineExceeded, OtherCluster
from spark_group_source.fetch import cluster_pool, reader
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query import topic_validator
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.reachability import SERVERS
from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka, releases

pytestmark = pytest.mark.real_time(reason="in virtual time there is one cluster, and no task fetches")

ASKED_ONLY_FOR_ITS_ID = {"ApiVersions", "ClusterId"}
FIRST, SECOND = 5, 3
"""Records of each partition before and after the other cluster takes over an address."""


@pytest.fixture
def other() -> Iterator[FakeKafka]:
    """The other cluster: its topic of the same name has other records, and more."""
    with FakeKafka() as running:
        running.create_topic("topic", partitions=4)
        for number in range(4):
            running.produce("topic", ["foreign"] * 20, partition=number)
        yield running


@pytest.fixture(autouse=True)
def idle_clusters() -> Iterator[None]:
    yield
    for _, kept in cluster_pool._idle_clusters.values():
        kept.close()
    cluster_pool._idle_clusters.clear()


class Swap:
    """The other cluster's broker at the address of a broker, until it is undone."""

    def __init__(self, fake: FakeKafka, node: int, other: FakeKafka) -> None:
        self._former, self._other = fake.brokers[node], other.brokers[1]
        self._other_port = self._other.port
        self._former.stop()
        self._other.stop()
        self._other.port = self._former.port
        self._other.start()

    def undo(self) -> None:
        self._other.stop()
        self._other.port = self._other_port
        self._other.start()
        self._former.start()


def values(options: SourceOptions, batch: BatchOffset) -> list[str]:
    """Reads a batch as its tasks do."""
    settings = replace(options.fetch, poll_timeout=1.0)
    task = FetchTask(tuple(batch.reads()), options.wire, arrow_schema(["value"]), settings, cluster_id=batch.cluster)
    return [value.decode() for rows in reader.read(task) for value in rows["value"].to_pylist()]


class Reading:
    """A query whose batches are read: ``values`` are all that they gave."""

    def __init__(self, query: Query, options: SourceOptions) -> None:
        self.query = query
        self._options = options
        self.values: list[str] = []

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Runs batches until this holds."""

        def holds() -> bool:
            self._advance()
            return condition()

        eventually(holds, what)

    def _advance(self) -> None:
        """Runs a batch, if there is something to read; a batch that cannot be read now is tried again later."""
        if self.query.running is None:
            self.query.poll()
        if self.query.running is None:
            return
        try:
            self.values += values(self._options, self.query.running)
        except DeadlineExceeded:
            return
        self.query.finish()

    def ends(self) -> dict[int, int]:
        return {tp.partition: end for tp, end in self.query.end.ends().items()}


QUICK = {"kafka.request.timeout.ms": "500", "kafka.reconnect.backoff.max.ms": "50", "kafka.metadata.max.age.ms": "100"}


def assert_only_the_own_cluster_counts(bench: Bench, other: FakeKafka, fail_on_data_loss: bool) -> None:
    more = {**QUICK, "failOnDataLoss": str(fail_on_data_loss).lower()}
    bench.produce(*[FIRST] * 4)
    query = bench.start(None, **more)
    reading = Reading(query, bench.options(**more).with_client_id("reader"))
    reading.until(lambda: len(reading.values) == 4 * FIRST, "the first records")
    swap = Swap(bench.fake, 2, other)
    bench.produce(*[SECOND] * 4)
    reading.until(lambda: _ids_asked(other) > 5, "a few checks of the other cluster")
    swap.undo()
    everything = dict.fromkeys(range(4), FIRST + SECOND)
    reading.until(lambda: reading.ends() == everything and bench.committed() == everything, "all records and commits")
    assert "foreign" not in reading.values
    assert len(reading.values) == 4 * (FIRST + SECOND)
    assert {api for api, _, _ in other.requests} <= ASKED_ONLY_FOR_ITS_ID
    assert query.end.cluster == bench.fake.cluster_id


def _ids_asked(other: FakeKafka) -> int:
    return other.request_count("ClusterId")


def test_a_leaders_address_that_belongs_to_another_cluster_is_an_unavailable_broker(
    on_fake: Bench, other: FakeKafka
) -> None:
    assert_only_the_own_cluster_counts(on_fake, other, fail_on_data_loss=False)


@pytest.mark.one_protocol("classic", reason="brokers without topic ids know no other")
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_no_topic_ids_are_needed_to_tell_clusters_apart(
    on_fake: Bench, other: FakeKafka, fail_on_data_loss: bool
) -> None:
    for kafka in (on_fake.fake, other):
        kafka.offered = dict.fromkeys(kafka.brokers, releases.kafka(2, 4))
    assert_only_the_own_cluster_counts(on_fake, other, fail_on_data_loss)


def test_a_member_whose_coordinators_address_belongs_to_another_cluster_joins_no_group_there(
    on_fake: Bench, other: FakeKafka
) -> None:
    on_fake.produce(*[FIRST] * 4)
    query = on_fake.start().idle()
    swap = Swap(on_fake.fake, 1, other)
    query.poll()
    eventually(lambda: _ids_asked(other) > 3, "the member to look for its coordinator")
    swap.undo()
    on_fake.produce(*[SECOND] * 4)
    eventually(lambda: query.idle() and on_fake.committed() == dict.fromkeys(range(4), FIRST + SECOND), "the commits")
    assert {api for api, _, _ in other.requests} <= ASKED_ONLY_FOR_ITS_ID


def servers(*clusters: FakeKafka) -> dict[str, str]:
    return {"kafka.bootstrap.servers": ",".join(each.bootstrap_servers for each in clusters)}


def test_a_restart_reads_the_cluster_of_its_checkpoint_or_says_what_to_do(
    on_fake: Bench, other: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_fake.produce(*[FIRST] * 4)
    first = on_fake.start().idle()
    first.close()
    on_fake.produce(*[SECOND] * 4)
    for broker in on_fake.fake.brokers.values():
        SERVERS.record_failure(("127.0.0.1", broker.port))  # so that the other cluster's server is asked first
    again = on_fake.query(BatchOffset.from_json(first.end.as_json()), **servers(other, on_fake.fake))
    again.driver.pin_starts()  # Spark asks for it before it says where the checkpoint stands
    again.start().idle()
    assert sum(read.size for read in again.read) == 4 * SECOND
    again.close()
    assert "FindCoordinator" not in {api for api, _, _ in other.requests}
    monkeypatch.setattr(topic_validator, "START_TIMEOUT", 0.5)
    wrong = on_fake.query(again.end, **servers(other))
    ids = f"127.0.0.1:{other.brokers[1].port} belongs to cluster '{other.cluster_id}'.*'{on_fake.fake.cluster_id}'"
    with pytest.raises(OtherCluster, match=f"{ids}.*kafka.bootstrap.servers.*new checkpointLocation"):
        wrong.start()


def test_a_replayed_batch_is_read_from_its_cluster_only(on_fake: Bench, other: FakeKafka) -> None:
    on_fake.produce(*[FIRST] * 4)
    query = on_fake.start()
    query.begin()
    assert query.running is not None
    logged = BatchOffset.from_json(query.running.as_json())
    wrong = on_fake.options(**QUICK, **servers(other)).with_client_id("reader")
    with pytest.raises(DeadlineExceeded, match=f"'{other.cluster_id}'.*'{on_fake.fake.cluster_id}'"):
        values(wrong, logged)
    assert values(on_fake.options().with_client_id("reader"), logged) == [f"v{at}" for at in range(FIRST)] * 4


def test_a_checkpoint_without_a_cluster_gets_one_with_the_next_batch_that_reads(on_fake: Bench) -> None:
    on_fake.produce(*[FIRST] * 4)
    first = on_fake.start().idle()
    first.close()
    again = on_fake.start(replace(first.end, cluster=""))
    for _ in range(3):
        assert again.driver.plan_batch(again.end, None) is again.end, "an idle query keeps its offset, text and all"
    on_fake.produce(1)
    assert again.begin() == [OffsetRange("topic", 0, FIRST, FIRST + 1, first.end.ranges[on_fake.tp(0)].topic_id, 0)]
    assert again.running is not None
    assert again.running.cluster == on_fake.fake.cluster_id


def test_latest_of_an_added_topic_is_that_of_the_checkpoints_cluster(on_fake: Bench, other: FakeKafka) -> None:
    on_fake.produce(*[FIRST] * 4)
    first = on_fake.start().idle()
    first.close()
    for kafka, count in ((on_fake.fake, FIRST), (other, 20)):
        kafka.create_topic("added", partitions=1)
        kafka.produce("added", ["old"] * count, partition=0)
    for broker in on_fake.fake.brokers.values():
        SERVERS.record_failure(("127.0.0.1", broker.port))  # so that the other cluster's server is asked first
    more = {"subscribe": "topic,added", "startingOffsets": "latest", **servers(other, on_fake.fake)}
    again = on_fake.query(BatchOffset.from_json(first.end.as_json()), **more)
    again.driver.pin_starts()
    again.start().idle()
    on_fake.fake.produce("added", ["new"], partition=0)
    eventually(lambda: again.idle() and again.end.ends()[TopicPartition("added", 0)] == FIRST + 1, "the new record")
    assert sum(read.size for read in again.read) == 1
