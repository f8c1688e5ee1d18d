"""Connections that break or stall at each step of the protocol, between the source and a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from spark_group_source.fetch.reader import read
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.group import classic
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.settings import WireOptions
from tests.conftest import KAFKA_3
from tests.contract.conftest import BASES, Bench, eventually
from tests.contract.proxy import APIS, Proxy, ProxyFault

REQUEST_TIMEOUT_S = 1.0
MOST_S = 30.0
"""Seconds for one call by Spark: a few timeouts, on a slow machine."""
PARTITIONS, EACH = 4, 10

Answer = TypeVar("Answer")
Proxied = tuple[EmbeddedKafka, Proxy]


@pytest.fixture(scope="module")
def proxied() -> Iterator[Proxied]:
    """A broker that clients reach only through a proxy."""
    running: list[EmbeddedKafka] = []
    proxy = Proxy(lambda: int(running[0].address("PLAINTEXT").rpartition(":")[2]), "contract", 2 * REQUEST_TIMEOUT_S)
    running.append(EmbeddedKafka(config={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}))
    with running[0] as kafka:
        yield kafka, proxy
    proxy.close()


@pytest.fixture
def bench(proxied: Proxied, unique: Callable[[str], str], group: str, protocol: str) -> Iterator[Bench]:
    if protocol == "consumer" and KAFKA_3:
        pytest.skip("Kafka 4.0 has KIP-848")
    kafka, _ = proxied
    bench = Bench(kafka, kafka.create_topic(unique("proxied"), partitions=PARTITIONS), group, BASES[protocol])
    yield bench
    bench.close()


def timed(call: Callable[[], Answer]) -> Answer:
    began = time.monotonic()
    answer = call()
    assert time.monotonic() - began < MOST_S
    return answer


NO_STEP = {"DescribeGroups", "OffsetForLeaderEpoch", "SaslHandshake", "SaslAuthenticate"}
"""Requests only of manual assignment, after a change of leader, or for authentication."""

OF_CONSUMER = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}

STEPS = [("classic", api) for api in APIS if api not in NO_STEP | OF_CONSUMER] + [
    ("consumer", api) for api in ("ConsumerGroupHeartbeat", "OffsetCommit")
]
"""Each step of the classic protocol, and those that differ with KIP-848."""


def rows(ranges: list[OffsetRange], wire: WireOptions) -> list[tuple[int, int]]:
    """Partition and offset of each record that a task reads."""
    if not ranges:
        return []
    settings = FetchSettings(poll_timeout=MOST_S)
    batches = read(FetchTask(tuple(ranges), wire, arrow_schema(["partition", "offset"]), settings))
    return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.integration
@pytest.mark.parametrize("fault", ProxyFault, ids=lambda each: each.name)
@pytest.mark.parametrize(("protocol", "api"), STEPS)
def test_a_network_fault_at_any_step_loses_and_repeats_nothing(
    proxied: Proxied, bench: Bench, monkeypatch: pytest.MonkeyPatch, api: str, fault: ProxyFault
) -> None:
    monkeypatch.setattr(classic, "JOIN_SLACK", REQUEST_TIMEOUT_S)
    _, proxy = proxied
    timeouts = {"kafka.request.timeout.ms": f"{REQUEST_TIMEOUT_S * 1000:.0f}", "kafka.max.poll.interval.ms": "3000"}
    query = bench.query(None, **timeouts)
    wire = WireOptions(bench.options().wire.bootstrap_servers, "contract", request_timeout=REQUEST_TIMEOUT_S)
    bench.produce(*[EACH] * PARTITIONS)
    if api != "LeaveGroup":
        proxy.arm(api, fault)
    timed(query.start)
    read: list[tuple[int, int]] = []

    def advance() -> None:
        ranges = timed(query.poll)
        if ranges:
            read.extend(timed(lambda: rows(ranges, wire)))
            query.finish()

    def has_read(count: int) -> bool:
        advance()
        return len(read) >= count

    def caught_up() -> bool:
        return has_read(PARTITIONS * EACH) and query.poll() == [] and bench.committed() == ends

    ends = dict.fromkeys(range(PARTITIONS), EACH)
    eventually(caught_up, "reading and committing all")
    eventually(lambda: api == "LeaveGroup" or proxy.done(), "the fault")
    bench.produce(*[EACH] * PARTITIONS)
    ends = dict.fromkeys(range(PARTITIONS), 2 * EACH)
    eventually(lambda: has_read(2 * PARTITIONS * EACH), "reading on")
    if api == "LeaveGroup":
        proxy.arm(api, fault)
    timed(query.close)
    assert proxy.done()
    assert sorted(read) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(2 * EACH)]
