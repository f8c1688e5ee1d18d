"""How far a micro-batch reads: positions, end offsets and a limit in, the batch's end offsets out. Pure.

The arithmetic is that of Spark's own Kafka source. Each partition gets a portion of the limit by its backlog. Portions
are rounded down, but a portion below one offset becomes one, so that no partition starves.
"""

from __future__ import annotations

from spark_group_source.offsets import Offsets, TopicPartition


def admit(positions: Offsets, end_offsets: Offsets, max_offsets: int | None) -> dict[TopicPartition, int]:
    """The end of the next batch in each partition of ``positions``.

    Args:
        positions: the next offset to read of each readable partition.
        end_offsets: the end of the log, at least for partitions that are to advance.
        max_offsets: maximum number of offsets, a soft limit as in Spark's source; ``None`` for all available.
    """
    # Backlogs are numbers of offsets, not of bytes.
    backlogs = {tp: end_offsets.get(tp, position) - position for tp, position in positions.items()}
    total = total_backlog(positions, end_offsets)
    if max_offsets is None or total <= max_offsets:
        return {tp: position + max(0, backlogs[tp]) for tp, position in positions.items()}
    return {tp: position + _portion(backlogs[tp], total, max_offsets) for tp, position in positions.items()}


def total_backlog(positions: Offsets, end_offsets: Offsets) -> int:
    """The number of offsets between ``positions`` and ``end_offsets``, over all readable partitions."""
    return sum(max(0, end_offsets.get(tp, position) - position) for tp, position in positions.items())


def _portion(backlog: int, total: int, max_offsets: int) -> int:
    """The offsets that one partition gets of the limit."""
    if backlog <= 0:
        return 0
    return min(backlog, max(1, max_offsets * backlog // total))
