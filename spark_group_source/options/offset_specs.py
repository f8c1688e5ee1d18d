"""The starts and ends of a read that the options can name, and their JSON. Pure.

The names come from Spark's own Kafka source, which writes -2 for earliest and -1 for latest. This source uses the two
numbers only in the JSON of the options.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_group_source.offsets import TopicPartition
from spark_group_source.options.offset_json import OTHERS


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first offset of each log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The end offset of each log; with read_committed the last stable offset."""


@dataclass(frozen=True, slots=True)
class FromCommitted:
    """The group's committed offset. Without one: ``fallback``, or an error if that is ``None``."""

    fallback: Earliest | Latest | None


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition of the subscription, from the JSON of ``option``.

    ``topics`` has offsets that apply to all partitions of a topic. ``others`` applies to the partitions that neither
    ``offsets`` nor ``topics`` names. If it is ``None``, the JSON must name all partitions.
    """

    offsets: Mapping[TopicPartition, int | Earliest | Latest]
    option: str
    others: Earliest | Latest | None = None
    topics: Mapping[str, Earliest | Latest] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> int | Earliest | Latest | None:
        """The offset of a partition; ``None`` if the JSON has none for it."""
        return self.offsets.get(tp, self.topics.get(tp.topic, self.others))

    @property
    def values(self) -> list[int | Earliest | Latest]:
        """All offsets, without their partitions."""
        values = [*self.offsets.values(), *self.topics.values()]
        if self.others is not None:
            values.append(self.others)
        return values

    @property
    def digest(self) -> str:
        """Eight characters that differ for other offsets."""
        return hashlib.sha256(as_json(self.offsets, self.others, self.topics).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time, from ``option``: one time for all partitions, or one for each.

    Times are in milliseconds since 1970. If no record is that late, the end offset applies with ``or_latest``; without
    it, that is an error.
    """

    timestamps: int | Mapping[TopicPartition, int]
    option: str
    or_latest: bool


OffsetSpec = Earliest | Latest | SpecificOffsets | AtTimestamp
"""A start or end that does not depend on the group."""


StartSpec = OffsetSpec | FromCommitted
"""The start of a read."""


EndSpec = Latest | SpecificOffsets | AtTimestamp
"""The end of a batch query."""


def as_json(
    values: Mapping[TopicPartition, int | Earliest | Latest],
    others: Earliest | Latest | None = None,
    topics: Mapping[str, Earliest | Latest] | None = None,
) -> str:
    """The JSON of these values as the options accept it, in one line; partitions sorted by number."""
    if topics is None:
        topics = {}
    by_topic: dict[str, Any] = {}
    for tp in sorted(values):
        by_topic.setdefault(tp.topic, {})[str(tp.partition)] = number_in_json(values[tp])
    for topic in sorted(topics):
        by_topic[topic] = word(topics[topic])
    if others is not None:
        by_topic[OTHERS] = number_in_json(others)
    return json.dumps(by_topic, separators=(",", ":"), ensure_ascii=False)


def number_in_json(value: int | Earliest | Latest) -> int:
    """The number that the JSON of the options has for this value."""
    if isinstance(value, Earliest):
        return -2
    if isinstance(value, Latest):
        return -1
    return value


def word(value: Earliest | Latest) -> str:
    """The word that the options have for this value."""
    if isinstance(value, Earliest):
        return "earliest"
    return "latest"
