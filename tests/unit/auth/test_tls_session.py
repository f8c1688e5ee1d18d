"""TLS over sockets: the handshake, bytes that TLS has read ahead, records of TLS itself, and errors."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from spark_group_source.auth import tls_session
from spark_group_source.auth.broker_tls import BrokerTls
from spark_group_source.auth.tls import Tls
from spark_group_source.clock import Deadline, monotonic
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.frames import FrameReader
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from spark_group_source.wire.wire_options import WireOptions
from tests.certificates import Authority
from tests.unit.wire.messages import answer, framed, heartbeat
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually

SHORT = 0.2
OPTIONS = WireOptions((("127.0.0.1", 1),), "test", tls=BrokerTls(Tls()))
Shake = Callable[[socket.socket], ssl.SSLSocket]


@pytest.fixture
def shake(authority: Authority) -> Shake:
    """The client's side of a TLS handshake."""
    return lambda ours: tls_session.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), after())


class Peer:
    """A connection with TLS 1.3, and its peer, whose records the test transfers itself."""

    def __init__(self, file: Path, shake: Shake) -> None:
        ours, self.socket = socket.socketpair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        shaking = threading.Thread(target=self._shake)
        shaking.start()
        try:
            self.sock = shake(ours)
            self.connection = Connection(self.sock, "broker", 1, OPTIONS)
        except AuthenticationFailed:
            self.socket.close()
            raise
        finally:
            shaking.join()

    def _shake(self) -> None:
        with contextlib.suppress(OSError):  # the client may reject the certificate
            while True:
                try:
                    self.tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self.socket.sendall(self._outgoing.read())
                    self._incoming.write(self.socket.recv(2**16))
            self.socket.sendall(self._outgoing.read())

    def receive(self, damage: int = 0) -> None:
        """Decrypts what the connection has sent; ``damage`` changes its last byte."""
        sent = bytearray(self.socket.recv(2**16))
        sent[-1] ^= damage
        self._incoming.write(bytes(sent))
        self.tls.read(2**16)

    def record(self, text: bytes = b"") -> bytes:
        """What TLS would send: ``text``, or an alert."""
        if text:
            self.tls.write(text)
        return self._outgoing.read()

    def close(self) -> None:
        self.connection.close()
        self.socket.close()


@pytest.fixture
def peer(authority: Authority, shake: Shake) -> Iterator[Peer]:
    made = Peer(authority.issue("broker", file="broker.pem"), shake)
    yield made
    made.close()


@pytest.mark.parametrize("closes", [False, True])
def test_a_tls_connection_with_tickets_is_reusable_until_the_peer_sends_or_closes(peer: Peer, closes: bool) -> None:
    for _ in range(2):
        assert peer.connection.is_reusable()
    if closes:
        peer.socket.close()
    else:
        peer.socket.sendall(peer.record(b"\0"))
    eventually(lambda: not peer.connection.is_reusable())


def test_a_response_that_tls_has_already_decrypted_needs_no_wait(peer: Peer, wakeup: WakeupPipe) -> None:
    for number in (1, 2):
        peer.connection.send(heartbeat(), after())
        peer.socket.sendall(peer.record(answer(number)))
        assert peer.connection.receive(Deadline.after(SHORT * 50, wakeup=wakeup)).error_code == 25


@pytest.mark.parametrize("part", [1, 5, 20])
def test_a_wakeup_or_the_deadline_ends_the_wait_within_a_tls_record(peer: Peer, wakeup: WakeupPipe, part: int) -> None:
    peer.connection.send(heartbeat(), after())
    record = peer.record(answer(1))
    peer.socket.sendall(record[:part])
    threading.Timer(0.05, wakeup.set).start()
    with pytest.raises(Interrupted):
        peer.connection.receive(Deadline.after(SHORT * 50, wakeup=wakeup))
    assert not peer.connection.closed
    peer.socket.sendall(record[part:] + peer.record(answer(2))[:part])
    with contextlib.closing(WakeupPipe()) as later:
        assert peer.connection.receive(Deadline.after(LONG, wakeup=later)).error_code == 25
        peer.connection.send(heartbeat(), after())
        with pytest.raises(DeadlineExceeded):
            peer.connection.receive(Deadline.after(SHORT, wakeup=later))


def test_a_response_of_many_tls_records_is_received_without_a_look_at_the_clock_for_each(peer: Peer) -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return monotonic()

    response = framed(bytes(100_000))
    for at in range(0, len(response), 2**14):
        peer.socket.sendall(peer.record(response[at : at + 2**14]))
    frame, _ = FrameReader("b:1").receive(peer.sock, Deadline.after(LONG, clock))
    assert len(frame) == 100_000
    assert looks < 8, "there are seven records"


def test_a_response_whose_last_tls_record_is_cut_short_waits_for_the_rest_until_the_deadline(peer: Peer) -> None:
    response = framed(bytes(50_000))
    records = b"".join(peer.record(response[at : at + 2**14]) for at in range(0, len(response), 2**14))
    reader = FrameReader("b:1")
    peer.socket.sendall(records[:-10])
    with pytest.raises(TimeoutError):
        reader.receive(peer.sock, Deadline.after(SHORT))
    peer.socket.sendall(records[-10:])
    assert reader.receive(peer.sock, after())[0] == bytes(50_000)


def test_an_absolute_host_name_is_certified_without_its_dot(authority: Authority) -> None:
    file = authority.issue("broker", file="broker.pem")
    tls = Tls(ca_file=str(authority.file))
    Peer(file, lambda ours: tls_session.handshake(ours, "broker.", "b:1", tls, after())).close()


def test_a_tls_handshake_with_a_silent_peer_times_out(authority: Authority) -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(DeadlineExceeded, match="TLS handshake in time"):
        tls_session.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), Deadline.after(SHORT))
    assert ours.fileno() == -1
    theirs.close()


HTTP = b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10


def alert(number: int) -> bytes:
    return b"\x15\x03\x03\x00\x02\x02" + bytes([number])


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        (HTTP, AuthenticationFailed, "does not use TLS.*kafka.security.protocol"),
        (alert(40), AuthenticationFailed, "no TLS version or cipher .* in common.*kafka.ssl.cipher.suites"),
        (alert(70), AuthenticationFailed, "no TLS version or cipher .* in common.*kafka.ssl.enabled.protocols"),
        (alert(116), AuthenticationFailed, "CERTIFICATE_REQUIRED.*kafka.ssl.keystore.location"),
        (alert(80), BrokerUnavailable, "ended the TLS handshake.*internal error"),
        (b"", BrokerUnavailable, "If the listener does not use TLS"),
    ],
    ids=["HTTP", "no cipher in common", "no version in common", "no certificate", "an internal error", "the end"],
)
def test_each_failure_of_a_tls_handshake_says_what_to_change(
    shake: Shake, said: bytes, kind: type[Exception], says: str
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(kind, match=says):
            shake(ours)


@pytest.mark.parametrize("answered", [False, True])
@pytest.mark.parametrize(("said", "reason"), [(b"", "bad.record.mac"), (HTTP, "")], ids=["an alert", "no TLS"])
def test_an_alert_or_foreign_bytes_on_an_established_session_break_only_the_connection(
    peer: Peer, answered: bool, said: bytes, reason: str
) -> None:
    peer.connection.send(heartbeat(), after())
    if answered:
        peer.receive()
        peer.socket.sendall(peer.record(answer(1)))
        assert peer.connection.receive(after()).error_code == 25
        peer.connection.send(heartbeat(), after())
    with pytest.raises(ssl.SSLError):
        peer.receive(damage=1)
    peer.socket.sendall(said or peer.record())
    with pytest.raises(BrokerUnavailable, match=f"(?i)TLS session with broker .* broke: .*{reason}"):
        peer.connection.receive(after())
    assert peer.connection.closed


def test_a_certificate_alert_means_rejection_only_before_the_first_response() -> None:
    for alert in (
        *("SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_REVOKED"),
        *("SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        *("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_ACCESS_DENIED", "TLSV1_ALERT_DECRYPT_ERROR"),
    ):
        error = ssl.SSLError(1, alert)
        error.reason = alert
        refused = tls_session.session_error("b:1", error, responded=False)
        assert isinstance(refused, AuthenticationFailed)
        assert alert in refused.happened
        assert isinstance(tls_session.session_error("b:1", error, responded=True), BrokerUnavailable)


def test_the_error_of_a_rejected_broker_certificate_has_reason_and_action(authority: Authority, shake: Shake) -> None:
    rejected = "Broker b:1 has a certificate that this client rejected: "
    expired = authority.issue("broker", file="expired.pem", ends=datetime(2020, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(AuthenticationFailed, match=f"{rejected}certificate has expired.*Renew the certificate"):
        Peer(expired, shake)
    says = "Hostname mismatch.*subjectAltName.*kafka.ssl.endpoint.identification.algorithm"
    with pytest.raises(AuthenticationFailed, match=rejected + says):
        Peer(authority.issue("other", file="of-other.pem"), shake)
