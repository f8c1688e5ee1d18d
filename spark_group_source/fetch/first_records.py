"""The timestamp of the first record in each of many ranges of offsets, from small fetches of the leaders.

The brokers' time index cannot show this timestamp. ListOffsets finds the first record whose timestamp is at least the
requested one, so a record with a timestamp that is too late hides every record behind it for as long as the log has it.
ListOffsets also finds transaction markers and aborted records, which no consumer gets. A bisection takes some twenty
requests, and fetching one record batch takes one to three.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_group_source.clock import Deadline
from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, GroupSourceError, RecordsError
from spark_group_source.fetch.messages import (
    FetchErrorAction,
    FetchPartition,
    answered_partitions,
    build_request,
    fetch_error_action,
)
from spark_group_source.offsets import EARLIEST, OffsetRange, Offsets, TopicPartition, topics_of
from spark_group_source.records.batches import PartitionRecords, find_record_batches
from spark_group_source.records.columns import arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import send_to_leaders
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.offset_lookup import list_offsets

log = logging.getLogger(__name__)

PURPOSE = "first records"
"""The purpose of the connections for these fetches. If a quota throttles them, lookups of offsets still go through."""

FIRST_BYTES = 4 * 1024
"""Size in bytes that the first fetch requests of one partition. If the first record batch is larger, the broker sends
nothing, and the next fetch requests more."""

GROWTH = 4
"""Factor by which the next fetch of such a partition is larger: 16 KiB hold a full record batch of Java's producer with
its default ``batch.size``."""

MAX_BYTES = 8 * 1024 * 1024
"""Maximum size in bytes of one response, unless a single record batch is larger."""

MAX_TOTAL_BYTES = 128 * 1024 * 1024
"""Total size in bytes of responses after which no further fetch is sent: 5,000 record batches of 16 KiB take 80 MiB."""

NO_TIMESTAMP = -1
"""The timestamp of a record without one."""


class FirstRecords(NamedTuple):
    """The outcome of a lookup. If no attribute names the partition or topic of a range, its first record is unknown,
    for example because its leader did not answer in time.

    Attributes:
        timestamps: the timestamp of the first record that a consumer gets from each range, in milliseconds since 1970.
        empty: the partitions of ranges that have no record for a consumer.
        denied: the topics that this client may not read.
    """

    timestamps: dict[TopicPartition, int]
    empty: set[TopicPartition]
    denied: set[str]


def first_records(
    cluster: Cluster, ranges: Iterable[OffsetRange], *, read_committed: bool, deadline: Deadline
) -> FirstRecords:
    """Looks up the first record in each range, one range for each partition.

    If the log begins after the start of a range, the first record of the log counts. Records are ordered by their
    offsets, whatever their timestamps are. If time or bytes run out, the first of ``ranges`` have precedence.

    Args:
        read_committed: the records of aborted transactions do not count. A range must end at or before the last stable
            offset.
    """
    return _Search(cluster, ranges, read_committed, deadline).run()


@dataclass(slots=True)
class _Position:
    """The next offset to search in one range, and the size in bytes of its next fetch."""

    tp: TopicPartition
    offset: int
    end: int
    size: int = FIRST_BYTES

    def request_more(self) -> None:
        self.size = min(self.size * GROWTH, MAX_BYTES)


class _Search:
    """One lookup, in rounds of one fetch for each leader. A range leaves ``_positions`` once it has an outcome."""

    def __init__(
        self, cluster: Cluster, ranges: Iterable[OffsetRange], read_committed: bool, deadline: Deadline
    ) -> None:
        self._cluster = cluster
        self._read_committed = read_committed
        self._deadline = deadline
        self._positions = {each.tp: _Position(each.tp, each.start, each.end) for each in ranges}
        self._decoder = Decoder(arrow_schema(("topic", "partition", "timestamp")), read_committed=read_committed)
        self._found = FirstRecords({}, set(), set())
        self._out_of_range: set[TopicPartition] = set()
        self._bytes_left = MAX_TOTAL_BYTES

    def run(self) -> FirstRecords:
        """Asks until each range has an outcome, or time or bytes run out."""
        while self._positions and self._bytes_left > 0 and not self._deadline.expired():
            try:
                self._ask_leaders()
                self._move_to_log_starts()
            except GroupSourceError as error:
                log.debug("cannot look up the first records of %d partition(s): %s", len(self._positions), error)
                break
        return self._found

    def _ask_leaders(self) -> None:
        """Sends one fetch to each leader. After it, each of its partitions has an outcome, moves on, or needs a larger
        fetch."""
        topics = self._cluster.topics(topics_of(self._positions), self._deadline)
        requested: set[TopicPartition] = set()

        def build(offsets: Offsets) -> Any:
            selected = self._select(offsets)
            requested.update(selected)
            return self._request(topics, selected)

        offsets = {tp: position.offset for tp, position in self._positions.items()}
        responses, errors = send_to_leaders(self._cluster, topics, offsets, build, self._deadline, PURPOSE)
        received: list[PartitionRecords] = []
        names = {topic.id: topic.name for topic in topics.values()}
        for response in responses:
            answered = {tp: data for tp, data in answered_partitions(response, names) if tp in requested}
            received += self._received(answered)
            requested.difference_update(answered)
        # The leaders of these partitions did not answer, or left them out of the response.
        self._give_up(requested.union(errors))
        self._note_first_records(received)

    def _select(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """As many partitions of one leader as fit in a response; at least one."""
        selected: list[TopicPartition] = []
        size = 0
        for tp in partitions:
            size += self._positions[tp].size
            if selected and size > MAX_BYTES:
                break
            selected.append(tp)
        return selected

    def _request(self, topics: Mapping[str, Topic], partitions: Iterable[TopicPartition]) -> Any:
        wanted = []
        for tp in partitions:
            position = self._positions[tp]
            wanted.append(FetchPartition(tp, topics[tp.topic].id, position.offset, position.size))
        return build_request(wanted, max_wait=0.0, max_bytes=MAX_BYTES, read_committed=self._read_committed)

    def _received(self, answered: Mapping[TopicPartition, Any]) -> list[PartitionRecords]:
        """The record batches in one response."""
        number_of_bytes = sum(len(data.records or b"") for data in answered.values())
        self._bytes_left -= number_of_bytes
        received = []
        for tp, data in answered.items():
            records = self._record_batches(self._positions[tp], data, MAX_BYTES - number_of_bytes)
            if records is not None:
                received.append(records)
        return received

    def _record_batches(self, position: _Position, data: Any, unused_bytes: int) -> PartitionRecords | None:
        """The record batches of one partition in a response; ``None`` if there is no complete one."""
        if data.error_code:
            self._handle_error(position.tp, data.error_code)
            return None
        try:
            batches = find_record_batches(position.tp, memoryview(bytes(data.records or b"")))
        except RecordsError:
            self._give_up([position.tp])  # the task that reads them reports it
            return None
        if len(batches):
            return PartitionRecords(batches, position.offset, position.end, _aborted(data))
        end = data.high_watermark
        if self._read_committed:
            end = data.last_stable_offset
        if end <= position.offset or position.size == MAX_BYTES:
            self._give_up([position.tp])  # the log was truncated, or the broker sends nothing of it
            return None
        is_cut = bool(data.records)
        if is_cut or position.size <= unused_bytes:
            position.request_more()
        return None

    def _handle_error(self, tp: TopicPartition, error_code: int) -> None:
        action = fetch_error_action(error_code)
        if action is FetchErrorAction.CHECK_LOG_RANGE:
            self._out_of_range.add(tp)
            return
        if error_code == TOPIC_AUTHORIZATION_FAILED:
            self._found.denied.add(tp.topic)
        if action is FetchErrorAction.REFRESH_METADATA:
            self._cluster.invalidate_topics([tp.topic])
        self._give_up([tp])

    def _give_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Ends the search in these partitions. Their first records stay unknown."""
        for tp in partitions:
            self._positions.pop(tp, None)

    def _move_to_log_starts(self) -> None:
        """Retention has deleted the starts of these ranges: their search continues where the log begins."""
        if not self._out_of_range:
            return
        partitions, self._out_of_range = self._out_of_range, set()
        begins = list_offsets(
            self._cluster,
            dict.fromkeys(partitions, EARLIEST),
            read_committed=self._read_committed,
            deadline=self._deadline,
            partial=True,
        )
        for tp in partitions:
            begin = begins.offsets.get(tp, -1)
            if begin <= self._positions[tp].offset:
                self._give_up([tp])  # the log ends before the range, or its leader did not answer
            else:
                self._move(self._positions[tp], begin)

    def _move(self, position: _Position, offset: int) -> None:
        """Continues the search at this offset: the range has no record for a consumer before it."""
        position.offset = offset
        if offset >= position.end:
            self._found.empty.add(position.tp)
            self._give_up([position.tp])

    def _note_first_records(self, received: Sequence[PartitionRecords]) -> None:
        timestamps = self._timestamps(received)
        for records in received:
            tp = records.batches.tp
            if tp in timestamps:
                self._found.timestamps[tp] = timestamps[tp]
                self._give_up([tp])
            elif tp in self._positions:
                self._skip(self._positions[tp], records)

    def _timestamps(self, received: Sequence[PartitionRecords]) -> dict[TopicPartition, int]:
        """The timestamps of the first records. Gives up on partitions whose record batches are damaged."""
        try:
            return _first_timestamps(self._decoder, received)
        except RecordsError:
            pass
        timestamps: dict[TopicPartition, int] = {}
        for records in received:
            try:
                timestamps |= _first_timestamps(self._decoder, [records])
            except RecordsError:
                self._give_up([records.batches.tp])
        return timestamps

    def _skip(self, position: _Position, records: PartitionRecords) -> None:
        """Moves past record batches without a record for a consumer: transaction markers, aborted and compacted
        records."""
        try:
            next_offset = records.batches.next_offset
        except RecordsError:
            next_offset = None
        if next_offset is None or next_offset <= position.offset:
            self._give_up([position.tp])
            return
        position.request_more()
        self._move(position, next_offset)


def _aborted(data: Any) -> list[tuple[int, int]]:
    """The aborted transactions in one partition of a response, as (producer id, first offset)."""
    return [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]


def _first_timestamps(decoder: Decoder, received: Sequence[PartitionRecords]) -> dict[TopicPartition, int]:
    """The timestamp of the first record of each partition that has any, in milliseconds since 1970.

    Raises:
        RecordsError: a record batch is damaged or in an unsupported format.
    """
    timestamps: dict[TopicPartition, int] = {}
    for rows in decoder.decode(received):
        topics = rows.column("topic").dictionary_encode()
        names = topics.dictionary.to_pylist()
        topic_indexes = topics.indices.to_numpy().astype(np.int64)
        partitions = rows.column("partition").to_numpy()
        micros = rows.column("timestamp").view(pa.int64()).to_numpy()
        _, firsts = np.unique(topic_indexes << 32 | partitions, return_index=True)
        for first in firsts.tolist():
            tp = TopicPartition(names[topic_indexes[first]], int(partitions[first]))
            timestamps.setdefault(tp, int(micros[first]) // 1000)
    return timestamps
