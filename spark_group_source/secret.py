"""Text that must stay hidden: passwords, private keys, login lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that no log, error or plan shows, also inside other objects; picklable and hashable.

    Read ``text`` only where the secret is used.
    """

    text: str

    def __repr__(self) -> str:
        return "Secret(...)"
