"""Parsers of the OAuth options.

A parser raises ValueError for an invalid text. The message is the rest of a sentence that begins with "It must be".
"""

from __future__ import annotations

import re

from spark_group_source.text import Secret

_PACKAGE = "org.apache.kafka.common.security.oauthbearer."

_FUNCTION = "set 'kafka.sasl.oauthbearer.token.provider' to a function that returns tokens"


def _java_class(text: str, names: tuple[str, ...], otherwise: str) -> str:
    """The simple name of a class of Kafka's Java client, in Kafka's package or in that of a platform that has renamed
    it."""
    package, _, name = text.strip().rpartition(".")
    inside = f"{package}."
    if name not in names or not re.search(rf"(^|\.){re.escape(_PACKAGE)}(internals\.)?(secured\.)?$", inside):
        raise ValueError(f"{' or '.join(_PACKAGE + each for each in names)}, because no Java runs; {otherwise}")
    return name


def jwt_retriever(text: str) -> str:
    """A retriever of Kafka's Java client that this source also has."""
    names = ("DefaultJwtRetriever", "ClientCredentialsJwtRetriever", "FileJwtRetriever")
    return _java_class(text, names, f"instead of another class, or of JwtBearerJwtRetriever, {_FUNCTION}")


def jwt_validator(text: str) -> str:
    """A validator of Kafka's Java client."""
    return _java_class(text, ("DefaultJwtValidator", "ClientJwtValidator"), "the brokers validate the tokens")


def _number(text: str, lowest: float, highest: float) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{0,9})?|\.\d{1,9}", text.strip()) or not lowest <= float(text) <= highest:
        raise ValueError(f"a number from {lowest:g} to {highest:g}")
    return float(text)


def window_factor(text: str) -> float:
    """The fraction of a token's lifetime after which it is renewed."""
    return _number(text, 0.5, 1.0)


def window_jitter(text: str) -> float:
    """The maximum of the random delay of a renewal, as a fraction of a token's lifetime."""
    return _number(text, 0.0, 0.25)


def min_period(text: str) -> float:
    """Whole seconds up to 15 minutes."""
    return _seconds(text, 900)


def buffer(text: str) -> float:
    """Whole seconds up to an hour."""
    return _seconds(text, 3600)


def _seconds(text: str, highest: int) -> float:
    if not re.fullmatch(r"\d{1,4}", text.strip()) or int(text) > highest:
        raise ValueError(f"a whole number of seconds, from 0 to {highest}")
    return float(text)


def non_blank_secret(text: str) -> Secret:
    """Any text that is not blank, without the blanks around it."""
    if not text.strip():
        raise ValueError("a text that is not blank")
    return Secret(text.strip())
