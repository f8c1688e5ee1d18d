"""Connections that break or stall at each step of the protocol: all on the fake, and each fault before a real Kafka."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

import pytest

from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.group.classic import protocol as classic_protocol
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.wire.wire_options import WireOptions
from tests.contract.conftest import BASES, Bench, eventually
from tests.fake import Fault
from tests.fake.server import REQUESTS, read_frame

CLIENT = "contract"
"""What the ids of the queries' clients begin with: others suffer nothing."""
TIMEOUT_S = 1.0
"""The request timeout of these clients."""
MOST_S = 30.0
"""Seconds for one call by Spark: a few timeouts, on a slow machine."""
EACH = 10
APIS: dict[str, int] = {each.__name__.removesuffix("Request"): key for key, each in REQUESTS.items()}
"""API key of each request name."""
NO_STEP = {"DescribeGroups", "ListGroups", "OffsetForLeaderEpoch", "SaslHandshake", "SaslAuthenticate"}
"""Requests only of manual assignment, of lag lookups, after a change of leader, or for authentication."""
OF_CONSUMER = {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
ON_SOCKETS = {"ApiVersions", "Fetch"}
"""In virtual time no task fetches, and nobody asks for versions."""
STEPS = [("classic", api) for api in APIS if api not in NO_STEP | OF_CONSUMER | ON_SOCKETS] + [
    ("consumer", api) for api in ("ConsumerGroupHeartbeat", "OffsetCommit")
]
"""Each step of the classic protocol, and those that differ with KIP-848."""
FAULTS = {
    "cut before": Fault(drop="before"),
    "cut after": Fault(drop="after"),
    "truncated": Fault(truncate=9),
    "late": Fault(delay=2 * TIMEOUT_S),
    "no answer": Fault(silent=True),
}

Answer = TypeVar("Answer")
Rows = list[tuple[int, int]]
"""Partition and offset of each record."""


def tell(
    bench: Bench,
    api: str,
    inject: Callable[[], None],
    happened: Callable[[], bool],
    rows: Callable[[OffsetRange], Rows],
) -> None:
    """A query begins, reads, reads on and ends; a fault is injected at the begin, or before it leaves."""
    timeouts = {"kafka.request.timeout.ms": f"{TIMEOUT_S * 1000:.0f}", "kafka.max.poll.interval.ms": "3000"}
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


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize(("protocol", "api"), STEPS)
def test_a_network_fault_at_any_step_loses_and_repeats_nothing(
    on_fake: Bench, monkeypatch: pytest.MonkeyPatch, api: str, fault: Fault
) -> None:
    monkeypatch.setattr(classic_protocol, "JOIN_SLACK", TIMEOUT_S)
    mine = replace(fault, only=lambda request: request.header.client_id.startswith(CLIENT))

    def rows(part: OffsetRange) -> Rows:
        return [(part.partition, at) for at in range(part.start, part.end)]

    tell(on_fake, api, lambda: on_fake.fake.next(api, mine), lambda: not on_fake.has_faults(api), rows)


class Proxy:
    """A TCP proxy in front of a broker, for one fault at a time; ``upstream`` returns the broker's port.

    A cut closes the connection. It stays open if the request is lost, or the answer stops in its middle or is late.
    """

    def __init__(self, upstream: Callable[[], int]) -> None:
        self._upstream = upstream
        self._armed: tuple[str, str] | None = None
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.close = self._server.close
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, api: str, fault: str) -> None:
        """Injects the fault into the next request of this name."""
        self._armed = api, fault

    def done(self) -> bool:
        """Whether the fault was injected."""
        return self._armed is None

    def _take(self, request: bytes) -> str | None:
        key, _, _, size = struct.unpack_from(">hhih", request)
        armed = self._armed
        if armed is None or APIS[armed[0]] != key or not request[10 : 10 + size].startswith(CLIENT.encode()):
            return None
        self._armed = None
        return armed[1]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Forwards one request and its response at a time, because brokers respond in order."""
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._upstream())) as broker:
            while (request := read_frame(client)) is not None:
                fault = self._take(request)
                if fault == "cut before":
                    return
                if fault == "request lost":
                    continue
                broker.sendall(struct.pack(">i", len(request)) + request)
                response = read_frame(broker)
                if response is None or fault == "cut after":
                    return
                framed = struct.pack(">i", len(response)) + response
                if fault == "late":
                    time.sleep(2 * TIMEOUT_S)
                half = fault in ("cut within", "stopped within")
                client.sendall(framed[: len(framed) // 2] if half else framed)
                if fault == "cut within":
                    return


@pytest.fixture(scope="module")
def behind_proxy() -> Iterator[tuple[EmbeddedKafka, Proxy]]:
    proxy = Proxy(lambda: int(embedded.address("PLAINTEXT").rpartition(":")[2]))
    embedded = EmbeddedKafka(config={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"})
    with closing(proxy), embedded as kafka:
        yield kafka, proxy


@pytest.mark.integration
@pytest.mark.parametrize(
    ("protocol", "api", "fault"),
    [
        ("classic", "JoinGroup", "cut after"),
        ("classic", "SyncGroup", "cut before"),
        ("classic", "Fetch", "stopped within"),
        ("classic", "OffsetCommit", "late"),
        ("consumer", "ConsumerGroupHeartbeat", "request lost"),
        ("consumer", "OffsetCommit", "cut within"),
    ],
)
def test_a_network_fault_before_a_real_kafka_loses_and_repeats_nothing(
    behind_proxy: tuple[EmbeddedKafka, Proxy],
    unique: Callable[[str], str],
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    api: str,
    fault: str,
) -> None:
    monkeypatch.setattr(classic_protocol, "JOIN_SLACK", TIMEOUT_S)
    kafka, proxy = behind_proxy
    with closing(Bench(kafka, kafka.create_topic(unique("proxied"), partitions=4), group, BASES[protocol])) as bench:
        wire = WireOptions(bench.options().wire.bootstrap_servers, CLIENT, request_timeout=TIMEOUT_S)
        settings, schema = FetchSettings(poll_timeout=MOST_S), arrow_schema(["partition", "offset"])

        def rows(part: OffsetRange) -> Rows:
            batches = read(FetchTask((part,), wire, schema, settings))
            return [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]

        tell(bench, api, lambda: proxy.arm(api, fault), proxy.done, rows)
