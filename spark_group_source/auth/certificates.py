"""Certificates and keys in PEM: the SSL contexts that hold them, and errors that name the option or file to correct.

The driver and the executors read the files themselves, and again after a change, for later connections.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from spark_group_source.auth import pem
from spark_group_source.auth.java_stores import format_of, how_to_convert
from spark_group_source.auth.tls import Tls
from spark_group_source.clock import WARN_EVERY, LogEvery
from spark_group_source.errors import OptionError

log = logging.getLogger(__name__)

_FileStamp = tuple[int, int, int]


class UnusableCertificates(OptionError):
    """A file or a text can be read, but OpenSSL cannot use it. The file may not be completely written yet."""


_cache: dict[Tls, tuple[tuple[_FileStamp, ...], ssl.SSLContext]] = {}
"""The last context by settings, with the stamps of the files from which it was built."""

_warnings: defaultdict[Tls, LogEvery] = defaultdict(partial(LogEvery, WARN_EVERY))


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Returns the context for connections. Builds it again only after the settings or their files change.

    If a file becomes unusable, perhaps while it is replaced, the last context stays in use.

    Raises:
        OptionError: a file cannot be read or used (:class:`UnusableCertificates`), and no earlier version was usable.
    """
    try:
        stamps = _file_stamp(tls, tls.ca_file, "truststore"), _file_stamp(tls, tls.key_file, "keystore")
        if tls not in _cache or _cache[tls][0] != stamps:
            _cache[tls] = stamps, _build(tls)
    except OptionError as error:
        if tls not in _cache:
            raise
        if _warnings[tls].try_acquire():
            log.warning("cannot use the certificate files, still using the certificates read before: %s", error)
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
    text = tls.name("ssl.keystore.key")
    if store == "truststore":
        text = tls.name("ssl.truststore.certificates")
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
    """Loads a file as it is. If OpenSSL does not read its lines, or skips some, loads the parts that Java's client
    reads.

    Args:
        labels: the labels of the PEM that the file holds.
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
    """The text of a PEM file, with the line breaks that OpenSSL sees. Bytes that are not UTF-8 are no PEM."""
    return Path(path).read_bytes().decode("utf-8", "replace")


def _rewritten(text: str, labels: Sequence[re.Pattern[str]]) -> str:
    """The PEM in a text, in lines as OpenSSL reads them; empty if the text has no PEM, or damaged PEM."""
    found = []
    try:
        for label in labels:
            selected = pem.select(text, label)
            if selected:
                found.append(selected)
    except ValueError:
        return ""  # the caller raises the error of OpenSSL
    return "\n".join(found)


def _load_keystore(context: ssl.SSLContext, tls: Tls) -> None:
    # Without any password, OpenSSL would ask for one on the terminal.
    password = ""
    if tls.key_password is not None:
        password = tls.key_password.text
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
    source = _source(tls, store, path)
    password = tls.name("ssl.key.password")
    needed = (
        "PEM is needed: certificates between '-----BEGIN CERTIFICATE-----' and '-----END CERTIFICATE-----', a private"
        f" key likewise, with their line breaks, and {password} if the key is encrypted."
    )
    try:
        yield
    except ssl.SSLError as error:
        other_format = None
        if path is not None:
            other_format = format_of(path)
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


def _source(tls: Tls, store: str, path: str | None) -> str:
    """Names the file of a store, or the options with its text."""
    if path is not None:
        return f"The file '{path}' of {tls.name(f'ssl.{store}.location')}"
    if store == "truststore":
        return tls.name("ssl.truststore.certificates")
    return f"{tls.name('ssl.keystore.key')} with {tls.name('ssl.keystore.certificate.chain')}"


def _problem(tls: Tls, store: str, path: str | None, error: ssl.SSLError) -> str:
    """The meaning of an error of OpenSSL."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if error.reason:
        return error.reason
    problem = None
    if store == "keystore":
        problem = pem.problem_of_keystore(_keystore_text(tls, path), tls.key_password is not None)
    if problem is None:
        return str(error)
    return problem


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
