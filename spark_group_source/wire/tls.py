"""TLS: contexts from PEM, the handshake over a connected socket, and errors of the handshake and of the session.

The driver and the executors read the files themselves, and again after a change, for later connections.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import socket
import ssl
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeGuard

from spark_group_source.clock import WARN_EVERY, Deadline, LogEvery
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    OptionError,
)
from spark_group_source.wire import pem, waiting
from spark_group_source.wire.settings import Tls, format_of, how_to_convert

log = logging.getLogger(__name__)

_FileStamp = tuple[int, int, int]


class UnusableCertificates(OptionError):
    """A file or a text can be read and is not what is needed. It may not be written completely yet."""


_cache: dict[Tls, tuple[tuple[_FileStamp, ...], ssl.SSLContext]] = {}
"""The last context of each settings, with the stamps of the files it was built from."""

_warnings: defaultdict[Tls, LogEvery] = defaultdict(partial(LogEvery, WARN_EVERY))


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Returns the context for connections; builds it again only after the settings or their files change.

    If a file becomes unusable, perhaps while it is replaced, the last context stays in use.

    Raises:
        OptionError: a file cannot be read, or :class:`UnusableCertificates`; and no earlier version was usable.
    """
    try:
        stamps = _file_stamp(tls, tls.ca_file, "truststore"), _file_stamp(tls, tls.key_file, "keystore")
        if tls not in _cache or _cache[tls][0] != stamps:
            _cache[tls] = stamps, _build(tls)
    except OptionError as error:
        if tls not in _cache:
            raise
        if _warnings[tls].try_acquire():
            log.warning("certificate files are unusable; keeping the certificates read before: %s", error)
    return _cache[tls][1]


def _file_stamp(tls: Tls, path: str | None, store: str) -> _FileStamp:
    """Returns numbers that change when the file changes."""
    if path is None:
        return 0, 0, 0
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(tls, path, store, error) from None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _unreadable(tls: Tls, path: str, store: str, error: OSError) -> OptionError:
    text = tls.name("ssl.truststore.certificates" if store == "truststore" else "ssl.keystore.key")
    return OptionError(
        f"The file '{path}' of {tls.name(f'ssl.{store}.location')} cannot be read on {socket.gethostname()}:"
        f" {error.strerror}.",
        f"Put the file on the driver and on every executor, or write its text into {text}, which Spark sends to them.",
    )


def _build(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host_name
    versions = [ssl.TLSVersion[name.replace(".", "_")] for name in tls.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    # Java trusts every certificate in a truststore, even if it is not a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.ciphers:
        _set_ciphers(context, tls)
    _load_truststore(context, tls)
    _load_keystore(context, tls)
    return context


def _set_ciphers(context: ssl.SSLContext, tls: Tls) -> None:
    try:
        context.set_ciphers(":".join(tls.ciphers))
    except ssl.SSLError:
        raise OptionError(
            f"None of the suites of {tls.name('ssl.cipher.suites')} is known to {ssl.OPENSSL_VERSION}.",
            "Write names such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, or leave them out.",
        ) from None


def _load_truststore(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.ca_file is not None:
        with _as_option_error(tls, "truststore", tls.ca_file):
            _load_truststore_file(context, tls.ca_file)
    elif tls.ca_text is not None:
        with _as_option_error(tls, "truststore"):
            context.load_verify_locations(cadata=tls.ca_text)
    else:
        context.load_default_certs()


def _load_truststore_file(context: ssl.SSLContext, path: str) -> None:
    _load_file(
        path,
        (pem.CERTIFICATE,),
        lambda: context.load_verify_locations(cafile=path),
        lambda certificates: context.load_verify_locations(cadata=certificates),
    )


def _load_file(
    path: str, labels: Sequence[re.Pattern[str]], load: Callable[[], None], load_text: Callable[[str], None]
) -> None:
    """Loads a file as it is. If OpenSSL does not read its lines, or skips some, loads what Java's client reads.

    Args:
        labels: what the file holds.
        load: loads the file.
        load_text: loads PEM.
    """
    text = _text(path)
    if not pem.is_read_in_part(text):
        try:
            load()
            return
        except ssl.SSLError:
            if not _rewritten(text, labels):
                raise
    rewritten = _rewritten(text, labels)
    if rewritten:
        load_text(rewritten)
    else:
        load()


def _text(path: str) -> str:
    """A file of PEM with the line breaks that OpenSSL sees; what is not UTF-8, as in a comment, is no PEM."""
    return Path(path).read_bytes().decode("utf-8", "replace")


def _rewritten(text: str, labels: Sequence[re.Pattern[str]]) -> str:
    """The PEM in a text with lines as OpenSSL reads them; empty without any, and if it is damaged."""
    try:
        return "\n".join(filter(None, (pem.select(text, each) for each in labels)))
    except ValueError:
        return ""  # the error of OpenSSL is raised


def _load_keystore(context: ssl.SSLContext, tls: Tls) -> None:
    # Without any password, OpenSSL would ask for one on the terminal.
    password = "" if tls.key_password is None else tls.key_password.text
    if tls.key_file is not None:
        with _as_option_error(tls, "keystore", tls.key_file):
            _load_keystore_file(context, tls, tls.key_file, password)
    elif tls.key_text is not None:
        # OpenSSL reads them only from a file.
        with _private_file(tls, f"{tls.key_text.text}\n{tls.chain_text}\n") as path, _as_option_error(tls, "keystore"):
            context.load_cert_chain(path, password=password)


def _load_keystore_file(context: ssl.SSLContext, tls: Tls, path: str, password: str) -> None:
    def load_text(text: str) -> None:
        with _private_file(tls, f"{text}\n") as private:
            context.load_cert_chain(private, password=password)

    load = partial(context.load_cert_chain, path, password=password)
    _load_file(path, (pem.PRIVATE_KEY, pem.CERTIFICATE), load, load_text)


@contextlib.contextmanager
def _as_option_error(tls: Tls, store: str, path: str | None = None) -> Iterator[None]:
    """Turns errors of OpenSSL into an ``OptionError`` that names the file of a store, or the options with its text."""
    if path is not None:
        source = f"The file '{path}' of {tls.name(f'ssl.{store}.location')}"
    elif store == "truststore":
        source = tls.name("ssl.truststore.certificates")
    else:
        source = f"{tls.name('ssl.keystore.key')} with {tls.name('ssl.keystore.certificate.chain')}"
    password = tls.name("ssl.key.password")
    needed = (
        "PEM is needed: certificates between '-----BEGIN CERTIFICATE-----' and '-----END CERTIFICATE-----', a private"
        f" key likewise, with their line breaks, and {password} if the key is encrypted."
    )
    try:
        yield
    except ssl.SSLError as error:
        other_format = None if path is None else format_of(path)
        if other_format is not None:
            command = how_to_convert(store, other_format)
            raise UnusableCertificates(f"{source} is {other_format}, not PEM.", command) from None
        reason = _problem(tls, store, path, error)
        raise UnusableCertificates(f"{source} cannot be used: {reason}.", needed) from None
    except OSError as error:
        if path is None:
            raise
        raise _unreadable(tls, path, store, error) from None
    except ValueError:
        # Python rejects the password. The error is not the cause, because an encoding error holds the text.
        happened = f"{source} cannot be used: {password} is not UTF-8 text of at most 1024 bytes."
        raise UnusableCertificates(happened, needed) from None


def _problem(tls: Tls, store: str, path: str | None, error: ssl.SSLError) -> str:
    """What an error of OpenSSL means."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if error.reason or store != "keystore":
        return error.reason or str(error)
    return pem.problem_of_keystore(_keystore_text(tls, path), tls.key_password is not None) or str(error)


def _keystore_text(tls: Tls, path: str | None) -> str:
    if path is None:
        assert tls.key_text is not None
        return f"{tls.key_text.text}\n{tls.chain_text}"
    try:
        return _text(path)
    except OSError:  # it has just been replaced
        return ""


@contextlib.contextmanager
def _private_file(tls: Tls, text: str) -> Iterator[str]:
    """Yields the path of a file that only this user may read; deletes the file afterwards."""
    path = None
    try:
        try:
            descriptor, path = tempfile.mkstemp(suffix=".pem")
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(text)
        except OSError as error:
            raise OptionError(
                f"No temporary file for {tls.name('ssl.keystore.key')} can be written on {socket.gethostname()}:"
                f" {error}.",
                "Set the environment variable TMPDIR to a directory that this user may write, or name a file in"
                f" {tls.name('ssl.keystore.location')} instead.",
            ) from None
        yield path
    finally:
        if path is not None:
            os.unlink(path)


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

    ``check_address`` is the action if no TLS is used at the address, ``use_certified_host`` the one if the certificate
    is of other hosts.
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
    if any(part in reason for part in _NOTHING_IN_COMMON):
        return AuthenticationFailed(
            f"{peer.name} and this client have no TLS version or cipher suite in common ({reason}).",
            f"Compare {settings.name('ssl.enabled.protocols')} and {settings.name('ssl.cipher.suites')} with the"
            " settings of the other side.",
        )
    return BrokerUnavailable(f"{peer.name} ended the TLS handshake: {error}.", peer.check_address)


def is_tls_error(error: OSError) -> TypeGuard[ssl.SSLError]:
    """Whether TLS itself failed, not the connection below it."""
    return isinstance(error, ssl.SSLError)


def session_error(broker: str, error: ssl.SSLError, *, responded: bool) -> GroupSourceError:
    """Converts an error after the handshake. It does not mean that the settings are wrong, with one exception.

    With TLS 1.3 a broker rejects a client's certificate after the handshake, but before its first response.
    """
    reason = _reason(error)
    if not responded and _rejects_client_certificate(reason):
        return _client_certificate_rejected(broker_peer(broker), reason, Tls())
    return BrokerUnavailable(f"The TLS session with broker {broker} broke: {error}.")


def _reason(error: OSError) -> str:
    return (error.reason or "") if isinstance(error, ssl.SSLError) else ""


def _rejects_client_certificate(reason: str) -> bool:
    return "ALERT" in reason and any(part in reason for part in _CLIENT_CERTIFICATE_ALERTS)


def _client_certificate_rejected(peer: Peer, reason: str, settings: Tls) -> AuthenticationFailed:
    location, chain, key = (settings.name(f"ssl.keystore.{part}") for part in ("location", "certificate.chain", "key"))
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
