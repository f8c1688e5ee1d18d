"""Partitions, half-open offset ranges, and the offset JSON that Spark keeps in its log.

An offset is always the next one to read. A range ``[start, end)`` holds ``start`` and not ``end``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_group_source.errors import GroupSourceError

VERSION = 2
"""Version of the offset JSON. Version 1 has no leader epochs and no group id, and is still read; a later version is
refused."""

UNKNOWN_EPOCH = -1
"""The leader epoch of an offset that no leader has vouched for, as Kafka's requests have it."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Partitions = frozenset[TopicPartition]
Offsets = Mapping[TopicPartition, int]

EARLIEST, LATEST = -2, -1
"""What ListOffsets takes for the beginning and the end of a log, in place of a time."""


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers of each topic, both sorted: the form in which requests name them."""
    found: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        found.setdefault(tp.topic, []).append(tp.partition)
    return found


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition of the topic that has id ``topic_id``.

    ``epoch`` is the leader epoch of ``end``: that of a leader whose log reached ``end``. A later leader whose log has
    no such end has lost records of the range, or has others in their place (KIP-320).
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    epoch: int = UNKNOWN_EPOCH

    @property
    def tp(self) -> TopicPartition:
        """The partition the range lies in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Offsets in the range: at least the number of records, as compaction and markers leave gaps."""
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class BatchOffset:
    """What one micro-batch reads, and where this query stands in every partition it ever read.

    ``ranges`` has one range per partition. A partition that the batch does not read, because nothing is new or
    because another member owns it, stands with ``start == end``: the end this query logged for it last.
    ``group`` is the id of the group that read them, empty where that is unknown.

    ``starts`` are partitions that existed when the query first started, and that it has not owned since: where they
    have no commit, ``startingOffsets`` apply to them, which were the given offset then, or are still to be looked up.
    ``resets`` are those that ``resetOffsetsOnStart`` is still to move, whatever the group has committed.
    The JSON text of equal offsets is equal, since Spark compares text.
    """

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    group: str = ""
    starts: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    resets: Partitions = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever logged: the query starts for the first time with its checkpoint."""
        return not (self.ranges or self.group or self.starts)

    @classmethod
    def of(cls, ranges: Iterable[OffsetRange], group: str = "") -> BatchOffset:
        """The offset with these ranges, one per partition."""
        return cls({each.tp: each for each in ranges}, group)

    def reads(self) -> list[OffsetRange]:
        """The ranges with something to read, sorted by partition."""
        return sorted(each for each in self.ranges.values() if each.size)

    def ends(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition once this batch is done."""
        return {tp: each.end for tp, each in self.ranges.items()}

    def check_group(self, group_id: str) -> None:
        """Refuses a checkpoint of another group.

        Raises:
            GroupSourceError: this offset was logged by a member of another group.
        """
        if self.group and self.group != group_id:
            raise GroupSourceError(
                f"The checkpoint belongs to the group '{self.group}', and 'kafka.group.id' is '{group_id}'.",
                f"Set 'kafka.group.id' to '{self.group}', or use a new checkpoint location: the query then starts at"
                f" the committed offsets of '{group_id}', or where 'startingOffsets' says.",
            )

    def as_json(self) -> dict[str, Any]:
        """The form Spark logs, with sorted keys and partitions sorted by number.

        ``{"group": id, "topics": {name: {"id": id, "partitions": {"0": [start, end, epoch]}}}, "version": 2}``, and
        where there are any ``"resets": {name: [0]}`` and ``"starts": {name: {"0": offset or null}}``. An epoch that is
        unknown is left out.
        """
        topics: dict[str, Any] = {}
        for each in sorted(self.ranges.values()):
            topic = topics.setdefault(each.topic, {"id": each.topic_id, "partitions": {}})
            epoch = [] if each.epoch == UNKNOWN_EPOCH else [each.epoch]
            topic["partitions"][str(each.partition)] = [each.start, each.end, *epoch]
        found = {"group": self.group, "topics": topics, "version": VERSION}
        if self.resets:
            found["resets"] = numbers_by_topic(self.resets)
        if self.starts:
            found["starts"] = {
                name: {str(number): self.starts[TopicPartition(name, number)] for number in numbers}
                for name, numbers in numbers_by_topic(self.starts).items()
            }
        return found

    @classmethod
    def from_json(cls, logged: Mapping[str, Any] | None) -> BatchOffset:
        """The offset that :meth:`as_json` wrote, in this version or an earlier one; ``None`` and ``{}`` are empty.

        Raises:
            GroupSourceError: the JSON is of a later version, or another source wrote it.
        """
        if not logged:
            return cls()
        version = logged.get("version")
        if version not in range(1, VERSION + 1):
            raise _unreadable(logged)
        try:
            ranges = [
                _range(name, int(number), str(topic["id"]), *offsets)
                for name, topic in logged["topics"].items()
                for number, offsets in topic["partitions"].items()
            ]
            starts = {
                TopicPartition(name, int(number)): None if offset is None else int(offset)
                for name, offsets in logged.get("starts", {}).items()
                for number, offset in offsets.items()
            }
            resets = {
                TopicPartition(name, int(each)) for name, part in logged.get("resets", {}).items() for each in part
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GroupSourceError(
                f"The checkpoint holds an offset that this source did not write: {_shown(logged)}.", _NEW_CHECKPOINT
            ) from error
        by_partition = {each.tp: each for each in ranges}
        return cls(by_partition, str(logged.get("group", "")), starts, frozenset(resets))


_NEW_CHECKPOINT = "Start with a new checkpoint location: the query then goes on at the group's committed offsets."


def _range(topic: str, number: int, topic_id: str, start: int, end: int, epoch: int = UNKNOWN_EPOCH) -> OffsetRange:
    return OffsetRange(topic, number, int(start), int(end), topic_id, int(epoch))


def _unreadable(logged: Mapping[str, Any]) -> GroupSourceError:
    if _is_of_the_kafka_source(logged):
        return GroupSourceError(
            f'The checkpoint belongs to a query with format("kafka"): {_shown(logged)}. This source does not read it.',
            "Use a new checkpoint location, and set startingOffsets to these offsets: see docs/moving.md.",
        )
    return GroupSourceError(
        f"The checkpoint holds an offset of version {logged.get('version')!r}; this release reads versions up to"
        f" {VERSION}: {_shown(logged)}.",
        f"Use the release that wrote the checkpoint or a later release. {_NEW_CHECKPOINT}",
    )


def _is_of_the_kafka_source(logged: Mapping[str, Any]) -> bool:
    """Whether it is an offset of Spark's own Kafka source: ``{topic: {partition: offset}}``."""
    return all(
        isinstance(partitions, Mapping)
        and partitions
        and all(str(number).isdecimal() and isinstance(offset, int) for number, offset in partitions.items())
        for partitions in logged.values()
    )


def _shown(logged: Mapping[str, Any]) -> str:
    return json.dumps(logged)[:200]
