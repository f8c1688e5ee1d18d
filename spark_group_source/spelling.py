"""The spelling of names: which option a mistyped name means, if that is clear.

A suggestion must not reverse the meaning: ``maxOffsets`` is no suggestion for ``minOffsets``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_ERRORS = 2
"""Maximum number of missing, wrong, superfluous or swapped letters in a mistyped name."""

MAX_ERRORS_IF_SHORT = 1
SHORT = 6
"""Maximum number of letters of a short name."""

_OPPOSITES = {
    "min": "max",
    "starting": "ending",
    "start": "end",
    "include": "exclude",
    "send": "receive",
    "key": "value",
    "keystore": "truststore",
    "connect": "read",
}
_OPPOSITES |= {opposite: word for word, opposite in _OPPOSITES.items()}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


def letters(name: str) -> str:
    """A name without the parts that people spell differently: case, dots, underscores, and the prefix ``kafka``."""
    without_prefix = re.sub(r"^(?:kafka[._]?)+(?=.)", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", without_prefix)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that differs from ``name`` in a few letters only; ``None`` without such a candidate."""
    typed = letters(name)
    allowed = MAX_ERRORS
    if len(typed) <= SHORT:
        allowed = MAX_ERRORS_IF_SHORT
    close = []
    for candidate in candidates:
        errors = distance(typed, letters(candidate), allowed)
        if errors <= allowed and not _contradict(name, candidate, errors):
            close.append((errors, candidate))
    if not close:
        return None
    _, found = min(close)
    return found


def completed_or_nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The only candidate that begins with ``name``. If no candidate begins with it, the :func:`nearest`."""
    known = list(candidates)
    longer = [each for each in known if letters(each).startswith(letters(name))]
    if not longer:
        return nearest(name, known)
    if len(longer) > 1:
        return None
    return longer[0]


def _contradict(name: str, other: str, errors: int) -> bool:
    """Whether names that differ in ``errors`` letters may mean different things: they differ in a digit, or ``name`` is
    at least as close to ``other`` with the opposite of one of its words.

    Spark writes all names in lower case, so the words of ``name`` are unknown.
    """
    if sorted(re.findall(r"\d", name)) != sorted(re.findall(r"\d", other)):
        return True
    typed = letters(name)
    return any(distance(typed, letters(opposite), errors) <= errors for opposite in _opposites_of(other))


def _opposites_of(name: str) -> Iterator[str]:
    """The name with one of its words replaced by the opposite."""
    for match in _WORD.finditer(name):
        opposite = _OPPOSITES.get(match[0].lower())
        if opposite is not None:
            yield name[: match.start()] + opposite + name[match.end() :]


def distance(one: str, other: str, most: int) -> int:
    """The number of letters to insert, delete, replace or swap with the next to turn one text into the other.

    If the number exceeds ``most``, returns some number above ``most``.
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
            if at > 1 and column > 1 and _are_swapped(one[at - 2 : at], other[column - 2 : column]):
                best = min(best, before[column - 2] + 1)
            next_row.append(best)
        before, row = row, next_row
    return row[-1]


def _are_swapped(two: str, others: str) -> bool:
    return two == others[::-1]
