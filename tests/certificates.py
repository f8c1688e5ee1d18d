"""Certificates for tests: an authority, and files in PEM as both Kafka's brokers and Python read them."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


class Authority:
    """Signs certificates and writes them into a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, file: str, password: str | None = None, ends: datetime | None = None) -> Path:
        """A file with a private key, encrypted where there is a password, and its certificate, for hosts or clients."""
        issued = self._ca.issue_cert(*names, not_after=ends)
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        # PKCS#8 is the only form of keys that Kafka's brokers read.
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption(),
        )
        path = self._directory / file
        path.write_bytes(text + b"".join(each.bytes() for each in issued.cert_chain_pems))
        return path


def parts(file: Path) -> tuple[str, str]:
    """The private key and the certificate chain in a file."""
    key, mark, chain = file.read_text().partition("-----BEGIN CERTIFICATE-----")
    return key, mark + chain
