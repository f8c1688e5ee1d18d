"""SSL contexts of certificates in files and texts."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from spark_group_source.auth import certificates
from spark_group_source.auth.tls import Tls
from spark_group_source.errors import OptionError
from spark_group_source.text import Secret
from tests.certificates import Authority


def test_a_context_is_kept_until_its_files_are_usable(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    file = authority.issue("client", file="first.pem")
    settings = Tls(ca_file=str(authority.file), key_file=str(file))
    first = certificates.ssl_context(settings)
    assert certificates.ssl_context(Tls(ca_file=str(authority.file), key_file=str(file))) is first
    authority.issue("client", file="second.pem").rename(file)
    second = certificates.ssl_context(settings)
    assert second is not first
    file.write_bytes(file.read_bytes()[:100])
    assert certificates.ssl_context(settings) is second
    file.unlink()
    assert certificates.ssl_context(settings) is second
    warning = "cannot use the certificate files, still using the certificates read before"
    assert caplog.text.count(warning) == 1
    certificates._warnings.clear()  # as after a minute
    assert certificates.ssl_context(settings) is second
    assert caplog.text.count(warning) == 2
    authority.issue("client", file="third.pem").rename(file)
    assert certificates.ssl_context(settings) is not second


def test_the_error_of_a_missing_file_names_the_file(authority: Authority, tmp_path: Path) -> None:
    settings = Tls(ca_file=str(authority.file), key_file=str(tmp_path / "client.pem"))
    with pytest.raises(OptionError, match=r"client.pem' of 'kafka.ssl.keystore.location'.*every executor"):
        certificates.ssl_context(settings)


def test_the_text_of_a_key_is_in_a_private_file_only_while_it_is_read(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    look = Mock(side_effect=lambda file, **_: modes.append(Path(file).stat().st_mode & 0o777))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    certificates.ssl_context(Tls(ca_file=str(authority.file), key_text=Secret("key"), chain_text="chain"))
    assert modes == [0o600]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    says = r"No temporary file for 'kafka\.ssl\.keystore\.key' can be written on .*/none/.*TMPDIR.*keystore\.location"
    with pytest.raises(OptionError, match=says):
        certificates.ssl_context(Tls(ca_file=str(authority.file), key_text=Secret("another key"), chain_text="chain"))
