"""Providers of tokens for SASL that keep nothing: a file, and a function of the user."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, OptionError
from spark_group_source.user_code import load
from spark_group_source.wire.waiting import call_with_timeout


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token and the SASL extensions that a client sends with it. ``text`` is a secret."""

    text: str
    extensions: Mapping[str, str] = field(default_factory=dict)


class TokenProvider(Protocol):
    """Provides the token of each new connection.

    A provider is picklable, and equal to every provider with the same settings: it travels with the tasks as a part of
    :class:`spark_group_source.auth.sasl.Sasl`. A provider that keeps tokens therefore keeps them elsewhere.
    """

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""

    def fetch(self, deadline: Deadline) -> Token:
        """Returns a valid token. Caller: any thread, once for each new connection.

        Raises:
            AuthenticationFailed: a retry cannot help; the user has to correct the settings or the credentials.
            BrokerUnavailable: no token is available now; a retry may succeed.
            DeadlineExceeded: no token came in time.
            Interrupted: the deadline's wakeup was set before a token came.
            OptionError: an option names a function that cannot be called on this host.
        """

    def record_rejection(self, token: Token) -> None:
        """Notes that a broker rejected a token of :meth:`fetch`. A provider that keeps this token renews it early."""


_FILE = "Put the file on the driver and on each executor, or correct 'kafka.sasl.oauthbearer.token.endpoint.url'."


@dataclass(frozen=True, slots=True)
class FileTokens:
    """Reads the file for every token, so that the next connection uses a renewed one.

    ``extensions`` are SASL extensions by name.
    """

    path: str
    extensions: tuple[tuple[str, str], ...] = ()

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return (
            f"Check the token in the file '{self.path}' of 'kafka.sasl.oauthbearer.token.endpoint.url', and when it"
            " expires."
        )

    def fetch(self, deadline: Deadline) -> Token:
        """Returns the token in the file.

        Raises:
            BrokerUnavailable: the file cannot be read, or is empty. Somebody may be replacing it.
        """
        name = f"The file '{self.path}' of 'kafka.sasl.oauthbearer.token.endpoint.url'"
        try:
            text = Path(self.path).read_text(encoding="ascii").strip()
        except OSError as error:
            happened = f"{name} cannot be read on {socket.gethostname()}: {error.strerror}."
            raise BrokerUnavailable(happened, _FILE) from None
        except UnicodeError:
            happened = f"{name} cannot be read on {socket.gethostname()}: it is not ASCII text."
            raise BrokerUnavailable(happened, _FILE) from None
        if not text:
            raise BrokerUnavailable(f"{name} is empty on {socket.gethostname()}.", _FILE)
        return Token(text, dict(self.extensions))

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""


_MODULE = (
    "Install its module for the driver and for each executor. Files of --py-files do not reach the process that plans a"
    " query."
)
_FUNCTION = "Check the function; it runs on the driver and on each executor."


@dataclass(frozen=True, slots=True)
class FunctionTokens:
    """Calls the function for every token. ``path`` is its ``module:function``."""

    path: str

    @property
    def advice(self) -> str:
        """What the user should check if a broker rejects the token."""
        return "Check what 'kafka.sasl.oauthbearer.token.provider' returns."

    def fetch(self, deadline: Deadline) -> Token:
        """Calls the function and returns the token.

        Raises:
            AuthenticationFailed: the function returned neither a text nor a pair of a text and a dict.
            BrokerUnavailable: the function failed. A retry may succeed, because the token service may be down.
            DeadlineExceeded: the function did not return in time.
            OptionError: the function cannot be imported here.
        """
        name = f"The function '{self.path}' of 'kafka.sasl.oauthbearer.token.provider'"
        try:
            function = load(self.path, "function")
        except ValueError as error:
            raise OptionError(
                f"{name} cannot be called on {socket.gethostname()}: it must be {error}.", _MODULE
            ) from error
        try:
            result = call_with_timeout(function, deadline, self.path)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{name} did not return in time.", _FUNCTION) from error
        except (Exception, SystemExit) as error:
            raise BrokerUnavailable(f"{name} failed: {error!r}.", _FUNCTION) from error
        token = _returned_token(result)
        if token is None:
            raise AuthenticationFailed(
                f"{name} returned a {type(result).__name__}.",
                "Return the token as text, or a pair of the token and a dict of SASL extensions.",
            )
        return token

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""


def _returned_token(result: object) -> Token | None:
    """The token that a function returned, alone or with extensions. ``None`` for another object."""
    text: object = result
    extensions: object = {}
    if isinstance(result, tuple) and len(result) == 2:
        text, extensions = result
    if not isinstance(text, str) or not isinstance(extensions, dict):
        return None
    # A token from a file ends with a line break, which brokers reject.
    text = text.strip()
    if not text:
        return None
    return Token(text, extensions)
