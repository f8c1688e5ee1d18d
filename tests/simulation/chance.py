"""All chance of a simulated run."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

T = TypeVar("T")
_NOT_AIMED = object()


class Chance:
    """Draws from one seed. What is not ordinary is kept by its key, so that a run can be repeated with less of it.

    Each key counts the draws of one kind: the third commit of Q1 is the third in every replay, whatever was left out.

    Args:
        kept: the draws that are not ordinary, to replay; ``None`` to draw.
        aim: what some draws shall be, by their key or by their kind: the number, or for a pick the place among the
            others, their text, or as a float the probability that it is not ordinary; ``None`` for what is ordinary.
            ``"*"`` scales the probabilities of all other draws.
    """

    def __init__(
        self, seed: int, kept: Mapping[str, Any] | None = None, aim: Mapping[str, float | None] | None = None
    ) -> None:
        self._draw = None if kept is not None else random.Random(seed).random
        self.kept: dict[str, Any] = {}
        self._replayed = kept or {}
        self._aim = aim or {}
        self._scale = self._aim.get("*") or 1.0
        self._counts: dict[str, int] = defaultdict(int)

    def _aimed(self, kind: str) -> Any:
        return self._aim.get(f"{kind} #{self._counts[kind]}", self._aim.get(kind, _NOT_AIMED))

    def pick(self, kind: str, ordinary: T, others: Sequence[T], probability: float, weights: Sequence[float] = ()) -> T:
        """Returns ``ordinary``, or with this probability one of the others: each as likely as its weight says, or all
        equally likely. The weights do not matter in a replay."""
        self._counts[kind] += 1
        index = self._index(kind, others, probability, weights)
        if index is None:
            return ordinary
        self.kept[f"{kind} #{self._counts[kind]}"] = index
        return others[index]

    def _index(self, kind: str, others: Sequence[Any], probability: float, weights: Sequence[float]) -> int | None:
        """The place of what is picked among the others; ``None`` for what is ordinary."""
        if self._draw is None:
            replayed: int | None = self._replayed.get(f"{kind} #{self._counts[kind]}")
            if replayed is None or replayed >= len(others):
                return None
            return replayed
        aimed = self._aimed(kind)
        if isinstance(aimed, int) and aimed < len(others):
            return aimed
        if isinstance(aimed, str) and aimed in others:
            return others.index(aimed)
        if aimed is None:
            return None
        if isinstance(aimed, float):
            probability, weights = aimed, ()
        elif aimed is _NOT_AIMED:
            probability *= self._scale
        return _drawn(self._draw, len(others), probability, weights)

    def weights(self, count: int) -> list[float]:
        """Weights of so many kinds of events for one run, half of them 0: a run of a few kinds finds what a mixture
        hides (Groce et al., Swarm Testing, ISSTA 2012). They matter for the draws only, so no replay needs them."""
        return [0.0 if self._draw is None or self._draw() < 0.5 else self._draw() for _ in range(count)]

    def flag(self, kind: str, probability: float) -> bool:
        """Returns true with this probability; false is ordinary."""
        return self.pick(kind, False, (True,), probability)

    def number(self, kind: str, ordinary: float, low: float, high: float, probability: float = 1.0) -> float:
        """Returns ``ordinary``, or with this probability a number from ``low`` to ``high`` in steps of a thousandth."""
        self._counts[kind] += 1
        if self._draw is None:
            value = self._replayed.get(f"{kind} #{self._counts[kind]}")
            if value is None:
                return ordinary
            value = min(max(value, low), high)  # a shorter story may ask for it under other circumstances
        elif (aimed := self._aimed(kind)) is None:
            return ordinary
        elif aimed is not _NOT_AIMED:
            value = min(max(aimed, low), high)
        elif self._draw() >= probability * self._scale:
            return ordinary
        else:
            value = round(low + self._draw() * (high - low), 3)
        self.kept[f"{kind} #{self._counts[kind]}"] = value
        return float(value)


def _drawn(draw: Callable[[], float], count: int, probability: float, weights: Sequence[float]) -> int | None:
    """With this probability, one of so many places by its weight; else ``None``."""
    if count == 0 or probability <= 0 or (weights and not any(weights)):
        return None
    if draw() >= probability:
        return None
    if not weights:
        return int(draw() * count)
    place = draw() * sum(weights)
    for index, upto in enumerate(accumulate(weights)):
        if place < upto:
            return index
    return count - 1
