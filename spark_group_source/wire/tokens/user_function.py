"""Tokens of the user's function (``kafka.sasl.oauthbearer.token.provider``)."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, OptionError
from spark_group_source.user_code import load
from spark_group_source.wire.tokens.provider import Token
from spark_group_source.wire.waiting import call_with_timeout

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
        text, extensions = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        if not isinstance(text, str) or not text.strip() or not isinstance(extensions, dict):
            raise AuthenticationFailed(
                f"{name} returned a {type(result).__name__}.",
                "Return the token as text, or a pair of the token and a dict of SASL extensions.",
            )
        # A token from a file ends with a line break, which brokers reject.
        return Token(text.strip(), extensions)

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""
