"""The iteration order of Java's hash maps, on which assignments depend.

Kafka's sticky assignors iterate over hash maps. The order decides which member keeps a partition that two members
claim, and which member gets one partition more. With another order, partitions would move whenever the leader changes
between this source and Kafka's client. Not modelled: Java turns a bin with nine keys into a tree.
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
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = 31 * hashed + 256 * high + low & 0xFFFFFFFF
    return hashed


def partition_hash(tp: TopicPartition) -> int:
    """``TopicPartition.hashCode``, as an unsigned number."""
    return 31 * (31 + tp.partition) + text_hash(tp.topic) & 0xFFFFFFFF


def hash_order(items: Iterable[T], hash_of: Callable[[T], int], max_size: int = 0) -> list[T]:
    """Sorts items as a ``HashMap`` iterates over them, if they were added in this order.

    Args:
        items: distinct items.
        hash_of: returns the hash of an item.
        max_size: the largest size that the map has had; its table never shrinks.
    """
    listed = list(items)
    slots = _SMALLEST_TABLE
    while max(len(listed), max_size) > slots * _LOAD:
        slots *= 2
    return sorted(listed, key=lambda item: _spread(hash_of(item)) & slots - 1)


def _spread(hashed: int) -> int:
    return hashed ^ hashed >> 16
