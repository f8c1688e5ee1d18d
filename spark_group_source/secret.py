"""Text that must not be seen: passwords, private keys, login configurations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that no log, error or plan shows, whatever it stands in; picklable and hashable.

    Whoever needs it asks for ``text``, and does so where it is used and nowhere before.
    """

    text: str

    def __repr__(self) -> str:
        return "Secret(...)"
