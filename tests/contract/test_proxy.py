"""Connections that break or stall at each step of the protocol: all faults on the fake, one a step on a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from typing import TypeVar

import pytest

from spark_group_source.fetch.reader import read
from spark_group_source.fetch.settings import FetchSettings
from spark_group_source.fetch.task import FetchTask
from spark_group_source.group import classic
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.settings import WireOptions
from tests.conftest import WITHOUT_KIP_848
from tests.contract.conftest import BASES, PROXIED_CLIENT, PROXIED_TIMEOUT_S, Bench, Proxied, eventually
from tests.contract.proxy import APIS, ProxyFault
from tests.fake import Fault

MOST_S = 30.0
"""Seconds for one call by Spark: a few timeouts, on a slow machine."""
EACH = 10

Answer = TypeVar("Answer")
Rows = list[tuple[int, int]]
"""Partition and offset of each record."""

NO_STEP = {"DescribeGroups", "OffsetForLeaderEpoch", "SaslHandshake", "SaslAuthenticate"}
"""Requests only of manual assignment, after a change of leader, or for authentication."""

OF_CONSUMER = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}

STEPS = [
    *(("classic", api) for api in APIS if api not in NO_STEP | OF_CONSUMER),
    *(("consumer", api) for api in ("ConsumerGroupHeartbeat", "OffsetCommit")),
]
"""Each step of the classic protocol, and those that differ with KIP-848."""

FAULTS = {
    "cut before": Fault(drop="before"),
    "cut after": Fault(drop="after"),
    "truncated": Fault(truncate=9),
    "late": Fault(delay=2 * PROXIED_TIMEOUT_S),
    "no answer": Fault(silent=True),
}


def tell(
    bench: Bench,
    api: str,
    inject: Callable[[], None],
    happened: Callable[[], bool],
    rows: Callable[[OffsetRange], Rows],
) -> None:
    """A query begins, reads, reads on and ends; a fault is injected at the begin, or before it leaves."""
    timeouts = {"kafka.request.timeout.ms": f"{PROXIED_TIMEOUT_S * 1000:.0f}", "kafka.max.poll.interval.ms": "3000"}
    query = bench.query(None, **timeouts)
    found: Rows = []

    def has_read(each: int) -> bool:
        for part in timed(query.poll):
            found.extend(timed(lambda part=part: rows(part)))  # type: ignore[misc]
        if query.running is not None:
            query.finish()
        return len(found) >= 4 * each

    def caught_up() -> bool:
        return has_read(EACH) and query.poll() == [] and bench.committed() == dict.fromkeys(range(4), EACH)

    leaves = api == "LeaveGroup"
    bench.produce(*[EACH] * 4)
    if not leaves:
        inject()
    timed(query.start)
    eventually(caught_up, "reading and committing all")
    eventually(lambda: leaves or happened(), "the fault")
    bench.produce(*[EACH] * 4)
    eventually(lambda: has_read(2 * EACH), "reading on")
    if leaves:
        inject()
    timed(query.close)
    assert happened()
    assert sorted(found) == [(partition, offset) for partition in range(4) for offset in range(2 * EACH)]


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


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize(("protocol", "api"), [each for each in STEPS if each[1] not in ("ApiVersions", "Fetch")])
def test_a_fault_at_any_step_loses_and_repeats_nothing(
    on_fake: Bench, monkeypatch: pytest.MonkeyPatch, api: str, fault: Fault
) -> None:
    monkeypatch.setattr(classic, "JOIN_SLACK", PROXIED_TIMEOUT_S)
    mine = replace(fault, only=lambda request: request.header.client_id.startswith(PROXIED_CLIENT))

    def rows(part: OffsetRange) -> Rows:
        return [(part.partition, at) for at in range(part.start, part.end)]

    tell(on_fake, api, lambda: on_fake.fake.next(api, mine), lambda: not on_fake.has_faults(api), rows)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("protocol", "api", "fault"),
    [(*step, fault) for step, fault in zip(STEPS, cycle(ProxyFault), strict=False)],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_network_fault_at_any_step_loses_and_repeats_nothing(
    real_behind_proxy: Proxied,
    unique: Callable[[str], str],
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    api: str,
    fault: ProxyFault,
) -> None:
    if protocol == "consumer" and WITHOUT_KIP_848:
        pytest.skip("Kafka 4.0 has KIP-848")
    monkeypatch.setattr(classic, "JOIN_SLACK", PROXIED_TIMEOUT_S)
    kafka, proxy = real_behind_proxy
    with closing(Bench(kafka, kafka.create_topic(unique("proxied"), partitions=4), group, BASES[protocol])) as bench:
        servers = bench.options().wire.bootstrap_servers
        wire = WireOptions(servers, PROXIED_CLIENT, request_timeout=PROXIED_TIMEOUT_S)
        settings, schema = FetchSettings(poll_timeout=MOST_S), arrow_schema(["partition", "offset"])

        def rows(part: OffsetRange) -> Rows:
            batches = read(FetchTask((part,), wire, schema, settings))
            return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]

        tell(bench, api, lambda: proxy.arm(api, fault), proxy.done, rows)
