"""The option that a mistyped name means, if that is clear: a suggestion must not turn the meaning round."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_ERRORS = 2
"""Letters that may be missing, wrong, superfluous or swapped; one in a name of at most :data:`SHORT` letters."""

SHORT = 6

_OPPOSITES = (
    ("min", "max"),
    ("starting", "ending"),
    ("start", "end"),
    ("include", "exclude"),
    ("send", "receive"),
    ("key", "value"),
    ("keystore", "truststore"),
    ("connect", "read"),
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def letters(name: str) -> str:
    """A name without what people spell differently: case, dots, underscores, and the prefix ``kafka``."""
    without_prefix = re.sub(r"^(?:kafka[._]?)+(?=.)", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", without_prefix)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that ``name`` is, but for a few letters; ``None`` if there is none."""
    typed = letters(name)
    allowed = 1 if len(typed) <= SHORT else MAX_ERRORS
    close = [(distance(typed, letters(each), allowed), each) for each in candidates if not _contradict(name, each)]
    errors, found = min(close, default=(allowed + 1, ""))
    return found if errors <= allowed else None


def completed_or_nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The only candidate that begins with ``name``, or the :func:`nearest` if none does."""
    known = list(candidates)
    longer = [each for each in known if letters(each).startswith(letters(name))]
    if not longer:
        return nearest(name, known)
    return longer[0] if len(longer) == 1 else None


def _contradict(name: str, other: str) -> bool:
    """Whether one of the names has a word, and the other its opposite, or they have other numbers."""
    if sorted(re.findall(r"\d", name)) != sorted(re.findall(r"\d", other)):
        return True
    words, others = _words(name), _words(other)
    pairs = [*_OPPOSITES, *(pair[::-1] for pair in _OPPOSITES)]
    return any(one in words - others and opposite in others - words for one, opposite in pairs)


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def distance(one: str, other: str, most: int) -> int:
    """The number of letters to insert, delete, replace or swap with the next to turn one text into the other.

    Above ``most``, some larger number.
    """
    if abs(len(one) - len(other)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, 1):
        next_row = [at]
        for column, other_letter in enumerate(other, 1):
            replaced = row[column - 1] + (letter != other_letter)
            best = min(replaced, row[column] + 1, next_row[-1] + 1)
            swapped = at > 1 and column > 1 and letter == other[column - 2] and one[at - 2] == other_letter
            if swapped:
                best = min(best, before[column - 2] + 1)
            next_row.append(best)
        before, row = row, next_row
    return row[-1]
