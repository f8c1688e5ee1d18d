"""Reads every commit of a group, in order, from ``__consumer_offsets``.

Keys and values have the format of Kafka's ``OffsetCommitKey`` and ``OffsetCommitValue``.
"""

from __future__ import annotations

import contextlib
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from spark_group_source.group.commits import COMMIT_TAG
from spark_group_source.testing import EmbeddedKafka

TOPIC = "__consumer_offsets"
POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit as the coordinator stored it.

    Attributes:
        offset: the next offset to read; -1 if the commit was deleted.
        at_ms: when the coordinator stored it, in milliseconds since 1970.
        metadata_tagged: whether its metadata has the tag of this source.
    """

    topic: str
    partition: int
    offset: int
    at_ms: int
    metadata_tagged: bool


def commits(kafka: EmbeddedKafka, group: str) -> Iterator[Commit]:
    """All commits of a group, in the order of the log for each partition."""
    for record in _records(kafka):
        (version,) = struct.unpack_from(">h", record.key)
        if version > 1:
            continue  # a key of group metadata
        owner, at = _text(record.key, 2)
        if owner != group:
            continue
        topic, at = _text(record.key, at)
        (partition,) = struct.unpack_from(">i", record.key, at)
        offset, tagged = -1, False
        if record.value:
            offset, tagged = struct.unpack_from(">hq", record.value)[1], COMMIT_TAG.encode() in record.value
        yield Commit(topic, partition, offset, record.timestamp, tagged)


def backward(kafka: EmbeddedKafka, group: str) -> list[tuple[tuple[str, int], int, int]]:
    """Returns the commits that went backwards or were deleted: the partition, and the offsets before and after.

    The source never does this. Commits of an owned partition only increase, and a new owner starts at the last commit,
    even after the death of a member. Only an operator's rewind goes back.
    """
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for commit in commits(kafka, group):
        found[commit.topic, commit.partition].append(commit.offset)
    assert any(len(offsets) > 1 for offsets in found.values()), f"no commits of group {group} to compare in {TOPIC}"
    return [
        (where, before, after)
        for where, offsets in found.items()
        for before, after in pairwise(offsets)
        if after < before
    ]


def _records(kafka: EmbeddedKafka) -> Iterator[Any]:
    servers = kafka.bootstrap_servers
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers, exclude_internal_topics=False)) as consumer:
        partitions = [KafkaTopicPartition(TOPIC, each) for each in consumer.partitions_for_topic(TOPIC) or ()]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any(consumer.position(each) < end for each, end in ends.items()):
            for records in consumer.poll(POLL_MS).values():
                yield from records


def _text(raw: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", raw, at)
    return raw[at + 2 : at + 2 + size].decode(), at + 2 + size
