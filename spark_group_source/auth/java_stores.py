"""Java's key and trust stores, which are rejected because Python reads PEM: their formats, and how to convert them."""

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
    commands = _KEYSTORE_COMMANDS
    if store == "truststore":
        commands = _TRUSTSTORE_COMMANDS
    return f"Convert it to PEM with {commands[store_format]}"


def format_of(path: str) -> str | None:
    """Returns ``JKS``, ``PKCS12`` or ``DER`` for a file of this format; ``None`` for another file, and for no file."""
    try:
        with open(path, "rb") as file:
            return _format(file.read(16))
    except OSError:
        return None


def _format(head: bytes) -> str | None:
    if head.startswith(b"\xfe\xed\xfe\xed"):
        return "JKS"
    if len(head) < 2 or head[0] != 0x30:
        return None
    # A DER sequence. A length below 128 takes one byte. Otherwise this byte is the number of length bytes that follow.
    length_bytes = 0
    if head[1] & 0x80:
        length_bytes = head[1] & 0x7F
    # PKCS #12 begins with its version, which is 3.
    if head[2 + length_bytes :].startswith(b"\x02\x01\x03"):
        return "PKCS12"
    return "DER"
