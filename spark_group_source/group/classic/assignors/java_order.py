"""The orders in which Java's collections name things, where an assignment depends on them.

Kafka's sticky assignors walk through hash maps. Which member keeps a partition that two of them claim, and which member
has one partition more, follows from that order. A leader that walked otherwise would move partitions that a leader of
Kafka's own client leaves in place. Not modelled: Java turns a bin with nine
keys into a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_group_source.offsets import TopicPartition

T = TypeVar("T")

_SMALLEST_TABLE, _LOAD = 16, 0.75


def text_order(text: str) -> bytes:
    """A key that sorts as ``String.compareTo`` does: by UTF-16 code units, not by code points."""
    return text.encode("utf-16-be", "surrogatepass")


def text_hash(text: str) -> int:
    """``String.hashCode``, as an unsigned number."""
    units = text_order(text)
    found = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        found = 31 * found + 256 * high + low & 0xFFFFFFFF
    return found


def partition_hash(tp: TopicPartition) -> int:
    """``TopicPartition.hashCode``, as an unsigned number."""
    return 31 * (31 + tp.partition) + text_hash(tp.topic) & 0xFFFFFFFF


def hash_order(items: Iterable[T], hash_of: Callable[[T], int], most: int = 0) -> list[T]:
    """These items as a ``HashMap`` iterates over them that got them in this order.

    Args:
        items: distinct ones.
        hash_of: their hash.
        most: how many the map has held; its table never shrinks.
    """
    listed = list(items)
    slots = _SMALLEST_TABLE
    while max(len(listed), most) > slots * _LOAD:
        slots *= 2
    return sorted(listed, key=lambda item: _spread(hash_of(item)) & slots - 1)


def _spread(hashed: int) -> int:
    return hashed ^ hashed >> 16
