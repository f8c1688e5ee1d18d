"""Texts in messages: lists that are cut to a readable length, and secrets that stay hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_group_source.offsets import TopicPartition

MOST = 20
"""Maximum number of items that a message lists."""


def some(texts: Sequence[str], separator: str = ", ", most: int = MOST) -> str:
    """The first items, and the number of the others."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def names(items: Iterable[TopicPartition] | Iterable[str]) -> str:
    """The names of partitions or topics, sorted."""
    return some([str(item) for item in sorted(items)])


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that no log, error or plan shows, also inside other objects; picklable and hashable.

    Read ``text`` only where the secret is used.
    """

    text: str

    def __repr__(self) -> str:
        return "Secret(...)"
