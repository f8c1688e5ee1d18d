"""Detects key and trust stores that are not PEM, which Python cannot read, and names the commands that convert them."""

from __future__ import annotations

_TRUSTSTORE_COMMANDS = {
    "JKS": "keytool -list -rfc -keystore trust.jks > trust.pem",
    "PKCS12": "openssl pkcs12 -in trust.p12 -nokeys -out trust.pem",
    "DER": "openssl x509 -inform der -in trust.der -out trust.pem",
}
_KEYSTORE_COMMANDS = {
    "JKS": "keytool -importkeystore -srckeystore client.jks -destkeystore client.p12 -deststoretype PKCS12, then"
    " openssl pkcs12 -in client.p12 -out client.pem",
    "PKCS12": "openssl pkcs12 -in client.p12 -out client.pem",
    "DER": "openssl pkey -inform der -in key.der -out client.pem, then openssl x509 -inform der -in chain.der >>"
    " client.pem",
}


def how_to_convert(store: str, store_format: str) -> str:
    """Returns a sentence with the command that converts a ``truststore`` or a ``keystore`` to PEM."""
    commands = _TRUSTSTORE_COMMANDS if store == "truststore" else _KEYSTORE_COMMANDS
    return f"Convert it to PEM with {commands[store_format]}"


def detect_format(head: bytes) -> str | None:
    """Returns ``JKS``, ``PKCS12`` or ``DER`` for a file that begins with these bytes; otherwise ``None``."""
    if head.startswith(b"\xfe\xed\xfe\xed"):
        return "JKS"
    # A DER sequence with a length of two bytes, or of any length. PKCS #12 begins with its version, which is 3.
    content = head[4:] if head.startswith(b"\x30\x82") else head[2:] if head.startswith(b"\x30\x80") else None
    if content is None:
        return None
    return "PKCS12" if content.startswith(b"\x02\x01\x03") else "DER"
