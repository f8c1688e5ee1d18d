"""The TLS handshake over a connected socket, and errors of the handshake and of the session."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from spark_group_source.auth.certificates import UnusableCertificates, ssl_context
from spark_group_source.auth.tls import Tls
from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.wire import waiting

_NAME_MISMATCH = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OUTSIDE_VALIDITY = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_CLIENT_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""Parts of the names of alerts by which a broker rejects the client's certificate, or the lack of a certificate."""
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
"""OpenSSL's reasons if the first bytes of a peer are not TLS."""
_NOTHING_IN_COMMON = ("PROTOCOL", "CIPHER", "HANDSHAKE_FAILURE", "INSUFFICIENT_SECURITY")
"""Parts of the names of errors if the two sides have no TLS version or cipher suite in common."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other side, for errors: ``name`` begins a sentence.

    ``check_address`` is the action if the server does not use TLS. ``use_certified_host`` is the action if the
    certificate names other hosts.
    """

    name: str
    check_address: str
    use_certified_host: str


def broker_peer(broker: str) -> Peer:
    """Returns a broker as a peer."""
    return Peer(
        f"Broker {broker}",
        "Check the port in 'kafka.bootstrap.servers'. If the listener does not use TLS, set 'kafka.security.protocol'"
        " to PLAINTEXT or SASL_PLAINTEXT.",
        "Use a host name of the certificate in 'kafka.bootstrap.servers' and in the brokers' advertised.listeners",
    )


def handshake(sock: socket.socket, host: str, broker: str, settings: Tls, deadline: Deadline) -> ssl.SSLSocket:
    """Returns the socket with TLS over it, which owns ``sock``; closes ``sock`` if the handshake fails.

    Args:
        host: the host that the broker's certificate must name. The dot at the end of an absolute name in DNS is no part
            of the name in certificates (RFC 6066, section 3).
        broker: names the broker in errors.

    Raises:
        AuthenticationFailed: one side rejects the other's certificate, they have no version or cipher in common, or
            the certificates of this client are not usable.
        BrokerUnavailable: the connection broke.
        DeadlineExceeded: the handshake took too long.
        OptionError: a file of certificates or keys cannot be read.
    """
    owner, peer = sock, broker_peer(broker)
    try:
        name = host.removesuffix(".")
        secured = ssl_context(settings).wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        owner = secured
        secured.setblocking(False)
        _complete_handshake(secured, deadline)
    except TimeoutError as error:
        owner.close()
        raise DeadlineExceeded(
            f"{peer.name} did not complete the TLS handshake in time.", peer.check_address
        ) from error
    except OSError as error:
        owner.close()
        raise handshake_error(peer, error, settings) from error
    except UnusableCertificates as error:
        owner.close()
        # The driver could use the files, so a task retries as it does when a broker rejects it.
        raise AuthenticationFailed(error.happened, error.action) from error
    except BaseException:
        owner.close()
        raise
    return secured


def _complete_handshake(sock: ssl.SSLSocket, deadline: Deadline) -> None:
    """Completes the handshake of a non-blocking socket."""
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            events = select.POLLIN
        except ssl.SSLWantWriteError:
            events = select.POLLOUT
        if not waiting.wait_ready(sock.fileno(), deadline, events):
            raise TimeoutError


def handshake_error(peer: Peer, error: OSError, settings: Tls) -> AuthenticationFailed | BrokerUnavailable:
    """Converts an error of the handshake to an error that says what to change, or that a retry may succeed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_rejected(peer, error, settings)
    reason = _reason(error)
    if reason in _NOT_TLS:
        return AuthenticationFailed(f"{peer.name} does not use TLS on this port ({reason}).", peer.check_address)
    if _rejects_client_certificate(reason):
        return _client_certificate_rejected(peer, reason, settings)
    if _has_part(reason, _NOTHING_IN_COMMON):
        return AuthenticationFailed(
            f"{peer.name} and this client have no TLS version or cipher suite in common ({reason}).",
            f"Compare {settings.name('ssl.enabled.protocols')} and {settings.name('ssl.cipher.suites')} with the"
            " settings of the other side.",
        )
    return BrokerUnavailable(f"{peer.name} ended the TLS handshake: {error}.", peer.check_address)


def session_error(broker: str, error: OSError, *, responded: bool) -> GroupSourceError | None:
    """Converts an error of TLS after the handshake. Returns ``None`` for an error of the connection below TLS.

    The settings are right, with one exception: with TLS 1.3 a broker rejects a client's certificate after the
    handshake, but before its first response.
    """
    if not isinstance(error, ssl.SSLError):
        return None
    reason = _reason(error)
    if not responded and _rejects_client_certificate(reason):
        return _client_certificate_rejected(broker_peer(broker), reason, Tls())
    return BrokerUnavailable(f"The TLS session with broker {broker} broke: {error}.")


def _reason(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return ""
    return error.reason or ""  # OpenSSL gives no reason for some errors


def _has_part(reason: str, parts: Sequence[str]) -> bool:
    return any(part in reason for part in parts)


def _rejects_client_certificate(reason: str) -> bool:
    if "ALERT" not in reason:
        return False
    return _has_part(reason, _CLIENT_CERTIFICATE_ALERTS)


def _client_certificate_rejected(peer: Peer, reason: str, settings: Tls) -> AuthenticationFailed:
    location = settings.name("ssl.keystore.location")
    chain = settings.name("ssl.keystore.certificate.chain")
    key = settings.name("ssl.keystore.key")
    return AuthenticationFailed(
        f"{peer.name} rejected this client's certificate ({reason}).",
        f"Give a certificate that the other side trusts, with its key, in {location}, or in {chain} and {key}.",
    )


def _certificate_rejected(peer: Peer, error: ssl.SSLCertVerificationError, settings: Tls) -> AuthenticationFailed:
    if error.verify_code in _NAME_MISMATCH:
        action = (
            f"{peer.use_certified_host}, or add the name to the certificate (subjectAltName). To turn this check off,"
            f" set {settings.name('ssl.endpoint.identification.algorithm')} to an empty text."
        )
    elif error.verify_code in _OUTSIDE_VALIDITY:
        action = "Renew the certificate, or set the clock of this machine."
    else:
        action = (
            "Put the certificate of the CA that signed it into"
            f" {settings.name('ssl.truststore.location')} or {settings.name('ssl.truststore.certificates')} (PEM)."
        )
        if settings.ca_file is None and settings.ca_text is None:
            action += " Without them the source trusts the CAs of the system."
    reason = error.verify_message.rstrip(".")
    return AuthenticationFailed(f"{peer.name} has a certificate that this client rejected: {reason}.", action)
