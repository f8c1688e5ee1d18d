"""Builds Fetch requests, parses Fetch responses, and defines the action for each error code of Fetch.

This module parses responses itself, because kafka-python copies the records, which are most of the bytes that a task
receives. Here, records stay views of the receive buffer.
"""

from __future__ import annotations

import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kafka.protocol.consumer import FetchRequest, IsolationLevel

from spark_group_source.errors import UNKNOWN_TOPIC_ID, BrokerError, ProtocolError, describe_error_code
from spark_group_source.offsets import UNKNOWN_EPOCH, TopicPartition
from spark_group_source.varints import decode_unsigned
from spark_group_source.wire import versions
from spark_group_source.wire.leaders import HEALED_BY_NEW_METADATA
from spark_group_source.wire.response import after_tags


class FetchErrorAction(Enum):
    """The action after an error of one partition."""

    REFRESH_METADATA = auto()
    """Back off, ask for the leaders again, and retry."""
    CHECK_LOG_RANGE = auto()
    """The offset is not in the log: look up the earliest and latest offset."""
    CONFIRM_TOPIC_DELETED = auto()
    """The topic with this id was deleted, or this broker does not know it yet: retry, then data loss."""
    CONFIRM_CORRUPT = auto()
    """The broker cannot read its log: retry, then fail."""
    CONFIRM_TRUNCATED = auto()
    """No error code, but the log ends before the range: truncated, or the high watermark of a new leader lags."""
    CONFIRM_EARLIER = auto()
    """No error code, but all records come before the requested offset: request more records, then fail."""
    FAIL = auto()
    """A retry cannot help."""


FETCH_ERROR_ACTIONS: dict[int, FetchErrorAction] = {
    **dict.fromkeys(HEALED_BY_NEW_METADATA, FetchErrorAction.REFRESH_METADATA),
    1: FetchErrorAction.CHECK_LOG_RANGE,  # OFFSET_OUT_OF_RANGE
    2: FetchErrorAction.CONFIRM_CORRUPT,  # CORRUPT_MESSAGE
    UNKNOWN_TOPIC_ID: FetchErrorAction.CONFIRM_TOPIC_DELETED,
    103: FetchErrorAction.CONFIRM_TOPIC_DELETED,  # INCONSISTENT_TOPIC_ID
}
"""The action for an error code. Any other code is :attr:`FetchErrorAction.FAIL`, so that no error is ignored."""


def fetch_error_action(error_code: int) -> FetchErrorAction:
    """The action for an error code other than 0."""
    return FETCH_ERROR_ACTIONS.get(error_code, FetchErrorAction.FAIL)


NO_SESSION = (0, -1)
"""Session id and epoch of a fetch without a fetch session."""

FLEXIBLE, WITH_PREFERRED_REPLICA, WITH_SESSION, WITH_LOG_START = 12, 11, 7, 5
"""The first version of Fetch with compact fields and tags, and the first versions with each of these fields in a
response."""

_PARTITION = struct.Struct(">ihqqq")
_PARTITION_WITHOUT_LOG_START = struct.Struct(">ihqq")
_RESPONSE_START = struct.Struct(">ihi")
_ABORTED_TRANSACTION = struct.Struct(">qq")
_REPLICA_ID = _COUNT = _THROTTLE = struct.Struct(">i")
_NAME_SIZE = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a Fetch request; ``topic_id`` may be empty. Only a leader with ``leader_epoch`` serves it."""

    tp: TopicPartition
    topic_id: str
    offset: int
    partition_max_bytes: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class PartitionData:
    """One partition of a Fetch response. ``topic`` is its topic's id, or before version 13 its name. ``aborted`` holds
    (producer id, first offset) of aborted transactions.

    ``last_stable_offset`` is the start of the first open transaction; without one it equals ``high_watermark``, the end
    offset. ``preferred_replica`` is the broker to fetch from instead, or -1; a response with one has no records.
    """

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: Sequence[tuple[int, int]]
    records: memoryview
    preferred_replica: int = -1


def build_request(
    partitions: Iterable[FetchPartition],
    *,
    max_wait: float,
    max_bytes: int,
    read_committed: bool,
    min_bytes: int = 1,
    rack: str | None = None,
) -> Any:
    """A Fetch request for partitions of one broker. It names topics by id if all ids are known and the broker supports
    that."""
    topics = _topics(partitions)
    max_version = None
    if not all(topic.topic_id for topic in topics):
        max_version = versions.FETCH_BY_TOPIC_ID - 1
    isolation_level = IsolationLevel.READ_UNCOMMITTED
    if read_committed:
        isolation_level = IsolationLevel.READ_COMMITTED
    if rack is None:
        rack = ""
    session_id, session_epoch = NO_SESSION
    return FetchRequest(
        max_version=max_version,
        replica_id=-1,
        max_wait_ms=round(max_wait * 1000),
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=topics,
        forgotten_topics_data=[],
        rack_id=rack,
    )


def _topics(partitions: Iterable[FetchPartition]) -> list[Any]:
    """The partitions by topic, as the request needs them. A topic whose id is unknown has none."""
    topic_class = FetchRequest.FetchTopic
    by_topic: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.tp.topic, partition.topic_id].append(
            topic_class.FetchPartition(
                partition=partition.tp.partition,
                current_leader_epoch=partition.leader_epoch,
                fetch_offset=partition.offset,
                last_fetched_epoch=UNKNOWN_EPOCH,
                log_start_offset=-1,
                partition_max_bytes=partition.partition_max_bytes,
            )
        )
    topics = []
    for (name, text), topic_partitions in by_topic.items():
        topic_id = None
        if text:
            topic_id = uuid.UUID(text)
        topics.append(topic_class(topic=name, topic_id=topic_id, partitions=topic_partitions))
    return topics


def answered_partitions(response: Any, names: Mapping[str, str]) -> Iterator[tuple[TopicPartition, Any]]:
    """Each partition of a response that kafka-python has parsed. Only the driver's small fetches use this.

    Args:
        names: the names of topics by id; an unknown id is left out.
    """
    for topic in response.responses:
        name = names.get(str(topic.topic_id), topic.topic)
        for data in topic.partitions:
            yield TopicPartition(name, data.partition_index), data


def parse_response(body: memoryview, version: int) -> list[PartitionData]:
    """The partitions of a Fetch response in this version.

    Raises:
        BrokerError: the broker rejected the whole request.
        ProtocolError: the bytes are not a Fetch response.
    """
    reader = _Reader(body)
    if version < FLEXIBLE:
        reader = _OldReader(body)
    try:
        error_code = _error_of_response(reader, version)
        if error_code:
            raise BrokerError(
                f"The broker rejected a fetch with error {describe_error_code(error_code)}.", error_code=error_code
            )
        partitions = list(_partitions(reader, version))
        reader.skip_tags()
    except (struct.error, IndexError, ValueError) as damage:
        raise ProtocolError(
            f"A broker answered a fetch with {len(body)} bytes that are not a Fetch response."
        ) from damage
    return partitions


def _error_of_response(reader: _Reader, version: int) -> int:
    """The error code of a whole response, 0 without an error. Versions before fetch sessions have no such code."""
    if version < WITH_SESSION:
        reader.take(_THROTTLE)
        return 0
    _, error_code, _ = reader.take(_RESPONSE_START)
    return int(error_code)


def _topic_of(reader: _Reader, version: int) -> str:
    """The id of the next topic, or its name before version 13."""
    if version < versions.FETCH_BY_TOPIC_ID:
        return reader.name()
    return str(uuid.UUID(bytes=bytes(reader.view(16))))


def _partitions(reader: _Reader, version: int) -> Iterator[PartitionData]:
    layout = _PARTITION
    if version < WITH_LOG_START:
        layout = _PARTITION_WITHOUT_LOG_START
    for _ in range(reader.count()):
        topic = _topic_of(reader, version)
        for _ in range(reader.count()):
            number, error_code, high_watermark, last_stable = reader.take(layout)[:4]
            aborted = []
            for _ in range(reader.count()):
                aborted.append(reader.take(_ABORTED_TRANSACTION))
                reader.skip_tags()
            preferred_replica = -1
            if version >= WITH_PREFERRED_REPLICA:
                (preferred_replica,) = reader.take(_REPLICA_ID)
            records = reader.view(reader.count())
            reader.skip_tags()
            yield PartitionData(
                topic, number, error_code, high_watermark, last_stable, aborted, records, preferred_replica
            )
        reader.skip_tags()


class _Reader:
    """Reads the primitive types of flexible message versions, in order."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._position = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._body, self._position)
        self._position += layout.size
        return values

    def view(self, size: int) -> memoryview:
        end = self._position + size
        if not self._position <= end <= len(self._body):  # a negative size would lead back, for 2**31 rounds
            raise ValueError("the response ends early")
        view = self._body[self._position : end]
        self._position = end
        return view

    def count(self) -> int:
        """The length of a compact array or byte string; null counts as empty."""
        length, self._position = decode_unsigned(self._body, self._position)
        return max(0, length - 1)

    def name(self) -> str:
        return str(self.view(self.count()), "utf-8")

    def skip_tags(self) -> None:
        self._position = after_tags(self._body, self._position)


class _OldReader(_Reader):
    """Reads the primitive types of earlier message versions."""

    def count(self) -> int:
        (count,) = self.take(_COUNT)
        return max(0, int(count))

    def name(self) -> str:
        return str(self.view(*self.take(_NAME_SIZE)), "utf-8")

    def skip_tags(self) -> None:
        pass
