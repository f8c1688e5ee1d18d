"""Partitions, half-open offset ranges, and the offset JSON that Spark keeps in its log.

An offset is always the next one to read. A range ``[start, end)`` holds ``start`` and not ``end``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_group_source.errors import GroupSourceError

VERSION = 1
"""Version of the offset JSON; a checkpoint written by a later one is refused."""


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
    """Offsets ``[start, end)`` of one partition of the topic that has id ``topic_id``."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""

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
    The JSON text of equal offsets is equal, since Spark compares text.
    """

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)

    @classmethod
    def of(cls, ranges: Iterable[OffsetRange]) -> BatchOffset:
        """The offset with these ranges, one per partition."""
        return cls({each.tp: each for each in ranges})

    def reads(self) -> list[OffsetRange]:
        """The ranges with something to read, sorted by partition."""
        return sorted(each for each in self.ranges.values() if each.size)

    def ends(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition once this batch is done."""
        return {tp: each.end for tp, each in self.ranges.items()}

    def as_json(self) -> dict[str, Any]:
        """The form Spark logs: ``{"topics": {name: {"id": id, "partitions": {"0": [start, end]}}}, "version": 1}``.

        Keys are sorted; partitions by number.
        """
        topics: dict[str, Any] = {}
        for each in sorted(self.ranges.values()):
            topic = topics.setdefault(each.topic, {"id": each.topic_id, "partitions": {}})
            topic["partitions"][str(each.partition)] = [each.start, each.end]
        return {"topics": topics, "version": VERSION}

    @classmethod
    def from_json(cls, logged: Mapping[str, Any] | None) -> BatchOffset:
        """The offset that :meth:`as_json` wrote; ``None`` and ``{}`` are the empty one.

        Raises:
            GroupSourceError: the JSON is of a later version or not of this form.
        """
        if not logged:
            return cls()
        if logged.get("version") != VERSION:
            raise GroupSourceError(
                f"The checkpoint holds an offset of version {logged.get('version')!r}; this release reads {VERSION}:"
                f" {json.dumps(logged)[:200]}.",
                "Use the release that wrote the checkpoint or a later one, or start with a new checkpoint location:"
                " the query then goes on at the group's committed offsets.",
            )
        try:
            return cls.of(
                OffsetRange(name, int(number), int(start), int(end), str(topic["id"]))
                for name, topic in logged["topics"].items()
                for number, (start, end) in topic["partitions"].items()
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GroupSourceError(
                f"The checkpoint holds an offset that this source did not write: {json.dumps(logged)[:200]}.",
                "Start with a new checkpoint location: the query then goes on at the group's committed offsets.",
            ) from error
