"""Fetch requests built, and their answers interpreted.

kafka-python's own decoding copies the records of an answer. They are most of what a task ever receives, so this one
message is interpreted here, and records stay views of the receive buffer.
"""

from __future__ import annotations

import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import FetchRequest, IsolationLevel

from spark_group_source.errors import BrokerError, ProtocolError
from spark_group_source.offsets import UNKNOWN_EPOCH
from spark_group_source.wire import versions

NO_SESSION = (0, -1)
"""Session id and epoch of a fetch that stands for itself."""

_PARTITION = struct.Struct(">ihqqq")
_HEAD = struct.Struct(">ihi")
_ABORTED = struct.Struct(">qq")
_REPLICA = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One partition of a fetch; ``topic_id`` as a UUID's text. Only a leader with ``leader_epoch`` answers."""

    topic_id: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition of an answer. ``aborted`` holds (producer id, first offset) of aborted transactions.

    ``last_stable`` is where open transactions begin, or else ``high_watermark``, which is the end of the log.
    ``preferred_replica`` is the broker to fetch from instead, -1 where there is none; then there are no records.
    """

    topic_id: str
    partition: int
    error: int
    high_watermark: int
    last_stable: int
    aborted: Sequence[tuple[int, int]]
    records: memoryview
    preferred_replica: int = -1


def build(
    wanted: Iterable[Wanted],
    *,
    max_wait: float,
    max_bytes: int,
    read_committed: bool,
    min_bytes: int = 1,
    rack: str | None = None,
) -> Any:
    """A Fetch request for these partitions of one broker."""
    topic_of = FetchRequest.FetchTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for each in wanted:
        by_topic[each.topic_id].append(
            topic_of.FetchPartition(
                version=versions.FETCH,
                partition=each.partition,
                current_leader_epoch=each.leader_epoch,
                fetch_offset=each.offset,
                last_fetched_epoch=UNKNOWN_EPOCH,
                log_start_offset=-1,
                partition_max_bytes=each.max_bytes,
            )
        )
    session_id, session_epoch = NO_SESSION
    return FetchRequest(
        version=versions.FETCH,
        replica_id=-1,
        max_wait_ms=round(max_wait * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            topic_of(version=versions.FETCH, topic_id=uuid.UUID(topic_id), partitions=partitions)
            for topic_id, partitions in by_topic.items()
        ],
        forgotten_topics_data=[],
        rack_id=rack or "",
    )


def interpret(body: memoryview) -> list[Fetched]:
    """The partitions of a Fetch answer.

    Raises:
        BrokerError: the request was refused as a whole.
        ProtocolError: the bytes are no such answer.
    """
    reader = _Reader(body)
    try:
        _, error, _ = reader.take(_HEAD)
        if error:
            raise BrokerError(f"A fetch was refused with error {error}.", errno=error)
        found = list(_topics(reader))
        reader.skip_tags()
    except (struct.error, IndexError, ValueError) as damage:
        raise ProtocolError(f"A fetch was answered with {len(body)} bytes that are no Fetch response.") from damage
    return found


def _topics(reader: _Reader) -> Iterator[Fetched]:
    for _ in range(reader.count()):
        topic_id = str(uuid.UUID(bytes=bytes(reader.view(16))))
        for _ in range(reader.count()):
            number, error, high_watermark, last_stable, _ = reader.take(_PARTITION)
            aborted = []
            for _ in range(reader.count()):
                aborted.append(reader.take(_ABORTED))
                reader.skip_tags()
            (preferred,) = reader.take(_REPLICA)
            records = reader.view(reader.count())
            reader.skip_tags()
            yield Fetched(topic_id, number, error, high_watermark, last_stable, aborted, records, preferred)
        reader.skip_tags()


class _Reader:
    """Reads the primitives of flexible message versions, in order."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._body, self._at)
        self._at += layout.size
        return values

    def view(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._body):
            raise ValueError("it ends early")
        part = self._body[self._at : end]
        self._at = end
        return part

    def varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._body[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("a varint of more than five bytes")

    def count(self) -> int:
        """The length of a compact array or byte string; null counts as empty."""
        return max(0, self.varint() - 1)

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.view(self.varint())
