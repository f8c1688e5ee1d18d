"""The nodes of an embedded Kafka: their ports and properties, and how they start, stop and fail together."""

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
from spark_group_source.testing.broker_process import STOP_TIMEOUT_S, BrokerProcess, PortTaken
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.ivy import KAFKA_VERSION, kafka_libs
from spark_group_source.testing.java import BRIEF
from spark_group_source.testing.ports import HOST, free_ports
from spark_group_source.testing.watchdog import Watchdog

log = logging.getLogger(__name__)


def parse_properties(text: str) -> dict[str, str]:
    """Returns the properties; raises ValueError for a line that is neither blank, comment nor ``name=value``."""
    properties = {}
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"not a property: {line!r}")
        properties[name.strip()] = value.strip()
    return properties


ZOOKEEPER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

START_TIMEOUT_S = 60.0

POLL_S = 0.05

ANSWER_TIMEOUT_S = 10.0

START_ATTEMPTS = 3

MAX_REPLICATION = 3


class BrokerCluster:
    """Kafka nodes in child processes, from :meth:`open` to :meth:`close`; see ``EmbeddedKafka``."""

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        listeners: Sequence[str] = (),
        version: str = KAFKA_VERSION,
        heap: str = "512m",
        jvm_flags: Sequence[str] = (BRIEF,),
    ) -> None:
        self._count = brokers
        self._config: dict[str, str] = {}
        if config is not None:
            self._config.update(config)
        self._listeners = ("PLAINTEXT", *listeners)
        self._version = version
        self._heap = heap
        self._jvm_flags = jvm_flags
        self.libs = Path()
        self.directory = Path()
        self._cluster_id = ""
        self._brokers: dict[int, BrokerProcess] = {}
        self._ports: dict[tuple[int, str], int] = {}
        self._closing = contextlib.ExitStack()

    def open(self) -> None:
        """Downloads Kafka if it is not cached yet, starts it and waits until it is ready.

        Does nothing if it is open already, so that a notebook's cell may run again. Nodes that were stopped since stay
        stopped: see :meth:`start`.
        """
        is_open = bool(self._brokers)
        if is_open:
            return
        self.libs = kafka_libs(self._version)
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._start_cluster()
                return
            except PortTaken:
                self.close()
                if attempt == START_ATTEMPTS:
                    raise
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Stops every node and deletes the cluster's directory. May be repeated."""
        self._forget_clients()
        for broker in self._brokers.values():
            # Nothing of the node is kept, so an orderly shutdown would only cost time.
            broker.kill()
        self._brokers.clear()
        self._closing.close()

    # Addresses and processes

    @property
    def version(self) -> tuple[int, ...]:
        """Kafka's version as numbers: (4, 1, 1)."""
        return tuple(int(each) for each in self._version.split("."))

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of every node, separated by commas."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Returns ``host:port`` of a listener of every node, separated by commas."""
        return ",".join(f"{HOST}:{self._ports[node, listener]}" for node in self._nodes())

    def pid(self, node: int = 1) -> int | None:
        """Returns the process id of a node, or ``None`` if it does not run."""
        return self._brokers[node].pid

    def log_tail(self, node: int = 1) -> str:
        """Returns the end of a node's log."""
        return self._brokers[node].log_tail()

    # Failures and restarts: of one node, or of all nodes if no node is given

    def kill(self, node: int | None = None) -> None:
        """Ends the process like a crash (SIGKILL)."""
        for broker in self._selected(node):
            broker.kill()

    def stop(self, node: int | None = None) -> None:
        """Stops the process in order (SIGTERM). Data and ports stay for :meth:`start`."""
        brokers = self._selected(node)
        for broker in brokers:
            broker.terminate()
        deadline = Deadline.after(STOP_TIMEOUT_S)
        for broker in brokers:
            broker.wait(deadline)

    def start(self, node: int | None = None) -> None:
        """Starts again after :meth:`kill` or :meth:`stop`, with the same data and ports, and waits until ready."""
        deadline = Deadline.after(START_TIMEOUT_S)
        for broker in self._selected(node):
            broker.start()
        self._await_ready(deadline)

    def restart(self, node: int | None = None) -> None:
        """:meth:`stop`, then :meth:`start`."""
        self.stop(node)
        self.start(node)

    def pause(self, node: int | None = None) -> None:
        """Suspends the process (SIGSTOP): connections stay open, but the broker does not respond."""
        for broker in self._selected(node):
            broker.pause()

    def resume(self, node: int | None = None) -> None:
        """Continues the process after :meth:`pause`."""
        for broker in self._selected(node):
            broker.resume()

    def _forget_clients(self) -> None:
        """Closes the clients that a subclass keeps, because nodes are about to change."""

    # Starting

    def _nodes(self) -> range:
        return range(1, self._count + 1)

    def _selected(self, node: int | None) -> list[BrokerProcess]:
        self._forget_clients()
        if node is None:
            return list(self._brokers.values())
        return [self._brokers[node]]

    def _start_cluster(self) -> None:
        started_at = time.monotonic()
        deadline = Deadline.after(START_TIMEOUT_S)
        self.directory = Path(tempfile.mkdtemp(prefix="embedded-kafka-"))
        watchdog = Watchdog(self.directory)
        self._closing.callback(watchdog.close)
        self._choose_ports()
        self._cluster_id = new_cluster_id()
        for node in self._nodes():
            directory = self.directory / f"node-{node}"
            properties = self._properties(node)
            broker = BrokerProcess(node, directory, properties, self.libs, self._heap, self._jvm_flags, watchdog)
            if not self._uses_zookeeper:
                broker.format(self._cluster_id)
            self._brokers[node] = broker
        if self._uses_zookeeper:
            self._start_zookeeper(watchdog)
        for broker in self._brokers.values():
            broker.start()
        self._await_ready(deadline)
        log.info(
            "Kafka %s is up at %s after %.1f s", self._version, self.bootstrap_servers, time.monotonic() - started_at
        )

    def _choose_ports(self) -> None:
        names = (*self._listeners, "CONTROLLER")
        ports = iter(free_ports(self._count * len(names)))
        for node in self._nodes():
            for name in names:
                self._ports[node, name] = next(ports)

    @property
    def _uses_zookeeper(self) -> bool:
        return self.version < (3, 3)

    def _start_zookeeper(self, watchdog: Watchdog) -> None:
        directory = self.directory / "zookeeper"
        port = str(self._ports[1, "CONTROLLER"])
        properties = {"dataDir": str(directory), "clientPort": port, "clientPortAddress": HOST}
        properties["admin.enableServer"] = "false"
        zookeeper = BrokerProcess(0, directory, properties, self.libs, self._heap, (), watchdog, main=ZOOKEEPER)
        self._closing.callback(zookeeper.kill)
        zookeeper.start()
        self._await_port(1, Deadline.after(START_TIMEOUT_S), "CONTROLLER")

    def _properties(self, node: int) -> dict[str, str]:
        shipped = resources.files("spark_group_source.testing").joinpath("broker.properties").read_text("utf-8")
        advertised = [f"{name}://{HOST}:{self._ports[node, name]}" for name in self._listeners]
        controller = f"CONTROLLER://{HOST}:{self._ports[node, 'CONTROLLER']}"
        if self._uses_zookeeper:
            roles = {"broker.id": str(node), "zookeeper.connect": f"{HOST}:{self._ports[1, 'CONTROLLER']}"}
            listeners = advertised
        else:
            roles = {
                "node.id": str(node),
                "controller.quorum.voters": self._voters(),
                "process.roles": "broker,controller",
                "controller.listener.names": "CONTROLLER",
            }
            listeners = [*advertised, controller]
        security = [f"{name}:{name}" for name in self._listeners]
        replication = str(min(self._count, MAX_REPLICATION))
        return {
            **parse_properties(shipped),
            **roles,
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join([*security, "CONTROLLER:PLAINTEXT"]),
            "inter.broker.listener.name": "PLAINTEXT",
            "default.replication.factor": replication,
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": "1",
            **{name: value.replace("{node}", str(node)) for name, value in self._config.items()},
        }

    def _voters(self) -> str:
        return ",".join([f"{node}@{HOST}:{self._ports[node, 'CONTROLLER']}" for node in self._nodes()])

    def _await_ready(self, deadline: Deadline) -> None:
        """Waits until every running node responds and knows all running nodes."""
        running = set()
        for node, broker in self._brokers.items():
            if broker.pid is not None:
                running.add(node)
        for node in sorted(running):
            self._await_port(node, deadline)
        for node in sorted(running):
            while not running <= self._known_brokers(node):
                self._wait_before_retry(node, deadline)

    def _await_port(self, node: int, deadline: Deadline, listener: str = "PLAINTEXT") -> None:
        # Before the first Kafka client: clients log errors and back off if nothing listens yet.
        while True:
            try:
                socket.create_connection((HOST, self._ports[node, listener]), timeout=1.0).close()
            except OSError:
                self._wait_before_retry(node, deadline)
            else:
                return

    def _known_brokers(self, node: int) -> set[int]:
        """Returns the broker ids in a node's metadata; none if another program responds on its port.

        Sends its own request: kafka-python's describe_cluster fails before Kafka 3.7 (KeyError: endpoint_type).
        """
        from kafka.protocol.metadata import MetadataRequest

        from spark_group_source.wire.connection import Connection
        from spark_group_source.wire.wire_options import WireOptions

        port = self._ports[node, "PLAINTEXT"]
        deadline = Deadline.after(ANSWER_TIMEOUT_S)
        options = WireOptions(((HOST, port),), "embedded-kafka")
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        try:
            with contextlib.closing(Connection.open(HOST, port, options, deadline)) as connection:
                response = connection.call(request, deadline)
        except GroupSourceError:
            return set()
        # ZooKeeper chooses another id.
        is_other_program = not self._uses_zookeeper and response.cluster_id != self._cluster_id
        if is_other_program:
            return set()
        return {broker.node_id for broker in response.brokers}

    def _wait_before_retry(self, node: int, deadline: Deadline) -> None:
        broker = self._brokers[node]
        broker.check_alive()
        if deadline.expired():
            raise EmbeddedKafkaError(
                f"Broker {node} was not ready after {START_TIMEOUT_S:.0f} s."
                f" Its log says: {broker.log_from_first_error()}",
                "Look for the reason in the log. If the log shows long garbage collections, raise the heap.",
            )
        time.sleep(POLL_S)


def new_cluster_id() -> str:
    """Returns a random cluster id. Kafka's tools would take one that starts with a dash for an option."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id
