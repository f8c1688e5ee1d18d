"""Texts in messages: lists and foreign texts, cut to a readable length, and secrets, which stay hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST = 20
"""Maximum number of items that a message lists."""


MOST_CHARACTERS = 300
"""Maximum number of characters that a message shows of one text."""


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """A foreign text for a log line or an error: in one line, printable, and cut to ``most`` characters.

    Every text of a broker, of another member or of a token endpoint passes through here. Otherwise such a text could
    forge log lines, change the colours of a terminal, reverse the direction of writing, or fill a disk.
    """
    shown = one_line(text[: most + 1])
    if len(shown) <= most:
        return shown
    return f"{shown[:most]} ..."


def one_line(text: str) -> str:
    """A text whose control characters, line breaks and other invisible characters are escaped as in Python."""
    if text.isprintable():
        return text
    return "".join(_escaped(character) for character in text)


def quoted(text: str, most: int = MOST_CHARACTERS) -> str:
    """As :func:`printable`, in quotes, with the length of a text that is cut."""
    if len(text) <= most:
        return repr(text)
    return f"{text[:most]!r} ... ({len(text)} characters)"


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def some(texts: Sequence[str], separator: str = ", ", most: int = MOST) -> str:
    """The first items, and the number of the others."""
    listed = separator.join(texts[:most])
    if len(texts) > most:
        listed += f" and {len(texts) - most} more"
    return listed


def names(items: Iterable[tuple[str, int]] | Iterable[str]) -> str:
    """The names of partitions or topics, sorted. A partition is a ``TopicPartition``, whose text is its name."""
    return some([printable(str(item)) for item in sorted(items)])


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that no log, error or plan shows, not even inside other objects; picklable and hashable.

    Read ``text`` only where the secret is used.
    """

    text: str

    def __repr__(self) -> str:
        return "Secret(...)"
