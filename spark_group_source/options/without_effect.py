"""The options of Kafka's Java client that change nothing here.

A query that moves from Java may keep them. Each is accepted with the values that say what the source does anyway, and
rejected with any other value, so that nobody relies on a setting that the source ignores.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptionsWithoutEffect:
    """Their values, which no code reads."""

    truststore_type: str = "PEM"
    """Python reads only PEM. The error for another format has the command that converts the file."""

    keystore_type: str = "PEM"
    """The same."""

    client_handler: str | None = None
    """The source signs requests to Amazon MSK itself, without Java's class."""

    jwt_validator: str = "DefaultJwtValidator"
    """The brokers validate the tokens."""
