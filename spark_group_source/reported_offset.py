"""The latest offset that a stream's reader reports; Spark shows it in the query's progress as ``latestOffset``. Pure.

Spark has no way for a Python source to report metrics, so the counters of the membership travel with the end offsets:
``{topic: {partition: end offset}, "#counters": {name: count}}``. Kafka allows no ``#`` in a topic's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_group_source.offsets import Offsets, TopicPartition

COUNTERS = "#counters"


def to_json(end_offsets: Offsets, counters: Mapping[str, int]) -> dict[str, Any]:
    """The form that Spark shows, with sorted topics and partitions."""
    topics: dict[str, Any] = {}
    for tp, end in sorted(end_offsets.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = end
    return {**topics, COUNTERS: dict(counters)}


def from_json(reported: Mapping[str, Any]) -> tuple[dict[TopicPartition, int], Mapping[str, int] | None]:
    """The end offsets and the counters; counters are ``None`` if the report has none."""
    end_offsets = {
        TopicPartition(topic, int(number)): int(end)
        for topic, partitions in reported.items()
        if topic != COUNTERS
        for number, end in partitions.items()
    }
    return end_offsets, reported.get(COUNTERS)
