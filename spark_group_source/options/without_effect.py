"""Options of Kafka's Java client that change nothing in this source.

A query that moves from Java may keep them. The source accepts each only with the values that describe what the source
does anyway. It rejects all other values, so that nobody relies on a setting without effect.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptionsWithoutEffect:
    """The values of these options, which no code reads."""

    truststore_type: str = "PEM"
    """Python reads only PEM. The error for another format has the command that converts the file."""

    keystore_type: str = "PEM"
    """The same."""

    client_handler: str | None = None
    """The source signs requests to Amazon MSK itself, without Java's class."""

    jwt_validator: str = "DefaultJwtValidator"
    """The brokers validate the tokens."""
