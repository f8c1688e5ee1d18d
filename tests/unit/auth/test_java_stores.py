"""Formats of Java's key and trust stores."""

from __future__ import annotations

from pathlib import Path

from spark_group_source.auth.java_stores import format_of


def test_the_format_of_a_store_follows_from_its_first_bytes(tmp_path: Path) -> None:
    file = tmp_path / "store"
    assert format_of(str(file)) is None
    for head, name in (
        (b"\x30\x77\x02\x01\x01\x04\x20", "DER"),  # an EC key, shorter than 128 bytes
        (b"\x30\x81\xb6\x02\x01\x00\x30", "DER"),
        (b"\x30\x83\x01\x00\x00\x30\x82", "DER"),
        (b"\x30\x80\x02\x01\x03\x30\x80", "PKCS12"),
        (b"\x30\x82\x09\x1f\x02\x01\x03", "PKCS12"),
        (b"\xfe\xed\xfe\xed\x00\x00\x00", "JKS"),
        (b"-----BEGIN CERT", None),
        (b"", None),
    ):
        file.write_bytes(head)
        assert format_of(str(file)) == name
