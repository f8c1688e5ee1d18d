"""The nodes of an embedded Kafka: their ports and properties, and what can be done to them."""

from __future__ import annotations

import base64
import contextlib
import logging
import socket
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.testing.broker import STOP_TIMEOUT_S, Broker, PortTaken
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.ivy import KAFKA_VERSION, kafka_libs
from spark_group_source.testing.ports import HOST, free_ports
from spark_group_source.testing.properties import parse_properties
from spark_group_source.testing.watchdog import Watchdog

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
POLL_S = 0.05
ANSWER_TIMEOUT_S = 10.0
START_ATTEMPTS = 3
MAX_REPLICATION = 3


class Cluster:
    """Kafka nodes in child processes, from :meth:`open` to :meth:`close`; see ``EmbeddedKafka``."""

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (),
        version: str = KAFKA_VERSION,
        heap: str = "512m",
    ) -> None:
        self._count = brokers
        self._config = dict(config or {})
        self._listeners = ("PLAINTEXT", *listeners)
        self._version = version
        self._heap = heap
        self.libs = Path()
        self.directory = Path()
        self._cluster_id = ""
        self._brokers: dict[int, Broker] = {}
        self._ports: dict[tuple[int, str], int] = {}
        self._closing = contextlib.ExitStack()

    def open(self) -> None:
        """Fetches Kafka where it is not cached yet, starts it and waits until it answers."""
        self.libs = kafka_libs(self._version)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_cluster()
                return
            except BaseException as error:
                self.close()
                if attempt == START_ATTEMPTS or not isinstance(error, PortTaken):
                    raise

    def close(self) -> None:
        """Stops every node and deletes the cluster's directory. Harmless when repeated."""
        for broker in self._brokers.values():
            # Nothing of it is kept: the time of an orderly stop would be for nothing.
            broker.kill()
        self._brokers.clear()
        self._closing.close()

    # What and where it is

    @property
    def version(self) -> tuple[int, ...]:
        """Of Kafka, as numbers: (4, 1, 1)."""
        return tuple(int(each) for each in self._version.split("."))

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, with commas between them."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """``host:port`` of that listener of every node, with commas between them."""
        return ",".join(f"{HOST}:{self._ports[node, listener]}" for node in self._nodes())

    def pid(self, node: int = 1) -> int | None:
        """Process id of a node while it runs."""
        return self._brokers[node].pid

    def log_tail(self, node: int = 1) -> str:
        """The end of a node's log."""
        return self._brokers[node].log_tail()

    # What happens to it: to one node, or to all of them where none is named

    def kill(self, node: int | None = None) -> None:
        """Ends it as a crash would (SIGKILL)."""
        for broker in self._chosen(node):
            broker.kill()

    def stop(self, node: int | None = None) -> None:
        """Stops it in order (SIGTERM). Data and ports stay for :meth:`start`."""
        chosen = self._chosen(node)
        for broker in chosen:
            broker.terminate()
        deadline = Deadline.after(STOP_TIMEOUT_S)
        for broker in chosen:
            broker.wait(deadline)

    def start(self, node: int | None = None) -> None:
        """Starts it again after :meth:`kill` or :meth:`stop`, on its old data and ports, and waits until it answers."""
        deadline = Deadline.after(START_TIMEOUT_S)
        for broker in self._chosen(node):
            broker.start()
        self._await_ready(deadline)

    def restart(self, node: int | None = None) -> None:
        """:meth:`stop`, then :meth:`start`."""
        self.stop(node)
        self.start(node)

    def pause(self, node: int | None = None) -> None:
        """Stands it still (SIGSTOP): its connections stay open and nothing answers."""
        for broker in self._chosen(node):
            broker.pause()

    def resume(self, node: int | None = None) -> None:
        """Lets it go on after :meth:`pause`."""
        for broker in self._chosen(node):
            broker.resume()

    # Starting

    def _nodes(self) -> range:
        return range(1, self._count + 1)

    def _chosen(self, node: int | None) -> list[Broker]:
        return list(self._brokers.values()) if node is None else [self._brokers[node]]

    def _start_cluster(self) -> None:
        began = time.monotonic()
        deadline = Deadline.after(START_TIMEOUT_S)
        self.directory = Path(tempfile.mkdtemp(prefix="embedded-kafka-"))
        watchdog = Watchdog(self.directory)
        self._closing.callback(watchdog.close)
        names = (*self._listeners, "CONTROLLER")
        ports = iter(free_ports(self._count * len(names)))
        self._ports = {(node, name): next(ports) for node in self._nodes() for name in names}
        self._cluster_id = new_cluster_id()
        for node in self._nodes():
            place = self.directory / f"node-{node}"
            broker = Broker(node, place, self._properties(node), self.libs, self._heap, watchdog)
            broker.format(self._cluster_id)
            self._brokers[node] = broker
        for broker in self._brokers.values():
            broker.start()
        self._await_ready(deadline)
        log.info("Kafka %s is up at %s after %.1f s", self._version, self.bootstrap_servers, time.monotonic() - began)

    def _properties(self, node: int) -> dict[str, str]:
        shipped = resources.files("spark_group_source.testing").joinpath("broker.properties").read_text("utf-8")
        named = {name: f"{name}://{HOST}:{self._ports[node, name]}" for name in (*self._listeners, "CONTROLLER")}
        replication = str(min(self._count, MAX_REPLICATION))
        security = [f"{name}:{name}" for name in self._listeners]
        return {
            **parse_properties(shipped),
            "node.id": str(node),
            "controller.quorum.voters": ",".join(
                f"{each}@{HOST}:{self._ports[each, 'CONTROLLER']}" for each in self._nodes()
            ),
            "listeners": ",".join(named.values()),
            "advertised.listeners": ",".join(named[name] for name in self._listeners),
            "listener.security.protocol.map": ",".join([*security, "CONTROLLER:PLAINTEXT"]),
            "inter.broker.listener.name": "PLAINTEXT",
            "default.replication.factor": replication,
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": "1",
            **{name: value.replace("{node}", str(node)) for name, value in self._config.items()},
        }

    def _await_ready(self, deadline: Deadline) -> None:
        """Waits until every node that runs answers a request of its own and the cluster counts it in."""
        running = {node for node, broker in self._brokers.items() if broker.pid is not None}
        for node in sorted(running):
            self._await_port(node, deadline)
        waiting = sorted(running)
        while waiting:
            if running <= self._registered(waiting[0]):
                waiting.pop(0)
            else:
                self._pause_before_retry(waiting[0], deadline)

    def _await_port(self, node: int, deadline: Deadline) -> None:
        # Before any Kafka client is made: theirs log errors and back off where nothing listens yet.
        while True:
            try:
                socket.create_connection((HOST, self._ports[node, "PLAINTEXT"]), timeout=1.0).close()
            except OSError:
                self._pause_before_retry(node, deadline)
            else:
                return

    def _registered(self, node: int) -> set[int]:
        """The ids of the brokers in the metadata of that node; none while something else answers on its port.

        Asked by hand: kafka-python's describe_cluster fails at brokers before Kafka 3.7 (KeyError: endpoint_type).
        """
        from kafka.protocol.metadata import MetadataRequest

        from spark_group_source.wire import versions
        from spark_group_source.wire.connection import Connection
        from spark_group_source.wire.settings import WireOptions

        port = self._ports[node, "PLAINTEXT"]
        deadline = Deadline.after(ANSWER_TIMEOUT_S)
        options = WireOptions(((HOST, port),), "embedded-kafka")
        request = MetadataRequest(version=versions.METADATA, topics=[], allow_auto_topic_creation=False)
        try:
            with contextlib.closing(Connection.open(HOST, port, options, deadline)) as connection:
                told = connection.call(request, deadline)
        except GroupSourceError:
            return set()
        return {each.node_id for each in told.brokers} if told.cluster_id == self._cluster_id else set()

    def _pause_before_retry(self, node: int, deadline: Deadline) -> None:
        broker = self._brokers[node]
        broker.check_alive()
        if deadline.expired():
            raise EmbeddedKafkaError(
                f"Broker {node} was not ready after {START_TIMEOUT_S:.0f} s. Its log says: {broker.log_of_trouble()}",
                "Look there for the reason; give it more heap where it was collecting garbage.",
            )
        time.sleep(POLL_S)


def new_cluster_id() -> str:
    """A random one in Kafka's form. None starts with a dash, which Kafka's tools would take for an option."""
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not found.startswith("-"):
            return found
