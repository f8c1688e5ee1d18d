"""Reads every commit of a group, in order, from ``__consumer_offsets``.

Keys and values have the format of Kafka's ``OffsetCommitKey`` and ``OffsetCommitValue``.
"""

from __future__ import annotations

import contextlib
import struct
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from spark_group_source.testing import EmbeddedKafka

TOPIC = "__consumer_offsets"
POLL_MS = 1000


def backward(kafka: EmbeddedKafka, group: str) -> list[tuple[tuple[str, int], int, int]]:
    """Returns the commits that went backwards or were deleted: the partition, and the offsets before and after.

    The source never does this. Commits of an owned partition only increase, and a new owner starts at the last commit,
    even after the death of a member. Only an operator's rewind goes back.
    """
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for key, value in _records(kafka):
        (version,) = struct.unpack_from(">h", key)
        if version > 1:
            continue  # a key of group metadata
        owner, at = _text(key, 2)
        if owner == group:
            topic, at = _text(key, at)
            (partition,) = struct.unpack_from(">i", key, at)
            found[topic, partition].append(struct.unpack_from(">hq", value)[1] if value else -1)
    assert any(len(offsets) > 1 for offsets in found.values()), f"no commits of group {group} to compare in {TOPIC}"
    return [
        (where, before, after)
        for where, offsets in found.items()
        for before, after in pairwise(offsets)
        if after < before
    ]


def _records(kafka: EmbeddedKafka) -> Iterator[tuple[bytes, bytes | None]]:
    servers = kafka.bootstrap_servers
    with contextlib.closing(KafkaConsumer(bootstrap_servers=servers, exclude_internal_topics=False)) as consumer:
        partitions = [KafkaTopicPartition(TOPIC, each) for each in consumer.partitions_for_topic(TOPIC) or ()]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        while any(consumer.position(each) < end for each, end in ends.items()):
            for records in consumer.poll(POLL_MS).values():
                yield from ((each.key, each.value) for each in records)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from(">h", raw, at)
    return raw[at + 2 : at + 2 + size].decode(), at + 2 + size
