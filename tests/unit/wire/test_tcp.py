"""Local addresses, name resolution and socket options of connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, ProtocolError
from spark_group_source.testing.ports import free_ports
from spark_group_source.wire import reachability, resolver, sockets, tcp, waiting
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.reachability import ADDRESSES, MAX_KEPT, SERVERS
from spark_group_source.wire.waiting import poll_readable
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.unit.wire_options import LONG, after

LOOPBACK = "127.0.0.1"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield listening


def connect(server: socket.socket, **given: object) -> socket.socket:
    port = server.getsockname()[1]
    options = WireOptions(((LOOPBACK, port),), "test", **given)  # type: ignore[arg-type]
    return tcp.connect(LOOPBACK, port, options, after())


def free_range() -> tuple[int, int]:
    """Returns two consecutive ports that are free now."""
    while True:
        first = free_ports(1)[0]
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, first + 1)):
                return first, first + 1


def test_socket_buffers_have_the_configured_size_or_the_systems_default(server: socket.socket) -> None:
    with connect(server) as plain, connect(server, receive_buffer=20_000, send_buffer=30_000) as sized:
        # Linux doubles the requested size for its own bookkeeping; other systems do not.
        for option, asked in ((socket.SO_RCVBUF, 20_000), (socket.SO_SNDBUF, 30_000)):
            assert sized.getsockopt(socket.SOL_SOCKET, option) in (asked, 2 * asked)
            assert plain.getsockopt(socket.SOL_SOCKET, option) not in (asked, 2 * asked)


def test_a_connection_to_a_host_that_is_gone_ends_after_three_lost_probes(server: socket.socket) -> None:
    with connect(server) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
        names = (idle, "TCP_KEEPINTVL", "TCP_KEEPCNT")
        seconds, interval, count = (sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    assert count == 3
    assert seconds + interval * count == 10, "Linux ends the connection at a lost probe after the user timeout"


def test_connections_come_from_the_source_ports_and_use_each_port_once_per_broker(server: socket.socket) -> None:
    ports = first, last = free_range()
    with connect(server, source_ports=ports) as one, connect(server, source_ports=ports) as other:
        assert {one.getsockname()[1], other.getsockname()[1]} == {first, last}
        with pytest.raises(BrokerUnavailable, match=rf"from 0\.0\.0\.0:{first} to {last}: .*address"):
            connect(server, source_ports=ports)
        for _ in range(2):
            server.accept()[0].close()
    connect(server, source_ports=ports).close()


def test_connections_come_from_the_source_host_or_the_error_names_it(server: socket.socket) -> None:
    with connect(server, source_host="localhost") as sock:
        assert sock.getsockname()[0] == LOOPBACK
    with pytest.raises(BrokerUnavailable, match="192.0.2.1:0"):
        connect(server, source_host="192.0.2.1")
    with pytest.raises(BrokerUnavailable, match="'::1', which has no IPv4 address"):
        connect(server, source_host="::1")


def test_bootstrap_servers_are_reached_by_canonical_names_if_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getnameinfo", lambda where, flags: ("localhost", str(where[1])))
    with FakeKafka() as fake:
        port = fake.brokers[1].port
        for canonical, host in ((True, "localhost"), (False, LOOPBACK)):
            options = WireOptions(((LOOPBACK, port),), "test", canonical_bootstrap=canonical)
            with closing(Cluster(options)) as cluster:
                kept = cluster._connections.to_bootstrap(LOOPBACK, port, after())
                reused = cluster._connections.to_bootstrap(LOOPBACK, port, after())
                assert reused is kept
                assert reused.host == host


def test_a_resolver_that_hangs_times_out_and_uses_one_thread_per_host(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    asked: list[str] = []

    def silent(host: str, *_: object, flags: int = 0, **__: object) -> list[object]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror
        asked.append(host)
        told.wait(LONG)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (LOOPBACK, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    for port in range(9092, 9095):
        for host in ("one", "two"):
            with pytest.raises(DeadlineExceeded, match=f"'{host}' was not resolved"):
                tcp.connect(host, port, WireOptions((), "test"), after(0.02))
        with pytest.raises(DeadlineExceeded, match="'one' was not resolved"):
            resolver.canonical_names("one", after(0.02))
    assert sorted(asked) == ["one", "one", "two"], "addresses of each, and the names of one"
    told.set()
    assert resolver.canonical_names("one", after())


def test_a_late_result_of_the_resolver_fits_any_port(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, told = socket.getaddrinfo, threading.Event()

    def slow(*given: Any, flags: int = 0, **more: Any) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            told.wait(LONG)
        more["flags"] = flags
        return resolve(*given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pytest.raises(DeadlineExceeded):
        tcp.connect("localhost", 1, WireOptions((), "test"), after(0.02))
    threading.Timer(0.05, told.set).start()
    port = server.getsockname()[1]
    with tcp.connect("localhost", port, WireOptions((), "test"), after()) as sock:
        assert sock.getpeername() == server.getsockname()


def test_an_address_takes_no_thread_for_the_resolver(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    call = waiting.call_with_timeout

    def recorded(function: Any, deadline: Deadline, name: str) -> Any:
        names.append(name)
        return call(function, deadline, name)

    monkeypatch.setattr(resolver, "call_with_timeout", recorded)
    connect(server).close()
    assert [each[4][0] for each in resolver.resolve("::1", after())] == ["::1"]
    assert names == []
    assert resolver.resolve("localhost", after())
    assert names == ["addresses of localhost"]


def test_the_longest_timeouts_of_options_work_on_this_system(server: socket.socket) -> None:
    longest = Deadline.after((2**31 - 1) / 1000 * 2)
    with connect(server) as sock:
        sockets.set_timeout(sock, longest)
        server.accept()[0].close()
        assert poll_readable([sock.fileno()], longest.remaining())


DEAD, SILENT, ALIVE = "127.0.0.2", "127.0.0.3", LOOPBACK


@pytest.fixture
def dead(server: socket.socket) -> Iterator[int]:
    """The port of ``server``, at which another address drops every packet that would open a connection."""
    port: int = server.getsockname()[1]
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind((DEAD, port))
        full.listen(0)
        for _ in range(2):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((DEAD, port))
        yield port


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that connections were tried to, in order."""
    found: list[str] = []
    begin = tcp._begin_connecting

    def recorded(family: int, remote: Any, *more: Any) -> socket.socket:
        found.append(remote[0])
        return begin(family, remote, *more)

    monkeypatch.setattr(tcp, "_begin_connecting", recorded)
    return found


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_an_address_that_drops_packets_delays_only_the_first_connection(
    dead: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "FIRST_PATIENCE", LONG)
    resolve_to(monkeypatch, DEAD, ALIVE)
    for _ in range(3):
        with tcp.connect("broker", dead, WireOptions((), "test"), after(LONG / 4)) as sock:
            assert sock.getpeername()[0] == ALIVE
    assert tried == [DEAD, ALIVE, ALIVE, ALIVE]


def test_a_dead_address_is_given_up_before_the_deadline_and_then_gets_longer(
    dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reachability, "FIRST_PATIENCE", 0.05)
    resolve_to(monkeypatch, DEAD)
    for failures in range(3):
        assert ADDRESSES.failures((DEAD, dead)) == failures
        with pytest.raises(BrokerUnavailable, match=rf"broker:{dead} cannot be reached \({DEAD}: timed out\)"):
            tcp.connect("broker", dead, WireOptions((), "test"), after())


def test_refused_and_dead_addresses_leave_the_connection_to_the_last_one(
    dead: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = ["127.0.0.4", "127.0.0.5"]
    resolve_to(monkeypatch, refusing[0], DEAD, refusing[1], ALIVE)
    tcp.connect("broker", dead, WireOptions((), "test"), after()).close()
    assert tried == [refusing[0], DEAD, refusing[1], ALIVE]
    resolve_to(monkeypatch, *refusing)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.4: .*refused; 127\.0\.0\.5: .*refused\)"):
        tcp.connect("broker", dead, WireOptions((), "test"), after())


def test_the_deadline_ends_the_race(dead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, DEAD)
    for seconds in (0.0, 0.05):
        with pytest.raises(BrokerUnavailable, match="timed out"):
            tcp.connect("broker", dead, WireOptions((), "test"), after(seconds))


def test_addresses_for_which_no_time_was_left_are_tried_first_the_next_time(
    dead: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "NEXT_ADDRESS", 0.1)
    resolve_to(monkeypatch, DEAD, DEAD, DEAD, ALIVE)
    with pytest.raises(BrokerUnavailable, match="timed out"):
        tcp.connect("broker", dead, WireOptions((), "test"), after(0.15))
    assert ALIVE not in tried
    assert not ADDRESSES.failures((ALIVE, dead))
    tcp.connect("broker", dead, WireOptions((), "test"), after(0.15)).close()
    assert tried[-1] == ALIVE


def test_a_server_that_accepts_and_stays_silent_leaves_the_name_to_its_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeKafka() as fake, socket.create_server((SILENT, fake.brokers[1].port)):
        resolve_to(monkeypatch, SILENT, ALIVE)
        servers = (("kafka", fake.brokers[1].port),)
        options = WireOptions(servers, "test", connect_timeout=0.2, connect_timeout_max=0.2)
        for _ in range(2):
            with closing(Cluster(options)) as cluster:
                assert cluster.metadata(None, after()).brokers
    assert fake.request_count("ApiVersions") == 2


def test_after_an_address_without_a_kafka_broker_the_other_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeKafka() as fake, socket.create_server((SILENT, fake.brokers[1].port)) as web:
        port = fake.brokers[1].port
        resolve_to(monkeypatch, SILENT, ALIVE)

        def refuse() -> None:
            with web.accept()[0] as accepted:
                accepted.recv(1)
                accepted.sendall(b"HTTP/1.1 400 Bad Request")

        answering = threading.Thread(target=refuse)
        answering.start()
        with pytest.raises(ProtocolError, match="Is it a Kafka broker"):
            Connection.open("kafka", port, WireOptions((), "test"), after())
        answering.join()
        Connection.open("kafka", port, WireOptions((), "test"), after()).close()


def test_a_bootstrap_server_that_failed_is_tried_after_the_others() -> None:
    with FakeKafka(brokers=2) as fake, socket.create_server((SILENT, 0)) as silent:
        address = silent.getsockname()
        SERVERS.record_failure(address)
        servers = (address, *(("localhost", broker.port) for broker in fake.brokers.values()))
        for _ in range(3):
            with closing(Cluster(WireOptions(servers, "test"))) as cluster:
                assert cluster.metadata(None, after()).brokers
        assert not poll_readable([silent.fileno()], 0)


def test_a_bootstrap_server_of_which_all_names_failed_is_tried_after_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getnameinfo", lambda where, flags: ("localhost", str(where[1])))
    with FakeKafka() as fake, socket.create_server((LOOPBACK, 0)) as silent:
        servers = (silent.getsockname(), (LOOPBACK, fake.brokers[1].port))
        options = WireOptions(servers, "test", canonical_bootstrap=True, connect_timeout=0.2, connect_timeout_max=0.2)
        for _ in range(3):
            with closing(Cluster(options)) as cluster:
                assert cluster.metadata(None, after()).brokers
        silent.accept()[0].close()
        assert not poll_readable([silent.fileno()], 0)


def test_the_failures_of_many_addresses_are_bounded() -> None:
    for port in range(MAX_KEPT + 10):
        ADDRESSES.record_failure(("b", port))
        ADDRESSES.record_failure(("kept", 1))
    assert len(ADDRESSES._failures) == MAX_KEPT
    assert ADDRESSES.failures(("kept", 1)) == MAX_KEPT + 10
    ADDRESSES.record_success(("kept", 1))
    assert ADDRESSES.failures(("kept", 1)) == 0
