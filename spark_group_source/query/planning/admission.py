"""How far a micro-batch reads: owned partitions, ends of the log and a limit in, end offsets out. Pure.

The arithmetic is that of Spark's own Kafka source: each partition gets its share of the limit by the size of
its backlog, a share below one is rounded up to one so that no partition starves, others are rounded down.
"""

from __future__ import annotations

from spark_group_source.offsets import Offsets, TopicPartition


def admit(positions: Offsets, ends: Offsets, limit: int | None) -> dict[TopicPartition, int]:
    """The end offset of each partition of ``positions`` for the next batch.

    Args:
        positions: the next offset to read of each partition that may be read.
        ends: the end of the log for at least those partitions that are to advance.
        limit: most offsets to cover, a soft cap as in Spark's source; ``None`` for all there is.
    """
    sizes = {tp: ends.get(tp, position) - position for tp, position in positions.items()}
    total = backlog(positions, ends)
    if limit is None or total <= limit:
        return {tp: position + max(0, sizes[tp]) for tp, position in positions.items()}
    return {tp: position + _share(sizes[tp], total, limit) for tp, position in positions.items()}


def backlog(positions: Offsets, ends: Offsets) -> int:
    """Offsets between ``positions`` and ``ends``, over all partitions that may be read."""
    return sum(max(0, ends.get(tp, position) - position) for tp, position in positions.items())


def _share(size: int, total: int, limit: int) -> int:
    if size <= 0:
        return 0
    return min(size, max(1, limit * size // total))
