"""TLS over a connected socket: contexts made of PEM, the handshake, and what its errors mean.

Files are read where they are used, on the driver and on the executors, and read again when they change: connections
made from then on have the new certificate.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    OptionError,
)
from spark_group_source.wire import ssl_stores, waiting
from spark_group_source.wire.settings import Tls

log = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]

PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
"""Versions of TLS by Java's names, which are those that brokers from 3.3 on speak by default."""

_SERVER_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_PERIOD = {9, 10}  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_OURS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT_ERROR")
"""Parts of the names of alerts by which a broker refuses the client's certificate, or the lack of one."""
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
"""What OpenSSL calls the first bytes of a peer that does not speak TLS."""
_NO_AGREEMENT = ("PROTOCOL", "CIPHER", "HANDSHAKE_FAILURE", "INSUFFICIENT_SECURITY")
"""Parts of the names of errors by which the two sides find no version or cipher that both speak."""

_NO_TLS = (
    "A listener without TLS answers like this: check the port in 'kafka.bootstrap.servers', or set"
    " 'kafka.security.protocol' to what the listener speaks (PLAINTEXT, SASL_PLAINTEXT)."
)
_PEM = (
    "PEM is needed: certificates between '-----BEGIN CERTIFICATE-----' and '-----END CERTIFICATE-----', a private key"
    " likewise, and 'kafka.ssl.key.password' where the key is encrypted."
)
_CLIENT_CERTIFICATE = (
    "Give a certificate that the broker trusts, with its key, in 'kafka.ssl.keystore.location', or in"
    " 'kafka.ssl.keystore.certificate.chain' and 'kafka.ssl.keystore.key'."
)


_kept: dict[Tls, tuple[tuple[_Stamp, ...], ssl.SSLContext]] = {}
"""What was last made of each settings, and of which files."""


def context(tls: Tls) -> ssl.SSLContext:
    """What connections are made with; kept for as long as the settings and the files they name stay as they are.

    Where a file is of no use any more, perhaps while it is being replaced, what was made of the last one goes on.

    Raises:
        OptionError: a file cannot be read here, or is not what it should be, and never was.
    """
    try:
        stamps = _stamp(tls.ca_file, "truststore"), _stamp(tls.key_file, "keystore")
        if tls not in _kept or _kept[tls][0] != stamps:
            _kept[tls] = stamps, _made(tls)
    except OptionError as error:
        if tls not in _kept:
            raise
        log.warning("the certificates read before are used on: %s", error)
    return _kept[tls][1]


def handshake(sock: socket.socket, host: str, broker: str, settings: Tls, deadline: Deadline) -> ssl.SSLSocket:
    """The socket with TLS over it; ``sock`` belongs to it from then on, and is closed where that fails.

    Args:
        host: whose certificate it must be.
        broker: what errors call the peer.

    Raises:
        AuthenticationFailed: one side does not accept the other's certificate, or they share no version or cipher.
        BrokerUnavailable: the connection broke.
        DeadlineExceeded: it took too long.
        OptionError: as :func:`context`.
    """
    secured = sock
    try:
        made = context(settings).wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        secured = made
        made.setblocking(False)
        _shake_hands(made, deadline)
    except TimeoutError as error:
        secured.close()
        raise DeadlineExceeded(f"Broker {broker} did not end the TLS handshake in time. {_NO_TLS}") from error
    except OSError as error:
        secured.close()
        raise trouble(broker, error) from error
    except BaseException:
        secured.close()
        raise
    return made


def _shake_hands(sock: ssl.SSLSocket, deadline: Deadline) -> None:
    """Completes the handshake of a socket that does not block.

    Raises:
        TimeoutError: it took too long.
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


def trouble(broker: str, error: OSError) -> GroupSourceError:
    """What an error of the handshake means, as an error that says what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _refused_here(broker, error)
    reason = _reason(error)
    if reason in _NOT_TLS:
        return AuthenticationFailed(f"Broker {broker} does not speak TLS ({reason}).", _NO_TLS)
    if _refuses_certificate(reason):
        return _certificate_refused(broker, reason)
    if any(each in reason for each in _NO_AGREEMENT):
        return AuthenticationFailed(
            f"Broker {broker} and this client could not agree on how to encrypt ({reason}).",
            "Check 'kafka.ssl.enabled.protocols' and 'kafka.ssl.cipher.suites' against the broker's.",
        )
    return BrokerUnavailable(f"Broker {broker} ended the TLS handshake: {error}.", _NO_TLS)


def session_trouble(broker: str, error: ssl.SSLError, *, answered: bool) -> GroupSourceError:
    """What an error after the handshake means. It says nothing about the settings, with one exception.

    With TLS 1.3 a broker refuses a client's certificate only after the client's handshake, but before its first answer.
    """
    reason = _reason(error)
    if not answered and _refuses_certificate(reason):
        return _certificate_refused(broker, reason)
    return BrokerUnavailable(f"The TLS session with broker {broker} broke: {error}.")


def _reason(error: OSError) -> str:
    return (error.reason or "") if isinstance(error, ssl.SSLError) else ""


def _refuses_certificate(reason: str) -> bool:
    return "ALERT" in reason and any(each in reason for each in _OURS)


def _certificate_refused(broker: str, reason: str) -> AuthenticationFailed:
    return AuthenticationFailed(f"Broker {broker} refused this client's certificate ({reason}).", _CLIENT_CERTIFICATE)


def _refused_here(broker: str, error: ssl.SSLCertVerificationError) -> AuthenticationFailed:
    why = error.verify_message.rstrip(".")
    if error.verify_code in _SERVER_NAME:
        action = (
            "Reach the broker by a name in its certificate ('kafka.bootstrap.servers', and the brokers'"
            " advertised.listeners), or add the name there (subjectAltName). To do without this check set"
            " 'kafka.ssl.endpoint.identification.algorithm' to an empty text."
        )
    elif error.verify_code in _PERIOD:
        action = "Renew the broker's certificate, or set the clock of this machine."
    else:
        action = (
            "Name the authority that signed it in 'kafka.ssl.truststore.location' or"
            " 'kafka.ssl.truststore.certificates' (PEM)."
        )
    return AuthenticationFailed(f"The certificate of broker {broker} is refused: {why}.", action)


def _stamp(path: str | None, store: str) -> _Stamp:
    """Changes when the file does."""
    if path is None:
        return 0, 0, 0
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, store, error) from None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _unreadable(path: str, store: str, error: OSError) -> OptionError:
    text = {"truststore": "'kafka.ssl.truststore.certificates'"}.get(store, "'kafka.ssl.keystore.key'")
    return OptionError(
        f"The file '{path}' of 'kafka.ssl.{store}.location' cannot be read on {socket.gethostname()}:"
        f" {error.strerror}.",
        f"It must be there on the driver and on every executor; or give its text in {text}, which Spark takes there.",
    )


def _made(tls: Tls) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = tls.check_host_name
    spoken = [PROTOCOLS[each] for each in tls.versions]
    made.minimum_version, made.maximum_version = min(spoken), max(spoken)
    # Java trusts what stands in a truststore, also where it is no root.
    made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.ciphers:
        _choose(made, tls.ciphers)
    _trust(made, tls)
    if tls.key_file is not None:
        with _explained(f"The file '{tls.key_file}' of 'kafka.ssl.keystore.location'", tls.key_file, "keystore"):
            made.load_cert_chain(tls.key_file, password=_password(tls))
    elif tls.key_text is not None:
        what = "'kafka.ssl.keystore.key' with 'kafka.ssl.keystore.certificate.chain'"
        # OpenSSL reads them from a file only.
        with _explained(what, "", "keystore"), _file(f"{tls.key_text.text}\n{tls.chain_text}\n") as path:
            made.load_cert_chain(path, password=_password(tls))
    return made


def _trust(made: ssl.SSLContext, tls: Tls) -> None:
    if tls.ca_file is not None:
        with _explained(f"The file '{tls.ca_file}' of 'kafka.ssl.truststore.location'", tls.ca_file, "truststore"):
            made.load_verify_locations(cafile=tls.ca_file)
    elif tls.ca_text is not None:
        with _explained("'kafka.ssl.truststore.certificates'", "", "truststore"):
            made.load_verify_locations(cadata=tls.ca_text)
    else:
        made.load_default_certs()


def _choose(made: ssl.SSLContext, ciphers: tuple[str, ...]) -> None:
    try:
        made.set_ciphers(":".join(ciphers))
    except ssl.SSLError:
        raise OptionError(
            f"None of the suites in 'kafka.ssl.cipher.suites' is known to {ssl.OPENSSL_VERSION}.",
            "Write names such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, or leave it out.",
        ) from None


def _password(tls: Tls) -> str:
    # An empty one where there is none: without any OpenSSL would ask for it on the terminal.
    return "" if tls.key_password is None else tls.key_password.text


@contextlib.contextmanager
def _explained(what: str, path: str, store: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = "the key does not belong to the certificate" if mismatch else (error.reason or str(error))
        foreign = ssl_stores.kind(Path(path).read_bytes()[:8]) if path else None
        if foreign is not None:
            raise OptionError(f"{what} is {foreign}, not PEM.", ssl_stores.conversion(store, foreign)) from None
        raise OptionError(f"{what} cannot be used: {reason}.", _PEM) from None
    except OSError as error:
        raise _unreadable(path, store, error) from None
    except ValueError:
        # Python's own, of a password; without it, as an error of its encoding holds the text.
        raise OptionError(
            f"{what} cannot be used: 'kafka.ssl.key.password' is no text of at most 1024 bytes in UTF-8.", _PEM
        ) from None


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """A file that only this user may read, gone as soon as it was read."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
