"""Builds TLS contexts from PEM.

The driver and the executors read the files themselves, and read them again after a change: later connections use the
new certificate.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spark_group_source.errors import OptionError
from spark_group_source.wire import ssl_stores
from spark_group_source.wire.settings import Tls

log = logging.getLogger(__name__)

_FileStamp = tuple[int, int, int]

_PEM = (
    "PEM is needed: certificates between '-----BEGIN CERTIFICATE-----' and '-----END CERTIFICATE-----', a private key"
    " likewise, and 'kafka.ssl.key.password' if the key is encrypted."
)

_cache: dict[Tls, tuple[tuple[_FileStamp, ...], ssl.SSLContext]] = {}
"""The last context of each settings, with the stamps of the files it was built from."""


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Returns the context for connections; builds it again only after the settings or their files change.

    If a file becomes unusable, perhaps while somebody replaces it, the last context stays in use.

    Raises:
        OptionError: a file cannot be read or parsed, and no earlier version of it was usable.
    """
    try:
        stamps = _file_stamp(tls.ca_file, "truststore"), _file_stamp(tls.key_file, "keystore")
        if tls not in _cache or _cache[tls][0] != stamps:
            _cache[tls] = stamps, _build(tls)
    except OptionError as error:
        if tls not in _cache:
            raise
        log.warning("certificate files are unusable; keeping the certificates read before: %s", error)
    return _cache[tls][1]


def _file_stamp(path: str | None, store: str) -> _FileStamp:
    """Returns numbers that change when the file changes."""
    if path is None:
        return 0, 0, 0
    try:
        status = os.stat(path)
    except OSError as error:
        raise _unreadable(path, store, error) from None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _unreadable(path: str, store: str, error: OSError) -> OptionError:
    text_option = {"truststore": "'kafka.ssl.truststore.certificates'"}.get(store, "'kafka.ssl.keystore.key'")
    return OptionError(
        f"The file '{path}' of 'kafka.ssl.{store}.location' cannot be read on {socket.gethostname()}:"
        f" {error.strerror}.",
        f"Put the file on the driver and on every executor, or write its text into {text_option}, which Spark sends to"
        " them.",
    )


def _build(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host_name
    versions = [ssl.TLSVersion[name.replace(".", "_")] for name in tls.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    # Java trusts every certificate in a truststore, even if it is not a root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.ciphers:
        _set_ciphers(context, tls.ciphers)
    _load_truststore(context, tls)
    _load_keystore(context, tls)
    return context


def _set_ciphers(context: ssl.SSLContext, ciphers: tuple[str, ...]) -> None:
    try:
        context.set_ciphers(":".join(ciphers))
    except ssl.SSLError:
        raise OptionError(
            f"None of the suites in 'kafka.ssl.cipher.suites' is known to {ssl.OPENSSL_VERSION}.",
            "Write names such as TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, or leave the option out.",
        ) from None


def _load_truststore(context: ssl.SSLContext, tls: Tls) -> None:
    if tls.ca_file is not None:
        with _as_option_error(
            f"The file '{tls.ca_file}' of 'kafka.ssl.truststore.location'", tls.ca_file, "truststore"
        ):
            context.load_verify_locations(cafile=tls.ca_file)
    elif tls.ca_text is not None:
        with _as_option_error("'kafka.ssl.truststore.certificates'", "", "truststore"):
            context.load_verify_locations(cadata=tls.ca_text)
    else:
        context.load_default_certs()


def _load_keystore(context: ssl.SSLContext, tls: Tls) -> None:
    # Without any password, OpenSSL would ask for one on the terminal.
    password = "" if tls.key_password is None else tls.key_password.text
    if tls.key_file is not None:
        with _as_option_error(f"The file '{tls.key_file}' of 'kafka.ssl.keystore.location'", tls.key_file, "keystore"):
            context.load_cert_chain(tls.key_file, password=password)
    elif tls.key_text is not None:
        source = "'kafka.ssl.keystore.key' with 'kafka.ssl.keystore.certificate.chain'"
        # OpenSSL reads them only from a file.
        pem = f"{tls.key_text.text}\n{tls.chain_text}\n"
        with _as_option_error(source, "", "keystore"), _private_file(pem) as path:
            context.load_cert_chain(path, password=password)


@contextlib.contextmanager
def _as_option_error(source: str, path: str, store: str) -> Iterator[None]:
    """Turns errors of OpenSSL into an ``OptionError`` that names ``source``."""
    try:
        yield
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = "the key does not belong to the certificate" if mismatch else (error.reason or str(error))
        other_format = ssl_stores.detect_format(Path(path).read_bytes()[:8]) if path else None
        if other_format is not None:
            command = ssl_stores.how_to_convert(store, other_format)
            raise OptionError(f"{source} is {other_format}, not PEM.", command) from None
        raise OptionError(f"{source} cannot be used: {reason}.", _PEM) from None
    except OSError as error:
        raise _unreadable(path, store, error) from None
    except ValueError:
        # Python rejects the password. The error is not the cause, because an encoding error holds the text.
        happened = f"{source} cannot be used: 'kafka.ssl.key.password' is not UTF-8 text of at most 1024 bytes."
        raise OptionError(happened, _PEM) from None


@contextlib.contextmanager
def _private_file(text: str) -> Iterator[str]:
    """Yields the path of a file that only this user may read; deletes the file afterwards."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        yield path
    finally:
        os.unlink(path)
