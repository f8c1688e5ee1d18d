"""Many things in one message: no more of them than can be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_group_source.offsets import TopicPartition

MOST = 20
"""Things that a message about many of them tells of."""


def some(texts: Sequence[str], separator: str = ", ", most: int = MOST) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def names(things: Iterable[TopicPartition] | Iterable[str]) -> str:
    """Partitions or topics in a message, sorted."""
    return some([str(each) for each in sorted(things)])
