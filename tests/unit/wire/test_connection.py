"""A connection to a slow, broken or foreign peer: one error in time, and never the response to another request."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.protocol.metadata import FindCoordinatorResponse

from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_sign_in import SaslSignIn
from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupSourceError, ProtocolError
from spark_group_source.text import Secret
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.frames import MAX_FRAME_BEFORE_SIGN_IN
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka, Fault
from tests.unit.wire.messages import answer, coordinator, encoded, framed, heartbeat
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually

SHORT = 0.1
OPTIONS = WireOptions((("127.0.0.1", 1),), "test", connect_timeout=2.0)
Pair = tuple[Connection, socket.socket]


@pytest.fixture
def connection(fake: FakeKafka) -> Iterator[Connection]:
    with closing(opening(fake)) as opened:
        yield opened


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A connection without a broker, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    with theirs, closing(Connection(ours, "peer", 9092, OPTIONS)) as connection:
        yield connection, theirs


def opening(fake: FakeKafka) -> Connection:
    return Connection.open("127.0.0.1", fake.brokers[1].port, OPTIONS, after(), broker_id=1)


def test_slow_bytes_are_received_and_do_not_extend_the_deadline(fake: FakeKafka, connection: Connection) -> None:
    fake.next("Heartbeat", Fault(dribble=0.0))
    assert connection.call(heartbeat(), after()).error_code == 25
    fake.next("Heartbeat", Fault(dribble=1.0))
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="HeartbeatRequest"):
        connection.call(heartbeat(), Deadline.after(0.2))
    assert time.monotonic() - began < 10.0, "the complete response takes longer"
    assert connection.closed


def test_a_response_that_is_complete_at_the_deadline_is_returned_and_a_partial_response_is_not(pair: Pair) -> None:
    connection, theirs = pair
    connection.send(heartbeat(), after())
    theirs.sendall(answer(1))
    assert connection.receive(after(0.0)).error_code == 25
    connection.send(heartbeat(), after())
    theirs.sendall(answer(2)[:-1])
    with pytest.raises(DeadlineExceeded):
        connection.receive(after(0.0))
    assert connection.closed


def test_an_error_names_the_broker_with_its_id_host_and_port(fake: FakeKafka, connection: Connection) -> None:
    fake.next("Heartbeat", Fault(drop="before"))
    peer = rf"broker 1 \(127\.0\.0\.1:{fake.brokers[1].port}\)"
    with pytest.raises(BrokerUnavailable, match=f"Heartbeat.* to {peer} failed"):
        connection.call(heartbeat(), after())


@pytest.mark.parametrize("sent", [0, 2, 4, 6, 11])
def test_an_end_within_a_frame_is_a_broken_connection(fake: FakeKafka, connection: Connection, sent: int) -> None:
    fake.next("Heartbeat", Fault(raw=answer(2)[:sent], drop="answered"))
    with pytest.raises(BrokerUnavailable, match="HeartbeatRequest.*closed"):
        connection.call(heartbeat(), after())
    assert connection.closed


HTTP = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
TOO_LARGE = rf"announces a response of {{}} bytes; .* at most {2**30}\..*'max\.message\.bytes'"


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (answer(7), "answered request 7 instead of request 2"),
        *((struct.pack(">i", size), f"a response of {size} bytes.*Is it a Kafka broker") for size in (-1, 0, 3)),
        *((struct.pack(">i", size), TOO_LARGE.format(size)) for size in (2**30 + 1, 2**31 - 1)),
        (HTTP, "Is it a Kafka broker"),
    ],
)
def test_bytes_that_are_not_a_response_are_rejected_before_memory_is_allocated(
    fake: FakeKafka, connection: Connection, said: bytes, says: str
) -> None:
    fake.next("Heartbeat", Fault(raw=said))
    with pytest.raises(ProtocolError, match=says) as refused:
        connection.call(heartbeat(), after())
    assert ("Is it a Kafka broker" in str(refused.value)) == ("Is it a Kafka broker" in says)
    assert connection.closed


@pytest.mark.parametrize("alert", [b"\x15\x03\x03\x00\x02\x02\x28", HTTP], ids=["TLS", "HTTP"])
def test_the_error_of_another_protocol_suggests_tls(fake: FakeKafka, alert: bytes) -> None:
    fake.next("ApiVersions", Fault(raw=alert))
    with pytest.raises(ProtocolError, match="listener uses TLS, set 'kafka.security.protocol'"):
        opening(fake)


def test_the_error_of_an_old_broker_names_the_missing_version(fake: FakeKafka) -> None:
    def old(answer: Any) -> None:
        for each in answer.api_keys:
            each.max_version = min(each.max_version, 1)

    fake.next("ApiVersions", Fault(edit=old))
    with pytest.raises(ProtocolError, match=r"version 0 to 1 of \w+Request, and this source \d to \d+\..*Kafka 2\.1"):
        opening(fake)


def test_a_late_response_never_passes_for_the_response_to_the_next_request(
    fake: FakeKafka, connection: Connection
) -> None:
    hold = threading.Event()
    fake.next("Heartbeat", Fault(hold=hold))
    with pytest.raises(DeadlineExceeded):
        connection.call(heartbeat(), after(SHORT))
    hold.set()
    assert connection.closed
    assert not connection.is_reusable()
    with pytest.raises(BrokerUnavailable):
        connection.call(coordinator(), after())


def test_several_requests_in_flight_get_their_responses_in_order(connection: Connection) -> None:
    with pytest.raises(ProtocolError, match="No request to broker .* is in flight"):
        connection.receive(after())
    connection.send(heartbeat(), after())
    connection.send(coordinator(), after())
    assert not connection.is_reusable()
    assert connection.receive(after()).error_code == 25
    assert connection.receive(after()).coordinators[0].node_id == 1
    assert connection.is_reusable()


def test_a_connection_with_bytes_or_an_end_is_not_reusable(fake: FakeKafka, connection: Connection, pair: Pair) -> None:
    other, peer = pair
    assert connection.is_reusable()
    assert other.is_reusable()
    peer.sendall(b"\0")
    fake.brokers[1].disconnect()
    eventually(lambda: not connection.is_reusable() and not other.is_reusable())


def test_sending_to_a_peer_that_reads_nothing_times_out(pair: Pair) -> None:
    connection, _ = pair
    much = heartbeat("m" * 2**15)
    with pytest.raises(DeadlineExceeded):  # noqa: PT012 - one of the many sends finds the buffers full
        for _ in range(1000):
            connection.send(much, after(SHORT))
    assert connection.closed


@pytest.mark.parametrize("unanswered", [True, False])
def test_an_unanswered_request_is_not_sent_after_the_connection_is_closed(unanswered: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection(socket.create_connection(server.getsockname()), "peer", 9092, OPTIONS)
        theirs, _ = server.accept()
    with theirs:
        if unanswered:
            connection.send(heartbeat(), after())
            theirs.recv(65536)
        connection.close()
        theirs.settimeout(LONG)
        with pytest.raises(ConnectionResetError) if unanswered else nullcontext():
            assert theirs.recv(1) == b""


def test_a_wakeup_ends_a_pending_wait_and_the_response_can_be_received_later(pair: Pair, wakeup: WakeupPipe) -> None:
    connection, peer = pair
    connection.send(heartbeat(), after())
    assert not connection.is_reusable()
    peer.sendall(answer(1)[:7])
    threading.Timer(0.05, wakeup.set).start()
    for _ in range(2):  # the second wakeup was set before
        with pytest.raises(Interrupted):
            connection.receive(Deadline.after(LONG, wakeup=wakeup))
        wakeup.set()
    assert not connection.closed
    peer.sendall(answer(1)[7:])
    with closing(WakeupPipe()) as later:
        assert connection.receive(Deadline.after(LONG, wakeup=later)).error_code == 25


NODE = FindCoordinatorResponse.Coordinator(version=4, key="g", node_id=1, host="h", port=9092, error_code=0)
FOUND = encoded(FindCoordinatorResponse(version=4, throttle_time_ms=0, coordinators=[NODE]), 1)


def received(body: bytes) -> Any:
    """Returns the decoded response to FindCoordinator, or one of our errors."""
    ours, theirs = socket.socketpair()
    with theirs, closing(Connection(ours, "peer", 9092, OPTIONS)) as connection:
        connection.send(coordinator(), after())
        theirs.sendall(framed(body))
        theirs.shutdown(socket.SHUT_WR)
        try:
            return connection.receive(after())
        except GroupSourceError as error:
            assert connection.closed, error  # noqa: PT017 - some responses are valid
            return error


def test_a_truncated_response_is_a_protocol_error() -> None:
    assert received(FOUND).coordinators[0].node_id == 1
    for size in range(4, len(FOUND)):
        assert isinstance(received(FOUND[:size]), ProtocolError), size


def test_unknown_tagged_fields_of_a_response_header_are_skipped_and_none_may_be_beyond_the_response() -> None:
    for tags in (b"\x01\x00\x00", b"\x01\x07\x02ab", b"\x02\x00\x01x\x80\x01\x81\x01" + b"y" * 129):
        assert received(FOUND[:4] + tags + FOUND[5:]).coordinators[0].node_id == 1, tags
    # Nothing, a count, no size, cut short, far too many, an endless number.
    beyond = (b"", b"\x01", b"\x01\x00", b"\x01\x00\x05ab", b"\xff\xff\xff\xff\x0f\x00\x00", b"\x80" * 5 + b"\x00")
    for header in beyond:
        assert isinstance(received(FOUND[:4] + header), ProtocolError), header


def test_an_unknown_host_and_a_closed_port_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerUnavailable, match="127.0.0.1:1 "):
        Connection.open("127.0.0.1", 1, OPTIONS, after())
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=socket.gaierror("Name or service not known")))
    with pytest.raises(BrokerUnavailable, match="'unknown' cannot be resolved"):
        Connection.open("unknown", 9092, OPTIONS, after())


def test_a_response_with_a_changed_byte_is_decoded_or_raises_one_of_our_errors() -> None:
    chance = random.Random(20240229)
    for _ in range(300):
        broken = bytearray(FOUND)
        broken[chance.randrange(len(broken))] = chance.randrange(256)
        received(bytes(broken))


def test_a_large_response_before_the_sign_in_is_rejected_before_memory_is_allocated(fake: FakeKafka) -> None:
    announced = struct.pack(">i", MAX_FRAME_BEFORE_SIGN_IN + 1)
    options = replace(OPTIONS, sasl=SaslSignIn(Sasl("PLAIN", "alice", Secret("secret"))))
    for api in ("ApiVersions", "SaslHandshake", "SaslAuthenticate"):
        fake.next(api, Fault(raw=announced))
        with pytest.raises(ProtocolError, match=f"announces a response of {MAX_FRAME_BEFORE_SIGN_IN + 1} bytes"):
            Connection.open("127.0.0.1", fake.brokers[1].port, options, after())
    asked = len(fake.requests)
    with closing(Connection.open("127.0.0.1", fake.brokers[1].port, options, after(), eager=True)) as connection:
        assert [api for api, _, _ in fake.requests[asked:]] == ["ApiVersions", "SaslHandshake", "SaslAuthenticate"]
        fake.next("Heartbeat", Fault(raw=announced))
        with pytest.raises(DeadlineExceeded):
            connection.call(heartbeat(), after(SHORT))


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", -1), ("127.0.0.1", 0), ("127.0.0.1", 2**16), ("", 9092), ("a\0b", 9092)]
)
def test_an_advertised_address_that_is_none_is_an_unavailable_broker(host: str, port: int) -> None:
    with pytest.raises(BrokerUnavailable):
        Connection.open(host, port, OPTIONS, after(), broker_id=1)
