"""The ids of lineages: see "Lineages" in ``DESIGN.md``."""

from __future__ import annotations

from collections.abc import Iterable


class Lineages:
    """Creates the ids of new lineages. Not thread-safe: the owner's lock guards it."""

    def __init__(self) -> None:
        self._latest = 0

    def note(self, lineages: Iterable[int]) -> None:
        """Notes lineages that this query has seen."""
        self._latest = max([self._latest, *lineages])

    def begin(self, at: float) -> int:
        """A lineage that begins at this time, in seconds since 1970.

        It is later than all lineages that this query has seen, even if the clocks of two machines differ.
        """
        self._latest = max(round(at * 1000), self._latest + 1)
        return self._latest
