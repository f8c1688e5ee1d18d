"""The broker of the benchmark, which can also be reached from afar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from benchmark import delaying_proxy
from benchmark.broker_bytes import jmx_port
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ports import HOST, free_ports

# The default segment size of brokers; disk space of deleted topics is free at once.
BROKER = {
    "log.segment.bytes": str(2**30 - 1),
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.dedupe.buffer.size": str(2**26),
    "log.cleaner.backoff.ms": "1000",
}
BROKER_HEAP = "1g"


class DistantKafka(EmbeddedKafka):
    """A broker with one more listener for each distance: clients of that listener get the address of its proxy."""

    def __init__(self, distances_ms: Sequence[int]) -> None:
        self._proxy_ports = dict(zip(distances_ms, free_ports(len(distances_ms)), strict=True))
        super().__init__(
            heap=BROKER_HEAP, config=BROKER, jvm_flags=(), listeners=[_listener(each) for each in distances_ms]
        )

    def servers(self, distance_ms: int | None) -> str:
        """The bootstrap servers at a distance; without one, those without a proxy."""
        if distance_ms is None:
            return self.bootstrap_servers
        return f"{HOST}:{self._proxy_ports[distance_ms]}"

    @contextlib.contextmanager
    def proxies(self) -> Iterator[None]:
        """Runs the proxies."""
        with contextlib.ExitStack() as running:
            for distance_ms, port in self._proxy_ports.items():
                target = int(self.address(_listener(distance_ms)).rpartition(":")[2])
                running.enter_context(delaying_proxy.running(port, target, distance_ms))
            yield

    def _properties(self, node: int) -> dict[str, str]:
        properties = super()._properties(node)
        advertised, protocols = properties["advertised.listeners"], properties["listener.security.protocol.map"]
        for distance_ms, port in self._proxy_ports.items():
            name = _listener(distance_ms)
            advertised = advertised.replace(f"{name}://{self.address(name)}", f"{name}://{HOST}:{port}")
            protocols = protocols.replace(f"{name}:{name}", f"{name}:PLAINTEXT")
        return {**properties, "advertised.listeners": advertised, "listener.security.protocol.map": protocols}


def _listener(distance_ms: int) -> str:
    return f"DISTANT_{distance_ms}"


@contextlib.contextmanager
def running(distances_ms: Sequence[int]) -> Iterator[tuple[DistantKafka, int]]:
    """The broker, and the port of its metrics."""
    kafka = DistantKafka(distances_ms)
    with contextlib.closing(kafka):
        with jmx_port() as port:
            kafka.open()
        with kafka.proxies():
            yield kafka, port
