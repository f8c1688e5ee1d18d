"""PEM as Kafka's Java client reads it, written so that OpenSSL reads it as well.

Secret stores, environment files, YAML and properties files turn the line breaks of PEM into spaces, tabs, indentation,
blank lines or the characters ``\\n``, and put quotes around it. Java's client ignores white space between the markers
(``DefaultSslEngineFactory.PemParser`` of Kafka), but OpenSSL needs the lines.

No error of this module shows a part of a text, because the text may be a private key.
"""

from __future__ import annotations

import base64
import re

CERTIFICATE = re.compile(r"(?:X509 |TRUSTED )?CERTIFICATE")
"""The labels of certificates."""

PRIVATE_KEY = re.compile(r"(?:[A-Z0-9]+ )?PRIVATE KEY")
"""The labels of private keys: those of PKCS #8, and older ones such as ``RSA PRIVATE KEY``."""

_BLOCK = re.compile(r"-+\s*BEGIN\s+([A-Z0-9\s]+?)\s*-+(.*?)-+\s*END\s+\1\s*-{1,5}", re.DOTALL)
"""As in Java, any number of hyphens, because copied text often lacks the first or the last one. The hyphens behind five
may begin the next block: without line breaks, two markers have ten between them."""
_BEGIN = re.compile(r"-+\s*BEGIN\s+([A-Z0-9\s]+?)\s*-+")
_OWN_LINE = re.compile(r"^-----BEGIN [A-Z0-9 ]+-----[ \t\r]*$", re.MULTILINE)
_ESCAPED_BREAK = re.compile(r"\\+[nrt]|\\+(?=\s|$)")
"""A line break or a tab that was escaped, even several times, or a backslash that continues a line."""
_ENCRYPTION = re.compile(
    r"\s*Proc-Type:\s*4\s*,\s*ENCRYPTED\s+DEK-Info:\s*([A-Z0-9-]+)\s*,\s*([0-9A-Fa-f]+)\s(.*)", re.DOTALL
)
"""The headers of a key in an older form that is encrypted (RFC 1421), and its body."""
_LINE = 64
"""Characters of base64 in one line of PEM (RFC 7468)."""


def select(text: str, labels: re.Pattern[str]) -> str:
    """The certificates or keys in a text whose labels match, as PEM without other text. Empty if there are none.

    Raises:
        ValueError: a certificate or key is damaged. The message is the problem, without the text.
    """
    lines = _ESCAPED_BREAK.sub("\n", re.sub("[\"'`\N{BOM}]", "", text))
    blocks = _labelled(_BLOCK, lines, labels)
    begun = _labelled(_BEGIN, lines, labels)
    if len(begun) > len(blocks):
        label = _label(begun[-1])
        raise ValueError(f"a '-----BEGIN {label}-----' has no '-----END {label}-----'")
    return "\n".join(_in_lines(_label(block), block[2], number) for number, block in enumerate(blocks, 1))


def _labelled(pattern: re.Pattern[str], text: str, labels: re.Pattern[str]) -> list[re.Match[str]]:
    """The matches of a pattern whose labels match."""
    matches = []
    for match in pattern.finditer(text):
        if labels.fullmatch(_label(match)):
            matches.append(match)
    return matches


def has_marker(text: str) -> bool:
    """Whether a text has the first marker of a certificate or key, in any form that :func:`select` reads."""
    return _BEGIN.search(text) is not None


def is_base64_of_pem(text: str) -> bool:
    """Whether a text is the base64 of PEM, such as a secret of Kubernetes that was not decoded."""
    return re.match(r"\s*LS0tLS1CRUdJTi", text) is not None


def is_read_in_part(text: str) -> bool:
    """Whether OpenSSL skips a part of this text: it needs each marker on a line of its own, and ignores any other."""
    return len(_OWN_LINE.findall(text)) < len(_BEGIN.findall(text))


def problem_of_keystore(text: str, has_password: bool) -> str | None:
    """Why a key and its certificates cannot be loaded, where OpenSSL only says "PEM lib"; ``None`` if unknown."""
    if not _BEGIN.search(text):
        return None
    if not _labelled(_BEGIN, text, PRIVATE_KEY):
        return "it has no private key"
    if not _labelled(_BEGIN, text, CERTIFICATE):
        return "it has no certificate"
    if "ENCRYPTED" not in text:
        return None
    if has_password:
        return "the password does not decrypt the private key"
    return "the private key needs a password"


def _label(match: re.Match[str]) -> str:
    return " ".join(match[1].split())


def _in_lines(label: str, body: str, number: int) -> str:
    # OpenSSL appends data to a trusted certificate, which it ignores when it reads a plain one.
    label = label.removeprefix("TRUSTED ")
    headers, body = _without_headers(body)
    encoded = re.sub(r"\s", "", body)
    if not _is_base64(encoded):
        raise ValueError(
            f"{label} number {number} is not base64 between its markers: its line breaks may have been replaced by"
            " other characters than spaces, or a part is missing"
        )
    lines = [encoded[at : at + _LINE] for at in range(0, len(encoded), _LINE)]
    return "\n".join([f"-----BEGIN {label}-----", *headers, *lines, f"-----END {label}-----"])


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False


def _without_headers(body: str) -> tuple[list[str], str]:
    """The lines of the headers of an encrypted key, and the base64 behind them."""
    match = _ENCRYPTION.fullmatch(body)
    if match is None:
        return [], body
    return ["Proc-Type: 4,ENCRYPTED", f"DEK-Info: {match[1]},{match[2]}", ""], match[3]
