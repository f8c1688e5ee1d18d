"""Tokens of a file, as Java's ``FileJwtRetriever`` reads them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.wire.tokens.provider import Token

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
        return f"Check the token in the file '{self.path}' of 'kafka.sasl.oauthbearer.token.endpoint.url', and its end."

    def fetch(self, deadline: Deadline) -> Token:
        """Returns the token in the file.

        Raises:
            BrokerUnavailable: the file cannot be read, or is empty. Somebody may be replacing it.
        """
        name = f"The file '{self.path}' of 'kafka.sasl.oauthbearer.token.endpoint.url'"
        try:
            text = Path(self.path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise BrokerUnavailable(f"{name} cannot be read on {socket.gethostname()}: {reason}.", _FILE) from None
        if not text:
            raise BrokerUnavailable(f"{name} is empty on {socket.gethostname()}.", _FILE)
        return Token(text, dict(self.extensions))

    def record_rejection(self, token: Token) -> None:
        """Does nothing, because nothing is kept here."""
