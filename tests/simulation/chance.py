"""All chance of a simulated run."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Chance:
    """Draws from one seed. What is not ordinary is kept by its key, so that a run can be repeated with less of it.

    Each key counts the draws of one kind: the third commit of Q1 is the third in every replay, whatever was left out.

    Args:
        kept: the draws that are not ordinary, to replay; ``None`` to draw.
    """

    def __init__(self, seed: int, kept: Mapping[str, Any] | None = None) -> None:
        self._draw = None if kept is not None else random.Random(seed).random
        self.kept: dict[str, Any] = {}
        self._replayed = kept or {}
        self._counts: dict[str, int] = {}

    def _key(self, kind: str) -> str:
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind} #{count}"

    def pick(self, kind: str, ordinary: T, others: Sequence[T], probability: float) -> T:
        """Returns ``ordinary``, or with this probability one of the others."""
        key = self._key(kind)
        if self._draw is None:
            index = self._replayed.get(key)
            if index is None or index >= len(others):
                return ordinary
        elif not others or probability <= 0 or self._draw() >= probability:
            return ordinary
        else:
            index = int(self._draw() * len(others))
        self.kept[key] = index
        return others[index]

    def flag(self, kind: str, probability: float) -> bool:
        """Returns true with this probability; false is ordinary."""
        return self.pick(kind, False, (True,), probability)

    def number(self, kind: str, ordinary: float, low: float, high: float, probability: float = 1.0) -> float:
        """Returns ``ordinary``, or with this probability a number from ``low`` to ``high`` in steps of a thousandth."""
        key = self._key(kind)
        if self._draw is None:
            if key not in self._replayed:
                return ordinary
            value = float(self._replayed[key])
        elif self._draw() >= probability:
            return ordinary
        else:
            value = round(low + self._draw() * (high - low), 3)
        self.kept[key] = value
        return value
