"""The interface of token providers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark_group_source.clock import Deadline


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token and the SASL extensions that a client sends with it. ``text`` is a secret."""

    text: str
    extensions: Mapping[str, str] = field(default_factory=dict)


class TokenProvider(Protocol):
    """Provides the token of each new connection.

    A provider is picklable, and equal to every provider with the same settings: it travels with the tasks as a part of
    :class:`spark_group_source.wire.settings.Sasl`. So a provider that keeps tokens keeps them outside of itself.
    """

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""

    def fetch(self, deadline: Deadline) -> Token:
        """Returns a valid token. Caller: any thread, once for each new connection.

        Raises:
            AuthenticationFailed: only other settings help.
            BrokerUnavailable: no token is available now; a retry may succeed.
            DeadlineExceeded: no token came in time.
            Interrupted: the deadline's wakeup was set first.
        """

    def record_rejection(self, token: Token) -> None:
        """Notes that a broker rejected a token of :meth:`fetch`, so that a kept token is not used until its end."""
