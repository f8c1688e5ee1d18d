"""The user data of ``sticky``: the last assignment, encoded as in Kafka's Java client."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from spark_group_source.offsets import TopicPartition, numbers_by_topic

_KAFKA_PYTHON = b"\0\1"
"""kafka-python writes a version first. Java's encoding would begin with these bytes only for 65,536 topics or more."""


def encode(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """Encodes the partitions that were assigned in this generation."""
    by_topic = numbers_by_topic(partitions)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, struct.pack(">i", generation)])


def decode(user_data: bytes) -> tuple[list[TopicPartition], int]:
    """Decodes the partitions and their generation, from any client.

    The generation is -1 for clients before Kafka 2.3, which send none. Unreadable bytes give no partitions.
    """
    for start in (len(_KAFKA_PYTHON), 0) if user_data.startswith(_KAFKA_PYTHON) else (0,):
        try:
            return _read(user_data, start)
        except (struct.error, UnicodeDecodeError, ValueError):
            continue
    return [], -1


def _read(data: bytes, at: int) -> tuple[list[TopicPartition], int]:
    partitions: list[TopicPartition] = []
    topics, at = _count(data, at)
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        (name,) = struct.unpack_from(f">{length}s", data, at + 2)
        count, at = _count(data, at + 2 + length)
        partitions += [TopicPartition(name.decode(), number) for number in struct.unpack_from(f">{count}i", data, at)]
        at += 4 * count
    if len(data) - at < 4:
        return partitions, -1
    (generation,) = struct.unpack_from(">i", data, at)
    return partitions, generation


def _count(data: bytes, at: int) -> tuple[int, int]:
    (count,) = struct.unpack_from(">i", data, at)
    if not 0 <= count <= len(data) - at:
        raise ValueError(f"{count} elements do not fit into the remaining bytes")
    return count, at + 4
