"""Java's key and trust stores, which Python cannot read: how to tell them, and the commands that make PEM of them."""

from __future__ import annotations

_TRUST = {
    "JKS": "keytool -list -rfc -keystore trust.jks > trust.pem",
    "PKCS12": "openssl pkcs12 -in trust.p12 -nokeys -out trust.pem",
}
_KEY = {
    "JKS": "keytool -importkeystore -srckeystore client.jks -destkeystore client.p12 -deststoretype PKCS12, then"
    " openssl pkcs12 -in client.p12 -out client.pem",
    "PKCS12": "openssl pkcs12 -in client.p12 -out client.pem",
}


def conversion(store: str, kind: str) -> str:
    """How to make PEM of a ``truststore`` or a ``keystore`` of a kind."""
    return f"make a PEM file of it with {(_TRUST if store == 'truststore' else _KEY)[kind]}"


def kind(head: bytes) -> str | None:
    """What a file that begins like this is, of those that need a conversion."""
    if head.startswith(b"\xfe\xed\xfe\xed"):
        return "JKS"
    # A sequence of DER with a length of two bytes, or of any length.
    return "PKCS12" if head.startswith((b"\x30\x82", b"\x30\x80")) else None
