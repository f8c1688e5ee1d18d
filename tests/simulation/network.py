"""A simulated network: kafka-python's messages between the processes and the brokers, and what may happen to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.wire import connection
from spark_group_source.wire.response import Response, header_size
from spark_group_source.wire.waiting import Interrupted
from spark_group_source.wire.wire_options import WireOptions
from tests.fake.faults import Fault, respond
from tests.simulation.scheduler import Process, Scheduler, Thread, Wakeup

LATENCY, MAX_LATENCY = 0.002, 0.08
KEEPALIVE = 30.0
"""Seconds after which the system ends a connection whose other end is silent: see ``KEEPALIVE`` of the source."""

BLOCKING = {"JoinGroup", "SyncGroup", "Fetch"}
"""Requests that a broker answers later; each has a thread of its own there."""

ERRORS: dict[str, tuple[int, ...]] = {
    "FindCoordinator": (14, 15),
    "JoinGroup": (14, 15, 16, 23, 81),
    "SyncGroup": (14, 15, 16),
    "Heartbeat": (14, 15, 16),
    "ConsumerGroupHeartbeat": (14, 15, 16, 35, 81, 112),
    "OffsetCommit": (7, 14, 15, 16, -1),
    "OffsetFetch": (14, 15, 16, -1),
    "ListOffsets": (3, 5, 6, 7, 74, 75),
    "OffsetForLeaderEpoch": (6, 74, 75),
    "Metadata": (3, 5),
    "Fetch": (6, 9, 56, 74, 75, 100),
}
"""Error codes that heal, by request. A broker that is upgraded, or a full group, may refuse a member for a while."""

LEADER_NOT_AVAILABLE, NOT_COORDINATOR, REBALANCING = 5, 16, 27
HANDLED, LATE_ARRIVES = " is handled", "late request arrives"
LIVENESS = "HeartbeatRequest", "SyncGroupRequest"

NO_FAULT = Fault()

FATAL_AT_FIRST = {23, 35, 81, 112}
"""Error codes that end a query which was never a member."""

LATEST = 12.0
"""Seconds after which a late request has arrived."""

RETRANSMITTED = 0.3
"""Seconds after a cut until what was sent during it arrives."""

LOST_REQUEST, LOST_ANSWER, CUT_BEFORE, CUT_AFTER, LATE_REQUEST, SLOW_ANSWER, THROTTLED, REFUSED = (
    "request is lost",
    "answer is lost",
    "connection is cut before the request",
    "connection is cut before the answer",
    "request arrives late",
    "answer comes late",
    "client is throttled",
    "broker answers with an error",
)
FAULTS = (LOST_REQUEST, LOST_ANSWER, CUT_BEFORE, CUT_AFTER, LATE_REQUEST, SLOW_ANSWER, THROTTLED, REFUSED)


class Broken(AssertionError):
    """A sentence of the contract is broken."""


class Broker:
    """In the place of ``FakeBroker``: what a broker is on the network.

    ``cluster_id`` is set of one that belongs to another cluster.
    """

    def __init__(self, node: int, handle: Callable[[str, Any, int], Any], faults: Any) -> None:
        self.node = node
        self.cluster_id: str | None = None
        self.port = 9000 + node
        self.up = True
        self.hung = False
        self.hung_until = 0.0
        self.sent_while_muted = 0
        self.handle = handle
        self.faults = faults
        self.channels: list[Channel] = []

    def start(self) -> None:
        self.up = True
        Connection.network.brokers[self.port] = self

    def stop(self) -> None:
        """Refuses new connections and ends open ones."""
        self.up = False
        self.disconnect()

    def disconnect(self) -> None:
        for channel in list(self.channels):
            channel.cut()

    def join(self) -> None:
        pass


@dataclass
class Link:
    """One direction or both between a process and a broker are cut until these times."""

    to_broker: float = 0.0
    to_client: float = 0.0


class Network:
    """Carries messages, with faults by chance while ``fault_probability`` is above 0."""

    def __init__(
        self,
        run: Scheduler,
        brokers: dict[int, Broker],
        faulted: Callable[[str], None],
        channel: type[Channel] | None = None,
    ) -> None:
        self.run = run
        self.channel = channel or Channel
        self.versions: dict[bool, Any] = {}
        self.brokers = {broker.port: broker for broker in brokers.values()}
        self.fault_probability = 0.0
        self.faulted = faulted
        self.links: dict[tuple[str, int], Link] = {}
        self.former: dict[int, tuple[float, Callable[[], AbstractContextManager[None]]]] = {}
        """Brokers that do not know for a while that they are no coordinators now, and the offsets that each knows."""
        self.weights: list[float] = []
        self.arrived_late: Callable[[str], None] = lambda _: None
        self.handled: Callable[[Process, int, str, Any, Any], None] = lambda *_: None
        self.answered: Callable[[Process, Any], None] = lambda *_: None
        self.heard: dict[str, float] = {}
        """When a process last sent the group a sign of life that was answered."""
        self.joins: dict[str, float] = {}
        """When a process last sent a join."""
        self.know_cluster: set[str] = set()
        """Processes that know which cluster is theirs: any other takes the first that it asks for its own."""
        self.unanswered: dict[str, float] = {}
        """When a broker last dropped a join of each process for an older one that arrived later, as Kafka does."""
        self.members: set[str] = set()
        """Processes that have been members."""
        self.with_records: Callable[[Iterable[OffsetRange]], set[TopicPartition]] = lambda _: set()
        """Those partitions of ranges that have a record there."""
        self.sent_by: Callable[[Process, str, Any], None] = lambda *_: None
        """Makes a request that of another client: its process is none of ours."""
        self.server = Process("brokers")

    def link(self, process: Process, broker: Broker) -> Link:
        key = process.name, broker.node
        return self.links.get(key) or self.links.setdefault(key, Link())

    def heal(self) -> None:
        """No fault happens from now on."""
        self.fault_probability = 0.0
        self.links.clear()
        self.former.clear()
        for broker in self.brokers.values():
            broker.up, broker.hung_until = True, 0.0

    def connect(self, port: int, deadline: Deadline) -> Channel:
        """Opens a connection; raises :class:`TimeoutError` or :class:`ConnectionRefusedError`."""
        run, broker = self.run, self.brokers.get(port)
        process = run.process
        run.block(min(run.now + LATENCY, deadline.at))
        if broker is None:
            raise ConnectionRefusedError("Connection refused")
        link = self.link(process, broker)
        if max(link.to_broker, link.to_client) > run.now:
            run.block(deadline.at)
            raise TimeoutError("timed out")
        if not broker.up or (broker.cluster_id and process.name not in self.know_cluster):
            raise ConnectionRefusedError("Connection refused")
        channel = self.channel(self, process, broker)
        broker.channels.append(channel)
        return channel

    def fault(self, process: Process, api: str, epoch: int) -> str:
        kind = f"{process.name} {api}"
        place = {0: "JoinGroup", -1: "LeaveGroup", -2: "LeaveGroup"}.get(epoch, api)
        if place == "JoinGroup":
            self.joins[process.name] = self.run.now
        fault = self.run.passing(place)
        probability = self.fault_probability
        if probability > 0 and not fault and api != "ApiVersions":
            self.weights = self.weights or self.run.chance.weights(len(FAULTS))
            fault = self.run.chance.pick(f"fault of {kind}", "", FAULTS, probability, self.weights)
        if fault:
            self.faulted(f"{kind}: the {fault}")
        return fault


class Channel:
    """One connection, in the place of its socket."""

    def __init__(self, network: Network, process: Process, broker: Broker) -> None:
        self.network = network
        self.process = process
        self.broker = broker
        self.closed = False
        self.ended = False
        self.arrived: deque[tuple[int, Any]] = deque()
        self._waiting: list[Thread] = []

    def setsockopt(self, *_: object) -> None:
        pass

    def getpeername(self) -> None:
        raise OSError("a channel has no address")

    def close(self) -> None:
        self.closed = True
        if self in self.broker.channels:
            self.broker.channels.remove(self)

    def cut(self) -> None:
        """The broker's end or the network ends the connection."""
        self.ended = True
        if self in self.broker.channels:
            self.broker.channels.remove(self)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            self.network.run.wake(each)

    def send(self, request: Any, number: int) -> None:
        """Sends a request; it arrives later, or not."""
        if self.ended:
            raise ConnectionResetError("the broker closed the connection")
        network, run = self.network, self.network.run
        api = request.name.removesuffix("Request")
        fault = network.fault(self.process, api, getattr(request, "member_epoch", 1))
        latency = run.chance.number(f"latency of {self.process.name}", LATENCY, 0.001, MAX_LATENCY, 0.2)
        if fault == LATE_REQUEST:
            latency = run.chance.number("late request", 1.0, 0.3, LATEST)
        if fault in (LOST_REQUEST, LOST_ANSWER):
            run.after(KEEPALIVE, self.cut, awaited=False)
        if fault != LOST_REQUEST:
            run.after(latency, lambda: self._arrive(api, request, number, fault))
        run.point()

    def _arrive(self, api: str, request: Any, number: int, fault: str) -> None:
        run, broker, network = self.network.run, self.broker, self.network
        if (cut_until := network.link(self.process, broker).to_broker) > run.now:
            run.at(cut_until + RETRANSMITTED, lambda: self._arrive(api, request, number, fault))
            return
        if not broker.up or fault == CUT_BEFORE:
            self.cut()
            return
        if broker.cluster_id and api != "ApiVersions":
            raise Broken(f"I2: {self.process.name} sends {api} to a broker of another cluster")
        if broker.hung_until > run.now:
            until = min(broker.hung_until, run.now + 1.0)  # it may heal before
            run.at(until, lambda: self._arrive(api, request, number, fault))
            return
        if self._comes_too_late(api, request):
            return
        if fault == LATE_REQUEST:
            network.arrived_late(f"{self.process.name} {api}: the late request arrives")
            run.after(0.0, lambda: run.passing(LATE_ARRIVES))
        # A request on its way arrives although its client has closed the connection.
        if api in BLOCKING:
            Thread(
                target=self._handle, args=(api, request, number, fault), name="handler", process=network.server
            ).start()
        else:
            self._handle(api, request, number, fault)

    def _comes_too_late(self, api: str, request: Any) -> bool:
        """Whether a request of a process that has ended must not arrive, because no broker can tell that it is late."""
        process = self.process
        if process.dead or process.ended:
            # It would fence the process that has the instance id now, as another client of the same id does.
            for name in ("group_instance_id", "instance_id"):
                if getattr(request, name, None):
                    return True
        # A commit without membership has no generation.
        return process.ended and api == "OffsetCommit" and not request.member_id

    def _handle(self, api: str, request: Any, number: int, fault: str) -> None:
        run, network = self.network.run, self.network
        code = 0
        if fault == REFUSED and api in ERRORS:
            code = self._refusal(api, request)
        unaware_until, former_offsets = network.former.get(self.broker.node, (0.0, nullcontext))
        offsets: Callable[[], AbstractContextManager[None]] = nullcontext
        writes = api in ("OffsetCommit", "SyncGroup") or getattr(request, "member_epoch", 1) == 0
        if unaware_until > run.now:
            if writes:
                code, offsets = NOT_COORDINATOR, former_offsets  # what it writes reaches no other broker
            elif api == "OffsetFetch":
                code, offsets = 0, former_offsets
        error = NO_FAULT
        if code:
            error = Fault(error=code)
        network.sent_by(self.process, api, request)
        with offsets():
            response = respond(self.broker.handle, api, request, error)
        if response is None:  # the client has sent it again, which may have arrived before
            if not self.closed and not self.ended:
                network.unanswered[self.process.name] = run.now
            return
        network.handled(self.process, self.broker.node, api, request, response)
        run.passing(api + HANDLED)
        self._send_answer(number, response, fault)

    def _refusal(self, api: str, request: Any) -> int:
        """The error code of a refused request. One that ends a query at its first join is for members only."""
        usual = ERRORS[api][0]
        code = self.network.run.chance.pick(f"error of {api}", usual, ERRORS[api][1:], 0.8)
        if api == "Metadata" and request.topics is None:
            code = LEADER_NOT_AVAILABLE  # a list of all topics has none that is unknown
        leaves = getattr(request, "member_epoch", 0) < 0
        may_be_fatal = not leaves and self.process.name in self.network.members
        if code in FATAL_AT_FIRST and not may_be_fatal:
            return usual
        return code

    def _send_answer(self, number: int, response: Any, fault: str) -> None:
        run = self.network.run
        if fault == CUT_AFTER:
            self.cut()
            return
        if fault == LOST_ANSWER or not self.broker.up:
            return
        if fault == THROTTLED and "throttle_time_ms" in type(response)._struct.fields:
            response.throttle_time_ms = 1500
        latency = run.chance.number(f"answer's latency of {self.process.name}", LATENCY, 0.001, MAX_LATENCY, 0.2)
        if fault == SLOW_ANSWER:
            latency = run.chance.number("late answer", 1.0, 0.3, 12.0)
        run.after(latency, lambda: self._answer(number, response))

    def _answer(self, number: int, response: Any) -> None:
        run = self.network.run
        if (cut_until := self.network.link(self.process, self.broker).to_client) > run.now:
            run.at(cut_until + RETRANSMITTED, lambda: self._answer(number, response))
            return
        if not self.closed and not self.ended:
            self.network.answered(self.process, response)
            self.arrived.append((number, response))
            self._wake()

    def is_set(self) -> bool:
        """Whether something can be received."""
        return bool(self.arrived) or self.ended

    def waiting(self, thread: Thread) -> None:
        """What arrives wakes this thread, which waits for something else too."""
        self._waiting.append(thread)

    def wait(self, deadline: Deadline) -> bool:
        """Waits until a response has come or the connection has ended; false at the deadline."""
        run, wakeup = self.network.run, deadline.wakeup
        while True:
            if wakeup is not None:
                assert isinstance(wakeup, Wakeup)
                if wakeup.is_set():
                    raise Interrupted
            if self.is_set():
                return True
            if run.now >= deadline.at:
                return False
            me = run.me()
            self._waiting.append(me)
            if wakeup is not None:
                wakeup.waiting(me)
            run.block(deadline.at)

    def receive(self, deadline: Deadline) -> tuple[int, Any]:
        if not self.wait(deadline):
            raise TimeoutError
        if not self.arrived:
            raise ConnectionResetError("the broker closed the connection")
        return self.arrived.popleft()


class Connection(connection.Connection):
    """In the place of the real one: the same but for the socket and the bytes."""

    network: Network

    def _check_versions(self, options: WireOptions, deadline: Deadline, *, eager: bool = False) -> None:
        """One answer serves all connections of a simulated run: its message has dozens of parts."""
        versions = self.network.versions if self.network.channel is Channel else {}
        if options.consumer_protocol not in versions:
            super()._check_versions(options, deadline)
            versions[options.consumer_protocol] = self.supported
        self.supported = versions[options.consumer_protocol]

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        options: WireOptions,
        deadline: Deadline,
        broker_id: int | None = None,
        *,
        eager: bool = False,
    ) -> Connection:
        try:
            channel: Any = cls.network.connect(port, deadline)
        except OSError as error:
            raise BrokerUnavailable(f"Broker {host}:{port} cannot be reached ({error}).") from error
        opened = cls(channel, host, port, options, broker_id)
        try:
            opened._check_versions(options, deadline)
        except BaseException:
            opened.close()
            raise
        return opened

    def request_cluster_id(self, deadline: Deadline) -> str | None:
        """Costs no message: the real connection asks its broker. Each broker of the cluster has its own address."""
        channel: Any = self._open_socket()
        if channel.broker.cluster_id is None:
            self.advertised_by = channel.broker.node
        cluster_id: str | None = channel.broker.cluster_id
        return cluster_id

    def send(self, request: Any, deadline: Deadline) -> None:
        if not self.closed:
            self._throttle.wait(request.name, deadline)
        self._choose_version(request)
        self._correlation_id += 1
        request.with_header(correlation_id=self._correlation_id, client_id=self._client_id)
        self.used_at = self.network.run.now
        sent = connection._InFlight(self._correlation_id, request, self.used_at)
        with self._close_on_failure(sent, deadline):
            channel: Any = self._open_socket()
            channel.send(request, self._correlation_id)
            self._in_flight.append(sent)

    def wait_for_response(self, deadline: Deadline) -> bool:
        if self._socket is None:
            raise BrokerUnavailable(f"The connection to broker {self} was closed.")
        channel: Any = self._socket
        return bool(channel.wait(deadline))

    def receive(self, deadline: Deadline) -> Any:
        sent = self._in_flight[0]
        with self._close_on_failure(sent, deadline):
            channel: Any = self._open_socket()
            number, response = channel.receive(deadline)
            assert number == sent.correlation_id
            self._in_flight.popleft()
            self.responded_at = self.network.run.now
            self._served |= sent.request.name != "ApiVersionsRequest"
            if isinstance(response, bytes):
                response = self._decoded(sent.request, memoryview(response))
            self._throttle.record(getattr(response, "throttle_time_ms", 0) / 1000)
            if sent.request.name.endswith(LIVENESS) and response.error_code in (0, REBALANCING):
                heard, name = self.network.heard, channel.process.name
                heard[name] = max(sent.sent_at, heard.get(name, 0.0))  # a sync is answered after later heartbeats
                joins = sent.request.name in ("SyncGroupRequest", "ConsumerGroupHeartbeatRequest")
                if joins and not response.error_code and getattr(sent.request, "member_epoch", 0) >= 0:
                    self.network.members.add(channel.process.name)
            return response

    def receive_raw(self, deadline: Deadline) -> Response:
        sent = self._in_flight[0]
        with self._close_on_failure(sent, deadline):
            channel: Any = self._open_socket()
            _, frame = channel.receive(deadline)
            self._in_flight.popleft()
            self.responded_at = self.network.run.now
            response = self._response(sent.request, memoryview(frame))
            self._throttle.record(response.throttle_time())
            return response

    def fileno(self) -> Any:
        return self._open_socket()

    def _response(self, request: Any, frame: memoryview) -> Response:
        header = header_size(request, frame)
        if header is None:
            raise self._malformed_response(request)
        return Response(request, frame[header:], bytearray())

    def _decoded(self, request: Any, frame: memoryview) -> Any:
        try:
            return self._response(request, frame).decode()
        except Exception as error:
            raise self._malformed_response(request) from error

    def is_reusable(self) -> bool:
        channel: Any = self._socket
        return channel is not None and not self._in_flight and not channel.ended and not channel.arrived
