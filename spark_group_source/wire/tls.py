"""TLS over a connected socket: the handshake, and errors of the handshake and of the session."""

from __future__ import annotations

import select
import socket
import ssl
from typing import TypeGuard

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.wire import waiting
from spark_group_source.wire.settings import Tls
from spark_group_source.wire.tls_context import ssl_context

_NAME_MISMATCH = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_OUTSIDE_VALIDITY = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_CLIENT_CERTIFICATE_ALERTS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""Parts of the names of alerts by which a broker rejects the client's certificate, or the lack of a certificate."""
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
"""OpenSSL's reasons if the first bytes of a peer are not TLS."""
_NOTHING_IN_COMMON = ("PROTOCOL", "CIPHER", "HANDSHAKE_FAILURE", "INSUFFICIENT_SECURITY")
"""Parts of the names of errors if the two sides have no TLS version or cipher suite in common."""

_CHECK_LISTENER = (
    "Check the port in 'kafka.bootstrap.servers'. If the listener does not use TLS, set 'kafka.security.protocol' to"
    " PLAINTEXT or SASL_PLAINTEXT."
)
_CLIENT_CERTIFICATE = (
    "Give a certificate that the broker trusts, with its key, in 'kafka.ssl.keystore.location', or in"
    " 'kafka.ssl.keystore.certificate.chain' and 'kafka.ssl.keystore.key'."
)


def handshake(sock: socket.socket, host: str, broker: str, settings: Tls, deadline: Deadline) -> ssl.SSLSocket:
    """Returns the socket with TLS over it, which owns ``sock``; closes ``sock`` if the handshake fails.

    Args:
        host: the host that the broker's certificate must name.
        broker: names the broker in errors.

    Raises:
        AuthenticationFailed: one side rejects the other's certificate, or they have no version or cipher in common.
        BrokerUnavailable: the connection broke.
        DeadlineExceeded: the handshake took too long.
        OptionError: as :func:`ssl_context`.
    """
    owner = sock
    try:
        secured = ssl_context(settings).wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        owner = secured
        secured.setblocking(False)
        _complete_handshake(secured, deadline)
    except TimeoutError as error:
        owner.close()
        happened = f"Broker {broker} did not complete the TLS handshake in time."
        raise DeadlineExceeded(happened, _CHECK_LISTENER) from error
    except OSError as error:
        owner.close()
        raise handshake_error(broker, error) from error
    except BaseException:
        owner.close()
        raise
    return secured


def _complete_handshake(sock: ssl.SSLSocket, deadline: Deadline) -> None:
    """Completes the handshake of a non-blocking socket.

    Raises:
        TimeoutError: the handshake took too long.
        Interrupted: the deadline's wakeup was set first.
    """
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


def handshake_error(broker: str, error: OSError) -> GroupSourceError:
    """Converts an error of the handshake to an error that says what to change."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _broker_certificate_rejected(broker, error)
    reason = _reason(error)
    if reason in _NOT_TLS:
        return AuthenticationFailed(f"Broker {broker} does not use TLS on this listener ({reason}).", _CHECK_LISTENER)
    if _rejects_client_certificate(reason):
        return _client_certificate_rejected(broker, reason)
    if any(part in reason for part in _NOTHING_IN_COMMON):
        return AuthenticationFailed(
            f"Broker {broker} and this client have no TLS version or cipher suite in common ({reason}).",
            "Compare 'kafka.ssl.enabled.protocols' and 'kafka.ssl.cipher.suites' with the broker's settings.",
        )
    return BrokerUnavailable(f"Broker {broker} ended the TLS handshake: {error}.", _CHECK_LISTENER)


def needs_other_settings(error: ssl.SSLError) -> bool:
    """Whether a handshake failed because the two sides do not fit together, so that a retry cannot help."""
    reason = _reason(error)
    return (
        reason in _NOT_TLS or _rejects_client_certificate(reason) or any(part in reason for part in _NOTHING_IN_COMMON)
    )


def is_tls_error(error: OSError) -> TypeGuard[ssl.SSLError]:
    """Whether TLS itself failed, not the connection below it."""
    return isinstance(error, ssl.SSLError)


def session_error(broker: str, error: ssl.SSLError, *, responded: bool) -> GroupSourceError:
    """Converts an error after the handshake. It does not mean that the settings are wrong, with one exception.

    With TLS 1.3 a broker rejects a client's certificate only after the client's handshake, but before its first
    response.
    """
    reason = _reason(error)
    if not responded and _rejects_client_certificate(reason):
        return _client_certificate_rejected(broker, reason)
    return BrokerUnavailable(f"The TLS session with broker {broker} broke: {error}.")


def _reason(error: OSError) -> str:
    return (error.reason or "") if isinstance(error, ssl.SSLError) else ""


def _rejects_client_certificate(reason: str) -> bool:
    return "ALERT" in reason and any(part in reason for part in _CLIENT_CERTIFICATE_ALERTS)


def _client_certificate_rejected(broker: str, reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"Broker {broker} rejected this client's certificate ({reason}).", _CLIENT_CERTIFICATE)


def _broker_certificate_rejected(broker: str, error: ssl.SSLCertVerificationError) -> AuthenticationFailed:
    reason = error.verify_message.rstrip(".")
    if error.verify_code in _NAME_MISMATCH:
        action = (
            "Use a host name of the certificate in 'kafka.bootstrap.servers' and in the brokers' advertised.listeners,"
            " or add the name to the certificate (subjectAltName). To turn this check off, set"
            " 'kafka.ssl.endpoint.identification.algorithm' to an empty text."
        )
    elif error.verify_code in _OUTSIDE_VALIDITY:
        action = "Renew the broker's certificate, or set the clock of this machine."
    else:
        action = (
            "Put the certificate of the authority that signed it into 'kafka.ssl.truststore.location' or"
            " 'kafka.ssl.truststore.certificates' (PEM)."
        )
    return AuthenticationFailed(f"This client rejected the certificate of broker {broker}: {reason}.", action)
