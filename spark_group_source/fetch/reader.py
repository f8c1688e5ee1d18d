"""Reads the ranges of a task as Arrow record batches, and fetches the next records while it decodes the last ones.

A reused Python worker keeps its connections from one task to the next. After an election the reader checks that the
new leader has the range (KIP-320).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import pyarrow as pa

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerError,
    GroupSourceError,
    ProtocolError,
    RecordsError,
    RetriableError,
)
from spark_group_source.fetch import read_ahead
from spark_group_source.fetch.cluster_pool import pooled_cluster
from spark_group_source.fetch.error_handler import FetchErrorHandler
from spark_group_source.fetch.fetches import Fetches, InFlightFetch, RequestedPartition
from spark_group_source.fetch.first_contact import FirstContact
from spark_group_source.fetch.messages import PartitionData, parse_response
from spark_group_source.fetch.position import MIN_FETCH, READ_AHEAD, FetchPosition
from spark_group_source.fetch.preferred_replicas import PreferredReplicas
from spark_group_source.fetch.read_ahead import ReadAheadBuffer
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import MAX_REQUEST_BYTES
from spark_group_source.fetch.task_timeout import TaskTimeout
from spark_group_source.records.batches import PartitionRecords, RecordBatches, find_record_batches
from spark_group_source.records.decode import Decoder
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.response import Response


def read(task: FetchTask) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a task's ranges, as Arrow record batches with the task's columns.

    Raises:
        DataLoss: records of a range are lost, and ``fail_on_data_loss`` is set.
        TopicError: the principal may not read a topic.
        DeadlineExceeded: no progress for the task's poll timeout.
        RecordsError: records are damaged, or in an unsupported format.
    """
    if task.wire.sasl is not None and task.token is not None:
        task.wire.sasl.import_token(task.token)
    try:
        with pooled_cluster(task.wire, task.cluster_id) as cluster:
            yield from TaskReader(task, cluster).batches()
    except (RetriableError, AuthenticationFailed, ProtocolError) as error:
        raise _with_host(error) from error


def _with_host(error: RetriableError | AuthenticationFailed | ProtocolError) -> GroupSourceError:
    """The same error with the name of this host, because other hosts may reach the brokers, and Spark's own message may
    show only the number of the executor."""
    return type(error)(f"{error.happened} The task ran on host {socket.gethostname()}.", error.action)


class TaskReader:
    """Reads one task once."""

    def __init__(self, task: FetchTask, cluster: Cluster, clock: Clock = monotonic) -> None:
        self._settings = settings = task.settings
        self._cluster = cluster
        if task.leaders is not None:
            cluster.tell(task.leaders)
        self._clock = clock
        self._decoder = Decoder(task.schema, read_committed=settings.read_committed, check_crcs=settings.check_crcs)
        beyond = min(MIN_FETCH, read_ahead.MAX_BUFFERED_BYTES // max(len(task.ranges), 1))
        self._positions = [FetchPosition.at_start(each, settings.partition_max_bytes, beyond) for each in task.ranges]
        self._kept = ReadAheadBuffer(task.query_id)
        self._replicas = PreferredReplicas(task.wire.rack, task.wire.metadata_max_age, clock)
        self._errors = FetchErrorHandler(task, cluster, self._replicas, clock)
        self._fetches = Fetches(cluster, settings, self._positions, self._replicas, self._errors, clock)
        self._contact = FirstContact(cluster, task.query_id)
        self._timeout = TaskTimeout(self._positions, settings.poll_timeout, self._contact, clock)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, by offset within each partition. Call it once."""
        kept = self._take_kept()
        if kept:
            self._fetches.send(self._timeout)
            yield from self._timed(self._kept_rows(kept))
            self._timeout.record_progress()
        while not all(position.done for position in self._positions):
            self._fetches.send(self._timeout)
            for broker in self._fetches.wait(self._timeout):
                yield from self._received_rows(self._fetches.take(broker))
            self._check_timeout()

    def _received_rows(self, fetch: InFlightFetch) -> Iterator[pa.RecordBatch]:
        """The rows of the response to a fetch. Fetches more before it decodes them."""
        response = self._fetches.receive(fetch)
        partitions: list[PartitionRecords] = []
        if response is not None:
            self._contact.record()
            partitions = self._handle_response(response, fetch)
        # The next response arrives while this one is decoded.
        self._fetches.send(self._timeout)
        yield from self._timed(self._rows(partitions, partial(self._handle_damage, fetch)))
        if response is not None:
            fetch.connection.reuse_buffer(response)
        if fetch.advanced():
            # Recorded after the rows: the time that Spark needs for them is not a lack of progress.
            self._timeout.record_progress()

    def _timed(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """These rows. Notes the time until Spark has taken them, because meanwhile the task does not wait for a
        broker."""
        began = self._clock()
        yield from rows
        self._timeout.record_taken(self._clock() - began)

    def _take_kept(self) -> list[PartitionRecords]:
        """The records that earlier tasks kept of the ranges; advances the positions."""
        found = [(position, self._kept.take(position.range)) for position in self._positions]
        taken = []
        for position, batches in found:
            if batches:
                taken.append(self._advance(position, batches))
        return taken

    def _kept_rows(self, kept: list[PartitionRecords]) -> Iterator[pa.RecordBatch]:
        """The rows of kept records. Removes records that cannot be decoded, and the task fetches them instead."""
        try:
            yield from self._rows(kept, lambda position, error: self._kept.remove(position.range, error.happened))
        except RecordsError as error:
            # The task has already returned rows of these records, so it fails. Its next attempt fetches them.
            for records in kept:
                self._kept.remove(self._position(records).range, error.happened)
            raise

    def _rows(
        self, partitions: list[PartitionRecords], handle_damage: Callable[[FetchPosition, RecordsError], None]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these partitions. Leaves out partitions that cannot be decoded, and moves their positions back.

        Raises:
            CorruptRecords, UnsupportedRecords: records after the first row cannot be decoded. Checksums are compared
                before the first row, so the log itself has such records, and another response would be equal.
        """
        rows = self._decoder.decode(partitions)
        try:
            first = next(rows, None)
        except RecordsError:
            yield from self._decoder.decode(self._intact(partitions, handle_damage))
            return
        if first is not None:
            yield first
        yield from rows

    def _intact(
        self, partitions: list[PartitionRecords], handle_damage: Callable[[FetchPosition, RecordsError], None]
    ) -> list[PartitionRecords]:
        """The partitions that can be decoded. Handles the damage of the others, and moves their positions back."""
        intact = []
        for records in partitions:
            try:
                next(self._decoder.decode([records]), None)
                intact.append(records)
            except RecordsError as error:
                position = self._position(records)
                position.rewind(records.start)
                handle_damage(position, error)
        return intact

    def _position(self, records: PartitionRecords) -> FetchPosition:
        return next(position for position in self._positions if position.tp == records.batches.tp)

    def _handle_damage(self, fetch: InFlightFetch, position: FetchPosition, error: RecordsError) -> None:
        """Drops the connection over which damaged records came, and lets the position fetch them again."""
        self._kept.remove(position.range, error.happened)
        self._fetches.drop_connection(fetch)
        self._errors.handle_damage(position, error)

    def _handle_response(self, response: Response, fetch: InFlightFetch) -> list[PartitionRecords]:
        """The records of the ranges in a response; advances the positions."""
        version = response.request.API_VERSION
        try:
            partitions = parse_response(response.body, version)
        except BrokerError as error:
            for failed in fetch.positions:
                self._errors.handle_error(failed, error.error_code)
            return []
        positions = self._requested(partitions, fetch, by_id=version >= versions.FETCH_BY_TOPIC_ID)
        unused_bytes = fetch.max_bytes - sum(len(partition.records) for partition in partitions)
        records = []
        for position, data in positions:
            received = self._handle_partition(position, data, fetch, unused_bytes)
            if received is not None:
                records.append(received)
        if not records:
            self._wait_for_progress(fetch)
        return records

    def _requested(
        self, partitions: Sequence[PartitionData], fetch: InFlightFetch, *, by_id: bool
    ) -> list[tuple[FetchPosition, PartitionData]]:
        """The position of each partition in a response, without those that moved since the fetch was sent."""
        requested: dict[tuple[str, int], RequestedPartition] = {}
        for each in fetch.requested:
            topic = each.position.tp.topic
            if by_id:
                topic = each.position.topic_id
            requested[topic, each.position.tp.partition] = each
        found = []
        for data in partitions:
            key = data.topic, data.partition
            if key not in requested:
                tp = f"partition {data.partition} of topic {data.topic}"
                raise ProtocolError(f"A broker answered a fetch with {tp}, which was not requested.")
            answered = requested.pop(key)
            if not answered.has_moved:
                found.append((answered.position, data))
        for unanswered in requested.values():
            unanswered.position.last_problem = f"the response of broker {fetch.broker} lacks the partition"
        return found

    def _handle_partition(
        self, position: FetchPosition, data: PartitionData, fetch: InFlightFetch, unused_bytes: int
    ) -> PartitionRecords | None:
        """The fetched records of one position, if there are any."""
        if data.error_code:
            self._errors.handle_error(position, data.error_code)
        elif data.preferred_replica >= 0:
            position.last_problem = f"broker {fetch.broker} names broker {data.preferred_replica} as preferred replica"
            self._replicas.follow(position.tp, data.preferred_replica, fetch.broker)
        else:
            try:
                return self._received(position, data, unused_bytes)
            except RecordsError as error:
                self._handle_damage(fetch, position, error)
        return None

    def _wait_for_progress(self, fetch: InFlightFetch) -> None:
        """Delays the next fetch of positions that a response without records did not advance.

        A broker waits for records up to the maximum wait, which is part of the delay: after that wait, the next fetch
        is sent at once. So is a fetch for more bytes or to another broker. An error has its own backoff.
        """
        min_pause = self._cluster.options.retry_backoff
        max_pause = max(self._fetches.max_wait, min_pause)
        for requested in fetch.requested:
            position = requested.position
            backs_off = position.next_fetch_at > self._clock()
            asks_for_more = position.partition_max_bytes > requested.size
            asks_another = self._replicas.broker(position.tp, fetch.broker) != fetch.broker
            is_excused = backs_off or asks_for_more or asks_another
            if not is_excused and not requested.has_moved:
                position.wait_for_progress(fetch.sent_at, min_pause, max_pause)

    def _received(self, position: FetchPosition, data: PartitionData, unused_bytes: int) -> PartitionRecords | None:
        """The fetched records of a range, if there are any. Keeps the records beyond the range."""
        batches = find_record_batches(position.tp, data.records)
        if not len(batches):
            if data.records:
                self._handle_incomplete(position, batches, unused_bytes)
            else:
                self._handle_no_records(position, data, unused_bytes)
            return None
        lone = len(batches) == 1
        batches = batches.reliable(position.offset, position.range.end, data.high_watermark)
        if not len(batches):
            self._request_more(position)
            self._errors.handle_earlier_records(position)
            return None
        if lone and self._next_batch_may_contradict(position, batches, data.high_watermark):
            self._request_more(position)
            return None
        position.sizes.observe(batches)
        if not data.aborted:
            # The list of aborted transactions belongs to this response alone.
            self._kept.keep(position.range, position.leader_epoch, batches)
        return self._advance(position, batches, data.aborted)

    def _next_batch_may_contradict(self, position: FetchPosition, batches: RecordBatches, high_watermark: int) -> bool:
        """Whether the only record batch of a response must wait for the next record batch, which a larger response may
        hold.

        Either compaction left the gap before it, or its base offset is wrong: the next record batch shows which.
        """
        next_offset = batches.next_offset
        is_behind_gap = position.offset < batches.base_offset(0)
        if next_offset is None or not is_behind_gap:
            return False
        has_next = next_offset < max(high_watermark, position.range.end)
        return has_next and position.partition_max_bytes < position.max_bytes

    def _request_more(self, position: FetchPosition) -> None:
        position.request_more(min(READ_AHEAD * position.partition_max_bytes, position.max_bytes))

    def _advance(
        self, position: FetchPosition, batches: RecordBatches, aborted: Sequence[tuple[int, int]] = ()
    ) -> PartitionRecords:
        """Advances the position to the end that the headers of the record batches name: markers and gaps may follow the
        last visible record."""
        records = PartitionRecords(batches, position.offset, position.range.end, aborted)
        next_offset = batches.next_offset
        if next_offset is None:
            next_offset = position.offset
        position.advance(next_offset)
        return records

    def _handle_incomplete(self, position: FetchPosition, batches: RecordBatches, unused_bytes: int) -> None:
        """Requests more bytes, because the first record batch did not fit in the response.

        Raises:
            CorruptRecords: its length is wrong, because this response had room for it, or because no response has.
        """
        received, size = len(batches.records), batches.incomplete_batch_size
        if size is None:
            size = 0
        damage = f"its header says {size} bytes, but the broker sent fewer"
        if size > MAX_REQUEST_BYTES:
            raise batches.location(0).corrupt(f"{damage}, and a fetch requests at most {MAX_REQUEST_BYTES}")
        had_room = 0 < size <= min(position.partition_max_bytes, received + unused_bytes)
        if had_room:
            raise batches.location(0).corrupt(damage)
        position.request_more(size)
        self._errors.back_off([position], f"the response has {received} bytes, less than one record batch")

    def _handle_no_records(self, position: FetchPosition, data: PartitionData, unused_bytes: int) -> None:
        """Notes the reason, and requests more bytes if the first record batch may not have fitted in the response."""
        if data.high_watermark <= position.offset:
            self._errors.handle_early_end(position, data.high_watermark)
            return
        # The reason is a quota, an open transaction, other partitions that filled the response, or a large record
        # batch, which the broker sends only if it comes first in a response.
        ends = f"last stable offset {data.last_stable_offset}, end offset {data.high_watermark}"
        position.note_no_records(f"the broker sent no records; {ends}")
        if position.partition_max_bytes <= min(unused_bytes, position.max_bytes // 2):
            self._request_more(position)

    def _check_timeout(self) -> None:
        if self._timeout.is_over():
            self._decide_pending()
            self._timeout.fail()
        else:
            self._timeout.check()

    def _decide_pending(self) -> None:
        """Decides now whether records are lost, because a short poll timeout ends before the attempts that would
        confirm it."""
        deadline = self._errors.deadline()
        for position in self._positions:
            if not position.done and not deadline.expired():
                self._errors.decide(position)
