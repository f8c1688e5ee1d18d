"""Partitions, half-open offset ranges, and the offset JSON that Spark keeps in its log.

An offset is always the next one to read. A range ``[start, end)`` holds ``start`` and not ``end``.

A stream's reader also reports the latest offset, which Spark shows in the query's progress as ``latestOffset``. Spark
has no way for a Python source to report metrics, so the counters of the membership travel with the end offsets:
``{topic: {partition: end offset}, "#counters": {name: count}, "#limit": {...}}``, and so does what limited the last
batch. Kafka allows no ``#`` in a topic's name.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

from spark_group_source.errors import CheckpointError
from spark_group_source.json_text import parse_json
from spark_group_source.text import printable

VERSION = 3
"""Version of the offset JSON. Version 1 has no leader epochs and no group id, version 2 has no lineages. This release
reads both, but no later versions."""

UNKNOWN_EPOCH = -1
"""The leader epoch of an offset that no leader has confirmed, as in Kafka's requests."""

NO_LINEAGE = 0
"""The lineage of a partition that nobody has moved: see "Lineages" in ``DESIGN.md``."""


class TopicPartition(NamedTuple):
    """One partition of one topic; sorted by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{printable(self.topic)}-{self.partition}"


Partitions = frozenset[TopicPartition]
Offsets = Mapping[TopicPartition, int]

MAX_OFFSET = 2**63 - 1
"""The largest offset, and the largest timestamp in milliseconds, that Kafka's messages can hold."""

EARLIEST, LATEST = -2, -1
"""The timestamps in a ListOffsets request that mean the start and the end of a log."""


def may_be_same(topic_id: str, other: str) -> bool:
    """Whether two ids may belong to one topic. An empty id is unknown and may belong to any."""
    is_unknown = not topic_id or not other
    return is_unknown or topic_id == other


def topics_of(partitions: Iterable[TopicPartition]) -> set[str]:
    """The topics of these partitions."""
    return {tp.topic for tp in partitions}


def without_topics(partitions: Iterable[TopicPartition], topics: Collection[str]) -> Partitions:
    """The partitions of all other topics."""
    return frozenset(tp for tp in partitions if tp.topic not in topics)


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both sorted: the form that requests need."""
    numbers: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        numbers.setdefault(tp.topic, []).append(tp.partition)
    return numbers


def from_numbers(by_topic: Iterable[tuple[str, Iterable[int]]]) -> list[TopicPartition]:
    """The partitions with these numbers of each topic, in the given order."""
    partitions: list[TopicPartition] = []
    for topic, numbers in by_topic:
        partitions.extend(TopicPartition(topic, number) for number in numbers)
    return partitions


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets ``[start, end)`` of one partition of the topic with the id ``topic_id``.

    ``epoch`` is the leader epoch of ``end``: the epoch of a leader whose log reached ``end``. If this epoch ends before
    ``end`` in a later leader's log, records of the range are lost or replaced (KIP-320). ``lineage`` is when
    the partition was last moved.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        start: the first offset.
        end: the offset after the last one.
        topic_id: id of the topic; empty with brokers before Kafka 2.8.
        epoch: leader epoch of ``end``; -1 if it is unknown.
        lineage: when the partition was last moved, in milliseconds since 1970; 0 if nobody has moved it.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""
    epoch: int = UNKNOWN_EPOCH
    lineage: int = NO_LINEAGE

    @property
    def tp(self) -> TopicPartition:
        """The partition of the range."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Offsets in the range. Compaction and transaction markers leave gaps, so there may be fewer records."""
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.tp}[{self.start}, {self.end})"


class PinnedStart(NamedTuple):
    """Where a partition of the topic with this id starts. The offset is ``None`` while ``startingOffsets`` is still to
    be looked up.

    If ``startingOffsets`` is ``latest`` and the leader did not answer at the start, ``since`` is the time of the start,
    in milliseconds since 1970, ``epoch`` is the leader epoch of that time, and ``leaderless`` says whether there was no
    leader. Otherwise ``since`` is 0.
    """

    topic_id: str = ""
    offset: int | None = None
    epoch: int = UNKNOWN_EPOCH
    since: int = 0
    leaderless: bool = False

    def as_json(self) -> list[Any] | None:
        """This start in the offset JSON, without the topic id."""
        if self.offset is not None:
            return [self.offset, self.epoch]
        if self.since:
            return [None, self.epoch, self.since, self.leaderless]
        return None


PinnedOffsets = Mapping[TopicPartition, PinnedStart]


_PLACE = attrgetter("topic", "partition", "start")


def in_order(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The ranges sorted by partition, then by offset: in a fifth of the time that comparing whole ranges takes."""
    return sorted(ranges, key=_PLACE)


@dataclass(frozen=True, slots=True)
class BatchOffset:
    """The offsets of one micro-batch, and the query's position in every partition it ever read.

    ``ranges`` has one range per partition. If the batch does not read a partition, because it has no new records or
    another member owns it, then ``start == end``: the end that this query logged last.
    The ranges of one topic have one ``topic_id``, and so have its pinned starts: the JSON has it once for each topic.
    ``group`` is the id of the group that read the ranges, ``cluster`` the id of the cluster. Either is empty if
    unknown. ``checkpoint`` is the id of the checkpoint, which marks its commits
    (``query/starts/restored_checkpoint.py``); empty until a batch with an id is logged.

    ``pinned_starts`` are partitions that existed at the query's first start and that the query has not owned since.
    Without a committed offset, they start at the pinned start, unless their topic was recreated. ``resets`` are the
    partitions that ``resetOffsetsOnStart`` still has to move, whatever the group has committed.

    If a rewind repeats exactly the batch before, ``repeated`` is the only difference between the two offsets. Equal
    offsets have equal JSON text, and Spark, which compares the text, runs no batch whose end equals that of the batch
    before.
    """

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict)
    group: str = ""
    pinned_starts: PinnedOffsets = field(default_factory=dict)
    resets: Partitions = frozenset()
    repeated: bool = False
    cluster: str = ""
    checkpoint: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the checkpoint is new: the query has not logged any offset."""
        has_partitions = bool(self.ranges) or bool(self.pinned_starts)
        return not has_partitions and not self.group

    @classmethod
    def from_ranges(cls, ranges: Iterable[OffsetRange], group: str = "") -> BatchOffset:
        """The offset with these ranges, one per partition."""
        return cls({offset_range.tp: offset_range for offset_range in ranges}, group)

    def reads(self) -> list[OffsetRange]:
        """The ranges that are not empty, sorted by partition."""
        return in_order([offset_range for offset_range in self.ranges.values() if offset_range.size])

    def ends(self) -> dict[TopicPartition, int]:
        """The next offset to read of each partition after this batch."""
        return {tp: offset_range.end for tp, offset_range in self.ranges.items()}

    def check_group(self, group_id: str) -> None:
        """Rejects the checkpoint of another group.

        Raises:
            CheckpointError: a member of another group logged this offset.
        """
        is_unknown = not self.group
        if not is_unknown and self.group != group_id:
            raise CheckpointError(
                f"The checkpoint belongs to the group '{self.group}', and 'kafka.group.id' is '{group_id}'.",
                f"Set 'kafka.group.id' to '{self.group}', or use a new checkpointLocation. The query then starts at the"
                f" committed offsets of '{group_id}'; without committed offsets it starts at 'startingOffsets'.",
            )

    def as_json(self) -> dict[str, Any]:
        """The form that Spark logs, with sorted keys and partitions sorted by number.

        ``{"group": id, "topics": {name: {"id": id, "partitions": {"0": [start, end, epoch, lineage]}}},
        "version": 3}``, and if there are any ``"resets": {name: [0]}`` and ``"starts": {name: {"id": id, "partitions":
        {"0": [offset, epoch] or null}}}``, before ``{name: {"0": offset or null}}``. A start with a time ``since`` is
        ``[null, epoch, since, leaderless]``. A partition that nobody has moved has no lineage, and without a lineage an
        unknown epoch is left out, too. ``"repeated": true`` is left out if it is false, ``"cluster": id`` and
        ``"checkpoint": id`` if they are unknown. Releases of this version that know neither of these two ignore them.
        """
        topics: dict[str, Any] = {}
        for read in in_order(self.ranges.values()):
            topic = topics.setdefault(read.topic, {"id": read.topic_id, "partitions": {}})
            topic["partitions"][str(read.partition)] = _logged_range(read)
        logged: dict[str, Any] = {"group": self.group, "topics": topics, "version": VERSION}
        if self.cluster:
            logged["cluster"] = self.cluster
        if self.checkpoint:
            logged["checkpoint"] = self.checkpoint
        if self.repeated:
            logged["repeated"] = True
        if self.resets:
            logged["resets"] = numbers_by_topic(self.resets)
        for (name, number), start in sorted(self.pinned_starts.items()):
            topic = logged.setdefault("starts", {}).setdefault(name, {"id": start.topic_id, "partitions": {}})
            topic["partitions"][str(number)] = start.as_json()
        return logged

    @classmethod
    def from_json(cls, logged: Mapping[str, Any] | None) -> BatchOffset:
        """The offset from the JSON of :meth:`as_json`, of this or an earlier version; ``None`` and ``{}`` are empty.

        Raises:
            CheckpointError: a later release or another source wrote the JSON.
        """
        if not logged:
            return cls()
        version = logged.get("version")
        if version not in range(1, VERSION + 1):
            raise _unreadable(logged)
        try:
            ranges = _ranges(logged["topics"])
            starts = _pinned_starts(logged.get("starts", {}))
            resets = _resets(logged.get("resets", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The checkpoint has offsets of another source: {_shown(logged)}.", _NEW_CHECKPOINT
            ) from error
        offset = cls.from_ranges(ranges, str(logged.get("group", "")))
        return replace(
            offset,
            pinned_starts=starts,
            resets=resets,
            repeated=logged.get("repeated", False) is True,
            cluster=str(logged.get("cluster", "")),
            checkpoint=str(logged.get("checkpoint", "")),
        )


def new_checkpoint_id() -> str:
    """A random id for a checkpoint: 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


def parse_progress_offset(offset: object) -> object:
    """An offset in Spark's progress, which is JSON or a text that holds JSON; ``None`` for any other text."""
    if not isinstance(offset, str):
        return offset
    try:
        return parse_json(offset)
    except ValueError:  # the offset of another source may be any text
        return None


_NEW_CHECKPOINT = "Use a new checkpointLocation. The query then starts at the group's committed offsets."
_MAX_SHOWN = 200  # characters


def _logged_range(read: OffsetRange) -> list[int]:
    """The numbers of a range in the offset JSON."""
    if read.lineage != NO_LINEAGE:
        return [read.start, read.end, read.epoch, read.lineage]
    if read.epoch != UNKNOWN_EPOCH:
        return [read.start, read.end, read.epoch]
    return [read.start, read.end]


def _ranges(topics: Mapping[str, Any]) -> list[OffsetRange]:
    ranges = []
    for name, topic in topics.items():
        topic_id = str(topic["id"])
        for number, (start, end, *moved) in topic["partitions"].items():
            ranges.append(OffsetRange(name, int(number), int(start), int(end), topic_id, *map(int, moved)))
    return ranges


def _pinned_starts(topics: Mapping[str, Any]) -> dict[TopicPartition, PinnedStart]:
    starts = {}
    for name, topic in topics.items():
        topic_id = str(topic.get("id", ""))
        for number, at in topic.get("partitions", topic).items():
            fields = at if isinstance(at, list) else [at]  # earlier releases wrote only the offset
            starts[TopicPartition(name, int(number))] = PinnedStart(topic_id, *fields)
    return starts


def _resets(topics: Mapping[str, Any]) -> Partitions:
    resets = set()
    for name, numbers in topics.items():
        for number in numbers:
            resets.add(TopicPartition(name, int(number)))
    return frozenset(resets)


def _unreadable(logged: Mapping[str, Any]) -> CheckpointError:
    if _is_of_sparks_kafka_source(logged):
        return CheckpointError(
            f'The checkpoint was written by format("kafka"): {_shown(logged)}. This source cannot read its offsets.',
            "Use a new checkpointLocation. To continue at the old position, set 'startingOffsets' to"
            " spark_group_source.offsets_of_checkpoint(spark, <the old checkpoint>). The command at the end prints the"
            " steps.",
        )
    return CheckpointError(
        f"The checkpoint has offsets in format version {logged.get('version')!r}: {_shown(logged)}. This release reads"
        f" versions up to {VERSION}.",
        f"Run the release that wrote the checkpoint, or a later release. {_NEW_CHECKPOINT}",
    )


def _is_of_sparks_kafka_source(logged: Mapping[str, Any]) -> bool:
    """Whether ``format("kafka")`` wrote the JSON: ``{topic: {partition: offset}}``."""
    for partitions in logged.values():
        if not isinstance(partitions, Mapping) or not partitions:
            return False
        for number, offset in partitions.items():
            if not str(number).isdecimal() or not isinstance(offset, int):
                return False
    return True


def _shown(logged: Mapping[str, Any]) -> str:
    text = json.dumps(logged)
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]} ..."


COUNTERS = "#counters"
LIMIT = "#limit"


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """What limited a batch.

    Attributes:
        option: the option that set the limit; empty if the batch reads all that was available.
        offsets: the number of offsets in the batch.
        reason: why the limit is what it is, for people.
    """

    option: str
    offsets: int
    reason: str

    def __str__(self) -> str:
        if not self.option:
            return f"{self.offsets:,} offsets a batch, without a limit"
        return f"{self.offsets:,} offsets a batch by {self.option}: {self.reason}"


def latest_offset_json(
    end_offsets: Offsets, counters: Mapping[str, int], limit: BatchLimit | None = None
) -> dict[str, Any]:
    """The form that Spark shows, with sorted topics and partitions."""
    topics: dict[str, Any] = {}
    for tp, end in sorted(end_offsets.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = end
    reported = {**topics, COUNTERS: dict(counters)}
    if limit is not None:
        reported[LIMIT] = asdict(limit)
    return reported


def parse_limit(reported: Mapping[str, Any]) -> BatchLimit | None:
    """What limited the last batch; ``None`` if the report does not say, or another release wrote another form."""
    limit = reported.get(LIMIT)
    if not isinstance(limit, Mapping):
        return None
    try:
        return BatchLimit(str(limit["option"]), int(limit["offsets"]), str(limit["reason"]))
    except (KeyError, TypeError, ValueError):
        return None


def parse_latest_offset(reported: Mapping[str, Any]) -> tuple[dict[TopicPartition, int], Mapping[str, int] | None]:
    """The end offsets and the counters; counters are ``None`` if the report has none."""
    end_offsets = {}
    for topic, partitions in reported.items():
        if topic.startswith("#"):  # not a topic, but the counters, or a report of another release
            continue
        for number, end in partitions.items():
            end_offsets[TopicPartition(topic, int(number))] = int(end)
    return end_offsets, reported.get(COUNTERS)
