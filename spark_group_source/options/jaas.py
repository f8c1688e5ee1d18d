"""``sasl.jaas.config``: one login module with its settings, as Kafka's Java client takes it.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";

The rules of quoting are those of ``java.io.StreamTokenizer``, which Kafka's client reads it with. No error
shows a value.
"""

from __future__ import annotations

import re

from spark_group_source.secret import Secret

EXAMPLE = (
    'a line such as: org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";'
)
_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | //[^\n]* | /\*.*?\*/ )
    | "(?P<double> (?:[^"\\\n]|\\.)* )"
    | '(?P<single> (?:[^'\\\n]|\\.)* )'
    | (?P<word> [^\s"'=;/]+ )
    | (?P<mark> [=;] )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_INSTEAD = {
    "OAuthBearerLoginModule": "no OAuthBearerLoginModule: set 'kafka.sasl.oauthbearer.token.provider' to a function"
    " that returns tokens",
    "Krb5LoginModule": "no Krb5LoginModule: with GSSAPI the ticket of the process is used (kinit, or"
    " KRB5_CLIENT_KTNAME) and 'kafka.sasl.kerberos.service.name'",
    "IAMLoginModule": "no IAMLoginModule: set 'kafka.sasl.mechanism' to OAUTHBEARER, and"
    " 'kafka.sasl.oauthbearer.token.provider' to a function that returns tokens of aws-msk-iam-sasl-signer-python",
}


def credentials(text: str) -> tuple[str, Secret]:
    """User name and password of a PlainLoginModule or ScramLoginModule, in any package: some platforms rename it.

    Raises:
        ValueError: it is something else; the message goes on from "It must be".
    """
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise ValueError(f"{EXAMPLE} (it ends with a semicolon)")
    module = tokens[0][1].rpartition(".")[2]
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise ValueError(_INSTEAD.get(module, f"a PlainLoginModule or ScramLoginModule, {EXAMPLE}"))
    if tokens[1][1].lower() not in _FLAGS:
        raise ValueError(f"{EXAMPLE} ('required' follows the module's name)")
    settings = _settings(tokens[2:-1])
    if settings.get("tokenauth", "").lower() == "true":
        raise ValueError("without tokenauth: delegation tokens are not taken here")
    if not settings.get("username") or "password" not in settings:
        raise ValueError(f"{EXAMPLE} (username and password are needed)")
    return settings["username"], Secret(settings["password"])


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kind and value of each; a quoted text is a word."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"{EXAMPLE} (a quote is not closed, or a value with other characters is not in quotes)")
        kind, at = match.lastgroup, match.end()
        if kind in ("double", "single"):
            found.append(("word", _unescaped(match[kind])))
        elif kind != "blank":
            found.append((kind, match[kind]))
    return found


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\([0-3]?[0-7]{1,2}|.)", plain, text, flags=re.DOTALL)


def _settings(tokens: list[tuple[str, str]]) -> dict[str, str]:
    found = {}
    for at in range(0, len(tokens), 3):
        part = tokens[at : at + 3]
        if [kind for kind, _ in part] != ["word", "mark", "word"] or part[1][1] != "=":
            raise ValueError(f"{EXAMPLE} (name=value pairs follow, with the values in double quotes)")
        found[part[0][1]] = part[2][1]
    return found
