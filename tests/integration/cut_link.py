"""Two brokers with a separate network for one query: one broker is the group's coordinator, the other leads the topic.

Only that query uses the listener, which advertises a link: a TCP proxy that a test can cut. So the query loses its
coordinator and keeps its leader. All other clients keep both brokers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.broker import HOST, free_ports
from spark_group_source.wire.cluster import Cluster
from tests.integration.standing import wire

CHUNK = 65536
LISTENER = "CUT"
RESPONSE_TIMEOUT_S = 60.0


class Link:
    """Forwards between clients and a broker; ``upstream`` returns the broker's port."""

    def __init__(self, upstream: Callable[[], int]) -> None:
        self.port = free_ports(1)[0]
        self._upstream = upstream
        self._flowing = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._server: socket.socket | None = None
        self.heal()

    def swallow(self) -> None:
        """Stops forwarding. Connections stay, and new connections succeed; :meth:`heal` delivers what was sent."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Ends all connections and refuses new connections."""
        server, self._server = self._server, None
        if server is not None:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            server.close()
        with self._lock:
            for each in self._sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Forwards again."""
        self._flowing.set()
        if self._server is None:
            self._server = socket.create_server((HOST, self.port))
            threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """Closes the link and ends all of its threads."""
        self.refuse()
        self._flowing.set()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection((HOST, self._upstream())) as broker:
            with self._lock:
                self._sockets |= {client, broker}
            answers = threading.Thread(target=self._pump, args=(broker, client), daemon=True)
            answers.start()
            self._pump(client, broker)
            answers.join()
            with self._lock:
                self._sockets -= {client, broker}

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self._flowing.wait()
                target.sendall(data)
        # The end of a connection is also a packet.
        self._flowing.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class CutKafka(EmbeddedKafka):
    """Two brokers, each with a :class:`Link` in ``links`` in front of one listener."""

    def __init__(self) -> None:
        protocols = f"PLAINTEXT:PLAINTEXT,{LISTENER}:PLAINTEXT,CONTROLLER:PLAINTEXT"
        config = {"offsets.topic.replication.factor": "1", "listener.security.protocol.map": protocols}
        super().__init__(brokers=2, config=config, listeners=(LISTENER,), heap="384m")
        self.links = {node: Link(self._upstream(node)) for node in self._nodes()}

    @property
    def linked_servers(self) -> str:
        """``host:port`` of the links, for the query that the test cuts off."""
        return ",".join(f"{HOST}:{each.port}" for each in self.links.values())

    def close(self) -> None:
        super().close()
        for each in self.links.values():
            each.close()

    def place(self, topic: str, partitions: int, group: str) -> Link:
        """Creates the topic with all leaders away from the group's coordinator; returns the link to the coordinator."""
        from kafka.admin import NewTopic

        with contextlib.closing(Cluster(wire(self))) as cluster:
            coordinator = cluster.find_coordinator(group, Deadline.after(RESPONSE_TIMEOUT_S)).id
        leader = next(node for node in self._nodes() if node != coordinator)
        wanted = NewTopic(topic, replica_assignments={number: [leader] for number in range(partitions)})
        with self.admin() as admin:
            admin.create_topics([wanted], wait_for_metadata=True)
        return self.links[coordinator]

    def _upstream(self, node: int) -> Callable[[], int]:
        return lambda: self._ports[node, LISTENER]

    def _properties(self, node: int) -> dict[str, str]:
        found = super()._properties(node)
        advertised = found["advertised.listeners"].split(",")
        own = [each for each in advertised if not each.startswith(f"{LISTENER}:")]
        return found | {"advertised.listeners": ",".join([*own, f"{LISTENER}://{HOST}:{self.links[node].port}"])}
