"""What a table lacks of a batch, given the positions that the table keeps. Pure: no Spark, no database.

A table has every record below its position. The position is never behind the group, because the source commits only
batches that the sink has written. So every member starts at or below the position, unless somebody has moved the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

from spark_group_source.errors import MissingRows
from spark_group_source.offsets import NO_LINEAGE, OffsetRange

Rewind = Literal["skip", "write"]
"""What happens to records that the table has after the group was moved back: they are skipped, or written again."""

Kept = Mapping[tuple[str, str, int], tuple[int, int]]
"""Positions, ``(offset, lineage)`` by ``(topic, topic_id, partition)``."""


class PartitionKey(NamedTuple):
    """The key of a position. A recreated topic has another id, and therefore its own positions.

    Attributes:
        topic: its name.
        topic_id: its id; empty with brokers before Kafka 2.8. A position without an id counts for the id that the topic
            gets when its brokers are upgraded, and the position of this id for batches from before the upgrade.
        partition: its number.
    """

    topic: str
    topic_id: str
    partition: int


class Position(NamedTuple):
    """How much of one partition a table has.

    Attributes:
        offset: the table has every record below it.
        lineage: the lineage of the range that was written last. It grows whenever somebody moves the group.
    """

    offset: int
    lineage: int = NO_LINEAGE


class Lacking(NamedTuple):
    """What a table lacks of one range of a batch: the records ``[first, read.end)``.

    Attributes:
        read: the range; with the topic's id if the range has none, but the position has.
        first: the offset of the first record to write. At ``read.end`` or above, there is nothing to write.
        position: the position of the partition after the write.
    """

    read: OffsetRange
    first: int
    position: Position

    @property
    def key(self) -> PartitionKey:
        """The key of the position."""
        return PartitionKey(self.read.topic, self.read.topic_id, self.read.partition)


def lacking(reads: Iterable[OffsetRange], kept: Kept, rewind: Rewind = "skip") -> list[Lacking]:
    """Compares the ranges of a batch with the positions in a table.

    Call it inside the transaction that writes the rows, after the positions are locked. Then write the records from
    ``first`` on, and replace the positions.

    Args:
        reads: the ranges of the batch.
        kept: the table's positions, ``(offset, lineage)`` by ``(topic, topic_id, partition)``, at least those of the
            partitions in the batch, with any ids. A partition without a position is new.
        rewind: what happens to records that the table has after the group was moved back.

    Returns:
        One entry for each range, in the same order.

    Raises:
        MissingRows: the table lacks records before the batch, although nobody has moved the group past them.
        ValueError: ``rewind`` is neither ``skip`` nor ``write``.
    """
    check_rewind(rewind)
    ids = _known_ids(kept)
    compared = []
    for each in reads:
        known = ids.get((each.topic, each.partition), [])
        read = _with_known_id(each, known)
        position = _kept_at(read, kept, known)
        first = _first(read, position, rewind)
        compared.append(Lacking(read, first, Position(max(first, read.end), max(position.lineage, read.lineage))))
    return compared


def _known_ids(kept: Kept) -> dict[tuple[str, int], list[str]]:
    """The ids in the positions of each partition; that of the latest position is the last."""
    ids: dict[tuple[str, int], list[str]] = {}
    for topic, topic_id, number in sorted(kept, key=lambda key: Position(*kept[key])[::-1]):
        if topic_id:
            ids.setdefault((topic, number), []).append(topic_id)
    return ids


def _with_known_id(read: OffsetRange, known: list[str]) -> OffsetRange:
    """The range; with the latest known id if it was logged before its topic had one."""
    if read.topic_id or not known:
        return read
    return replace(read, topic_id=known[-1])


def _kept_at(read: OffsetRange, kept: Kept, known: list[str]) -> Position:
    """The table's position of a partition; for a new one, the start of the range."""
    # Once the table knows an id, a position without one is outdated, and a topic with another id is a recreated one.
    topic_id = read.topic_id if known else ""
    return Position(*kept.get((read.topic, topic_id, read.partition), (read.start, read.lineage)))


def check_rewind(rewind: str) -> None:
    """Checks a value of ``rewind``.

    Raises:
        ValueError: it is neither ``skip`` nor ``write``.
    """
    if rewind not in get_args(Rewind):
        raise ValueError(f"rewind is {rewind!r}; it must be 'skip' or 'write'")


def _first(read: OffsetRange, kept: Position, rewind: Rewind) -> int:
    is_ahead = read.start > kept.offset
    was_moved = read.lineage > kept.lineage
    if was_moved and (is_ahead or rewind == "write"):
        return read.start
    if is_ahead and read.lineage < kept.lineage:
        raise MissingRows(
            f"The batch starts at {read.start} in {read.tp}, and is from before the group was moved. Since then the"
            f" table has the records below {kept.offset}.",
            "Start the query with a new checkpoint: it continues at the group's committed offsets.",
        )
    if is_ahead:
        raise MissingRows(
            f"The batch starts at {read.start} in {read.tp}, and the table has the records below {kept.offset}."
            " Writing it would lose the records between them. Another group or an older backup of the table may be the"
            " cause.",
            f"If they are not needed, set the position in the table to {read.start}.",
        )
    return kept.offset
