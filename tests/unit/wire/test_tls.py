"""TLS and waits on sockets: bytes that TLS has read ahead, and records of TLS itself."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, OptionError
from spark_group_source.text import Secret
from spark_group_source.wire import tls
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.settings import Tls, WireOptions, format_of
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.certificates import Authority

LONG, SHORT = 90.0, 0.2
OPTIONS = WireOptions((("127.0.0.1", 1),), "test")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def serving(file: Path, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(file)
    made.minimum_version = made.maximum_version = version
    return made


@pytest.fixture
def pair(authority: Authority) -> Iterator[tuple[Connection, ssl.SSLSocket]]:
    """A connection with TLS 1.3, and the socket of its peer."""
    ours, theirs = socket.socketpair()
    server = serving(authority.issue("broker", file="broker.pem"))
    accepted: list[ssl.SSLSocket] = []
    peer = threading.Thread(target=lambda: accepted.append(server.wrap_socket(theirs, server_side=True)))
    peer.start()
    secured = tls.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), Deadline.after(LONG))
    peer.join()
    connection = Connection(secured, "broker", 1, OPTIONS)
    yield connection, accepted[0]
    connection.close()
    accepted[0].close()


def by_hand(authority: Authority) -> tuple[Connection, ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO, socket.socket]:
    """Returns a connection, and a TLS peer whose bytes the test transfers in both directions."""
    ours, theirs = socket.socketpair()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving(authority.issue("broker", file="by-hand.pem")).wrap_bio(to_server, to_client, server_side=True)

    def shake() -> None:
        while True:
            try:
                server.do_handshake()
                theirs.sendall(to_client.read())
                return
            except ssl.SSLWantReadError:
                theirs.sendall(to_client.read())
                to_server.write(theirs.recv(2**16))

    peer = threading.Thread(target=shake)
    peer.start()
    secured = tls.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), Deadline.after(LONG))
    peer.join()
    return Connection(secured, "broker", 1, OPTIONS), server, to_server, to_client, theirs


def answer(correlation_id: int) -> bytes:
    made = HeartbeatResponse(version=4, throttle_time_ms=0, error_code=25)
    made.with_header(correlation_id=correlation_id)
    body = bytes(made.encode(header=True))
    return struct.pack(">i", len(body)) + body


def heartbeat() -> HeartbeatRequest:
    return HeartbeatRequest(version=4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)


def test_a_connection_with_tls_session_tickets_is_reusable(pair: tuple[Connection, ssl.SSLSocket]) -> None:
    connection, peer = pair
    assert connection.is_reusable()
    assert connection.is_reusable()
    peer.sendall(b"\0")
    deadline = Deadline.after(LONG)
    while connection.is_reusable():
        assert not deadline.expired()


def test_a_tls_connection_that_the_broker_closed_is_not_reusable(pair: tuple[Connection, ssl.SSLSocket]) -> None:
    connection, peer = pair
    peer.close()
    assert not connection.is_reusable()


def test_a_response_that_tls_has_already_decrypted_needs_no_wait(pair: tuple[Connection, ssl.SSLSocket]) -> None:
    connection, peer = pair
    wakeup = WakeupPipe()
    for number in (1, 2):
        connection.send(heartbeat(), Deadline.after(LONG))
        peer.sendall(answer(number))
        assert connection.receive(Deadline.after(SHORT * 50, wakeup=wakeup)).error_code == 25
    wakeup.close()


@pytest.mark.parametrize("part", [1, 5, 20])
def test_a_wakeup_ends_the_wait_for_the_rest_of_a_tls_record(authority: Authority, part: int) -> None:
    connection, server, to_server, to_client, theirs = by_hand(authority)
    wakeup, later = WakeupPipe(), WakeupPipe()
    connection.send(heartbeat(), Deadline.after(LONG))
    to_server.write(theirs.recv(2**16))
    server.write(answer(1))
    record = to_client.read()
    theirs.sendall(record[:part])
    ended = threading.Timer(0.05, wakeup.set)
    ended.start()
    with pytest.raises(Interrupted):
        connection.receive(Deadline.after(SHORT * 50, wakeup=wakeup))
    assert not connection.closed
    theirs.sendall(record[part:])
    assert connection.receive(Deadline.after(LONG, wakeup=later)).error_code == 25
    ended.join()
    for each in (wakeup, later, connection, theirs):
        each.close()


def test_the_wait_for_the_rest_of_a_tls_record_ends_at_the_deadline(authority: Authority) -> None:
    connection, _, _, _, theirs = by_hand(authority)
    wakeup = WakeupPipe()
    connection.send(heartbeat(), Deadline.after(LONG))
    theirs.sendall(b"\x17\x03\x03")
    with pytest.raises(DeadlineExceeded):
        connection.receive(Deadline.after(SHORT, wakeup=wakeup))
    wakeup.close()
    theirs.close()


def test_a_tls_handshake_with_a_silent_peer_times_out(authority: Authority) -> None:
    ours, theirs = socket.socketpair()
    with pytest.raises(DeadlineExceeded, match="TLS handshake in time"):
        tls.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), Deadline.after(SHORT))
    assert ours.fileno() == -1
    theirs.close()


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", AuthenticationFailed, "does not use TLS.*kafka.security.protocol"),
        (
            b"\x15\x03\x03\x00\x02\x02\x28",
            AuthenticationFailed,
            "no TLS version or cipher .* in common.*kafka.ssl.cipher.suites",
        ),
        (
            b"\x15\x03\x03\x00\x02\x02\x46",
            AuthenticationFailed,
            "no TLS version or cipher .* in common.*kafka.ssl.enabled.protocols",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x74", AuthenticationFailed, "CERTIFICATE_REQUIRED.*kafka.ssl.keystore.location"),
        (b"\x15\x03\x03\x00\x02\x02\x50", BrokerUnavailable, "ended the TLS handshake.*internal error"),
        (b"\x15\x03\x03\x00\x02\x02\x14", BrokerUnavailable, "ended the TLS handshake.*bad record mac"),
        (b"\x15\x03\x03\x00\x02\x02\x5a", BrokerUnavailable, "ended the TLS handshake"),
        (b"", BrokerUnavailable, "If the listener does not use TLS"),
    ],
    ids=[
        *("HTTP", "no cipher in common", "no version in common", "no certificate"),
        *("an internal error", "a bad record", "cancelled", "the end"),
    ],
)
def test_each_failure_of_a_tls_handshake_says_what_to_change(
    authority: Authority, said: bytes, kind: type[Exception], says: str
) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(kind, match=says):
        tls.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), Deadline.after(LONG))
    theirs.close()


@pytest.mark.parametrize("answered", [False, True])
def test_an_alert_on_an_established_session_breaks_only_the_connection(authority: Authority, answered: bool) -> None:
    connection, server, to_server, to_client, theirs = by_hand(authority)
    number = 1
    if answered:
        connection.send(heartbeat(), Deadline.after(LONG))
        to_server.write(theirs.recv(2**16))
        server.read(2**16)
        server.write(answer(number))
        theirs.sendall(to_client.read())
        assert connection.receive(Deadline.after(LONG)).error_code == 25
        number = 2
    connection.send(heartbeat(), Deadline.after(LONG))
    sent = bytearray(theirs.recv(2**16))
    sent[-1] ^= 1
    to_server.write(bytes(sent))
    with pytest.raises(ssl.SSLError):
        server.read(2**16)
    theirs.sendall(to_client.read())
    with pytest.raises(BrokerUnavailable, match="(?i)TLS session with broker .* broke: .*bad.record.mac"):
        connection.receive(Deadline.after(LONG))
    assert connection.closed
    theirs.close()


def test_bytes_that_are_not_tls_break_only_an_established_connection(authority: Authority) -> None:
    connection, _, _, _, theirs = by_hand(authority)
    connection.send(heartbeat(), Deadline.after(LONG))
    theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    with pytest.raises(BrokerUnavailable, match="The TLS session with broker .* broke"):
        connection.receive(Deadline.after(LONG))
    assert connection.closed
    theirs.close()


@pytest.mark.parametrize(
    "alert",
    [
        *("SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_REVOKED"),
        *("SSLV3_ALERT_CERTIFICATE_EXPIRED", "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        *("TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_ACCESS_DENIED", "TLSV1_ALERT_DECRYPT_ERROR"),
    ],
)
def test_a_certificate_alert_means_rejection_only_before_the_first_response(alert: str) -> None:
    error = ssl.SSLError(1, alert)
    error.reason = alert
    refused = tls.session_error("b:1", error, responded=False)
    assert isinstance(refused, AuthenticationFailed)
    assert alert in refused.happened
    assert isinstance(tls.session_error("b:1", error, responded=True), BrokerUnavailable)


@pytest.mark.parametrize(
    ("name", "ends", "says"),
    [
        ("broker", datetime(2020, 1, 1, tzinfo=timezone.utc), "certificate has expired.*Renew the certificate"),
        ("other", None, "Hostname mismatch.*subjectAltName.*kafka.ssl.endpoint.identification.algorithm"),
    ],
    ids=["expired", "of another host"],
)
def test_the_error_of_a_rejected_broker_certificate_has_reason_and_action(
    authority: Authority, name: str, ends: datetime | None, says: str
) -> None:
    ours, theirs = socket.socketpair()
    server = serving(authority.issue(name, file="refused.pem", ends=ends))

    def serve() -> None:
        with contextlib.suppress(OSError):
            server.wrap_socket(theirs, server_side=True)

    peer = threading.Thread(target=serve)
    peer.start()
    with pytest.raises(AuthenticationFailed, match=f"Broker b:1 has a certificate that this client rejected: {says}"):
        tls.handshake(ours, "broker", "b:1", Tls(ca_file=str(authority.file)), Deadline.after(LONG))
    peer.join()
    theirs.close()


def test_a_tls_context_is_kept_until_its_files_change_to_usable_files(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "client.pem"
    file.write_bytes(authority.issue("client", file="first.pem").read_bytes())
    settings = Tls(ca_file=str(authority.file), key_file=str(file))
    first = tls.ssl_context(settings)
    assert tls.ssl_context(Tls(ca_file=str(authority.file), key_file=str(file))) is first
    (tmp_path / "new").write_bytes(authority.issue("client", file="second.pem").read_bytes())
    (tmp_path / "new").rename(file)
    second = tls.ssl_context(settings)
    assert second is not first
    file.write_bytes(file.read_bytes()[:100])
    assert tls.ssl_context(settings) is second
    file.unlink()
    assert tls.ssl_context(settings) is second
    warning = "certificate files are unusable; keeping the certificates read before"
    assert caplog.text.count(warning) == 1
    tls._warnings.clear()  # as after a minute
    assert tls.ssl_context(settings) is second
    assert caplog.text.count(warning) == 2
    file.write_bytes(authority.issue("client", file="third.pem").read_bytes())
    assert tls.ssl_context(settings) is not second


def test_the_error_of_a_missing_file_names_the_file(authority: Authority, tmp_path: Path) -> None:
    settings = Tls(ca_file=str(authority.file), key_file=str(tmp_path / "client.pem"))
    with pytest.raises(OptionError, match=r"client.pem' of 'kafka.ssl.keystore.location'.*every executor"):
        tls.ssl_context(settings)


def test_the_text_of_a_key_is_in_a_private_file_only_while_it_is_read(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def look(_: ssl.SSLContext, file: str, **__: object) -> None:
        modes.append(Path(file).stat().st_mode & 0o777)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls.ssl_context(Tls(ca_file=str(authority.file), key_text=Secret("key"), chain_text="chain"))
    assert modes == [0o600]
    assert not list(tmp_path.iterdir())


def test_the_text_of_a_key_without_a_place_for_a_temporary_file_is_an_error_that_names_the_place(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    settings = Tls(ca_file=str(authority.file), key_text=Secret("another key"), chain_text="chain")
    says = r"No temporary file for 'kafka\.ssl\.keystore\.key' can be written on .*/none/.*TMPDIR.*keystore\.location"
    with pytest.raises(OptionError, match=says):
        tls.ssl_context(settings)


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\x30\x77\x02\x01\x01\x04\x20", "DER"),  # an EC key, shorter than 128 bytes
        (b"\x30\x81\xb6\x02\x01\x00\x30", "DER"),
        (b"\x30\x82\x03\x1f\x30\x82\x02", "DER"),
        (b"\x30\x83\x01\x00\x00\x30\x82", "DER"),
        (b"\x30\x80\x02\x01\x03\x30\x80", "PKCS12"),
        (b"\x30\x82\x09\x1f\x02\x01\x03", "PKCS12"),
        (b"\xfe\xed\xfe\xed\x00\x00\x00", "JKS"),
        (b"-----BEGIN CERT", None),
        (b"", None),
    ],
)
def test_the_format_of_a_store_follows_from_its_first_bytes(tmp_path: Path, head: bytes, name: str | None) -> None:
    file = tmp_path / "store"
    file.write_bytes(head)
    assert format_of(str(file)) == name


def test_a_store_that_vanishes_while_it_is_read_has_no_format(tmp_path: Path) -> None:
    assert format_of(str(tmp_path / "none")) is None
