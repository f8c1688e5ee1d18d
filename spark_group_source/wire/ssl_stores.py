"""Key and trust stores that are not PEM, which Python cannot read: how to tell them, and the commands that make PEM of
them."""

from __future__ import annotations

_TRUST = {
    "JKS": "keytool -list -rfc -keystore trust.jks > trust.pem",
    "PKCS12": "openssl pkcs12 -in trust.p12 -nokeys -out trust.pem",
    "DER": "openssl x509 -inform der -in trust.der -out trust.pem",
}
_KEY = {
    "JKS": "keytool -importkeystore -srckeystore client.jks -destkeystore client.p12 -deststoretype PKCS12, then"
    " openssl pkcs12 -in client.p12 -out client.pem",
    "PKCS12": "openssl pkcs12 -in client.p12 -out client.pem",
    "DER": "openssl pkey -inform der -in key.der -out client.pem, then openssl x509 -inform der -in chain.der >>"
    " client.pem",
}


def conversion(store: str, kind: str) -> str:
    """How to make PEM of a ``truststore`` or a ``keystore`` of a kind."""
    return f"Make a PEM file of it with {(_TRUST if store == 'truststore' else _KEY)[kind]}"


def kind(head: bytes) -> str | None:
    """What a file that begins like this is, of those that need a conversion."""
    if head.startswith(b"\xfe\xed\xfe\xed"):
        return "JKS"
    # A sequence of DER with a length of two bytes, or of any length; PKCS #12 begins with its version, which is 3.
    inside = head[4:] if head.startswith(b"\x30\x82") else head[2:] if head.startswith(b"\x30\x80") else None
    if inside is None:
        return None
    return "PKCS12" if inside.startswith(b"\x02\x01\x03") else "DER"
