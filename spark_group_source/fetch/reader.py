"""Reads the ranges of a task as Arrow record batches, and fetches the next records while it decodes the last.

A reused Python worker keeps its connections from one task to the next. After an election the reader checks that the
new leader has the range (KIP-320).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import BrokerError, DeadlineExceeded, ProtocolError, RecordsError, RetriableError
from spark_group_source.fetch import read_ahead
from spark_group_source.fetch.broker_selection import BrokerSelection
from spark_group_source.fetch.cluster_pool import pooled_cluster
from spark_group_source.fetch.error_handler import FetchErrorHandler
from spark_group_source.fetch.messages import FetchPartition, PartitionData, build_request, parse_response
from spark_group_source.fetch.position import MIN_FETCH, READ_AHEAD, FetchPosition
from spark_group_source.fetch.preferred_replicas import PreferredReplicas
from spark_group_source.fetch.read_ahead import ReadAheadBuffer
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import MAX_REQUEST_BYTES
from spark_group_source.records.batches import PartitionRecords, RecordBatches, find_record_batches
from spark_group_source.records.decode import Decoder
from spark_group_source.text import some
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.response import Response
from spark_group_source.wire.waiting import poll_readable

log = logging.getLogger(__name__)

PURPOSE = "fetch"
CONNECT_TIME = 10.0
"""Seconds after which a task connects to no further broker before it has requested new metadata: if many brokers do not
answer, they may have other addresses now."""

MAX_LISTED = 5
"""Maximum number of ranges that an error lists with their problems."""


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
    with pooled_cluster(task.wire, task.cluster_id) as cluster:
        yield from TaskReader(task, cluster).batches()


@dataclass(frozen=True, slots=True)
class InFlightFetch:
    """A fetch without a response yet. ``offsets`` and ``sizes`` are what it asks for at each of ``positions``."""

    broker: int
    connection: Connection
    positions: Sequence[FetchPosition]
    offsets: Sequence[int]
    sizes: Sequence[int]
    max_bytes: int
    sent_at: float
    deadline: Deadline

    def advanced(self) -> bool:
        """Whether the response brought any position further."""
        return any(position.offset > offset for position, offset in zip(self.positions, self.offsets, strict=True))


class TaskReader:
    """Reads one task once."""

    def __init__(self, task: FetchTask, cluster: Cluster, clock: Clock = monotonic) -> None:
        self._settings = settings = task.settings
        self._cluster = cluster
        self._clock = clock
        self._decoder = Decoder(task.schema, read_committed=settings.read_committed, check_crcs=settings.check_crcs)
        beyond = min(MIN_FETCH, read_ahead.MAX_BYTES // max(len(task.ranges), 1))
        self._positions = [FetchPosition.at_start(each, settings.partition_max_bytes, beyond) for each in task.ranges]
        self._kept = ReadAheadBuffer(task.query_id)
        self._replicas = PreferredReplicas(task.wire.rack, task.wire.metadata_max_age, clock)
        self._errors = FetchErrorHandler(task, cluster, self._replicas, clock)
        self._selection = BrokerSelection(cluster, self._replicas, self._errors)
        self._in_flight: dict[int, InFlightFetch] = {}
        self._last_progress = clock()

    @property
    def _max_wait(self) -> float:
        """Maximum seconds that a broker waits for records: one that waits longer than the client would look silent."""
        client = min(self._cluster.options.request_timeout, self._settings.poll_timeout)
        return min(self._settings.max_wait, client / 2)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, by offset within each partition. Call it once."""
        if kept := self._take_kept():
            self._send_fetches()
            yield from self._kept_rows(kept)
            self._last_progress = self._clock()
        while not all(position.done for position in self._positions):
            self._send_fetches()
            for broker in self._wait_for_responses():
                fetch = self._in_flight.pop(broker)
                response = self._receive(fetch)
                partitions = self._handle_response(response, fetch) if response else []
                # The next response arrives while this one is decoded.
                self._send_fetches()
                yield from self._rows(partitions, partial(self._handle_damage, fetch))
                if response:
                    fetch.connection.reuse_buffer(response)
                if fetch.advanced():
                    # Not before the rows: the time that Spark needs for them is not a lack of progress.
                    self._last_progress = self._clock()
            self._check_poll_timeout()

    def _take_kept(self) -> list[PartitionRecords]:
        """The records that earlier tasks kept of the ranges; advances the positions."""
        found = [(position, self._kept.take(position.range)) for position in self._positions]
        return [self._advance(position, batches) for position, batches in found if batches]

    def _kept_rows(self, kept: list[PartitionRecords]) -> Iterator[pa.RecordBatch]:
        """The rows of kept records. Those that cannot be decoded are removed, and the task fetches them."""
        try:
            yield from self._rows(kept, lambda position, error: self._kept.remove(position.range, error.happened))
        except RecordsError as error:
            # Rows were returned already. The next attempt of the task fetches.
            for records in kept:
                self._kept.remove(self._position(records).range, error.happened)
            raise

    def _rows(
        self, partitions: list[PartitionRecords], handle_damage: Callable[[FetchPosition, RecordsError], None]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of these partitions, without those that cannot be decoded: their positions move back.

        Raises:
            CorruptRecords, UnsupportedRecords: this shows only behind the first row. Checksums are compared before it,
                so these records have been written so, and another response would be equal.
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
        """The partitions that can be decoded. The others are handled, and their positions move back."""
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
        """Drops the connection that damaged records came from, and lets the position fetch them again."""
        self._kept.remove(position.range, error.happened)
        fetch.connection.close()
        later = self._in_flight.get(fetch.broker)
        if later is not None and later.connection is fetch.connection:
            del self._in_flight[fetch.broker]
        self._errors.handle_damage(position, error)

    def _send_fetches(self) -> None:
        """Sends a fetch to every broker that has due positions and no fetch in flight."""
        by_broker: dict[int, list[FetchPosition]] = defaultdict(list)
        for position, broker in self._selection.brokers(self._due()):
            by_broker[broker].append(position)
        connect_by = Deadline.after(CONNECT_TIME, self._clock)
        idle = [broker for broker in by_broker if broker not in self._in_flight]
        for broker in sorted(idle, key=self._preference):
            if throttled := self._cluster.throttle_remaining(broker, PURPOSE):
                self._wait_for_throttling(broker, by_broker[broker], throttled)
            else:
                self._send(broker, by_broker[broker], connect_by)

    def _due(self) -> list[FetchPosition]:
        """The positions to fetch now: those without a delay, and not in a fetch in flight."""
        now = self._clock()
        in_flight = {id(position) for fetch in self._in_flight.values() for position in fetch.positions}
        return [p for p in self._positions if not p.done and p.next_fetch_at <= now and id(p) not in in_flight]

    def _wait_for_throttling(self, broker: int, positions: list[FetchPosition], seconds: float) -> None:
        """Delays the fetches of one broker. The task still reads from the others."""
        for position in positions:
            position.next_fetch_at = self._clock() + seconds
            position.last_problem = f"broker {broker} throttles this client"

    def _preference(self, broker: int) -> tuple[bool, int]:
        """Sorts connected brokers first, and last those whose connections have failed: the others need not wait."""
        return not self._cluster.is_connected(broker, PURPOSE), self._cluster.failures(broker)

    def _send(self, broker: int, positions: list[FetchPosition], connect_by: Deadline) -> None:
        if connect_by.expired() and not self._cluster.is_connected(broker, PURPOSE):
            self._errors.back_off(positions, f"other brokers did not answer, and broker {broker} was not tried")
            return
        deadline = self._errors.deadline()
        max_bytes = max(self._settings.max_bytes, *(position.partition_max_bytes for position in positions))
        request = build_request(
            [FetchPartition(p.tp, p.topic_id, p.offset, p.partition_max_bytes, p.leader_epoch) for p in positions],
            max_wait=self._max_wait,
            max_bytes=max_bytes,
            read_committed=self._settings.read_committed,
            min_bytes=self._settings.min_bytes,
            rack=self._replicas.rack({position.tp for position in positions}),
        )
        try:
            patience = deadline.at_most(self._cluster.patience(broker))
            connection = self._cluster.connection(broker, patience, PURPOSE)
            connection.send(request, deadline)
        except RetriableError as error:
            self._errors.back_off(positions, error.happened)
            return
        offsets = [position.offset for position in positions]
        sizes = [position.partition_max_bytes for position in positions]
        sent_at = self._clock()
        self._in_flight[broker] = InFlightFetch(
            broker, connection, positions, offsets, sizes, max_bytes, sent_at, deadline
        )

    def _wait_for_responses(self) -> list[int]:
        """The brokers whose response has begun to arrive; waits for the first, and gives up on overdue ones.

        The wait also ends when the backoff of a position does.
        """
        now = self._clock()
        left = self._stuck_at - now
        delays = [each.next_fetch_at - now for each in self._positions if each.next_fetch_at > now and not each.done]
        if not self._in_flight:
            time.sleep(max(0.0, min(*delays, left)) if delays else 0.0)
            return []
        request_timeouts = [fetch.deadline.remaining() for fetch in self._in_flight.values()]
        broker_of = {fetch.connection.fileno(): broker for broker, fetch in self._in_flight.items()}
        readable = poll_readable(broker_of, min(*delays, *request_timeouts, left))
        ready = [broker_of[descriptor] for descriptor in readable]
        self._give_up_overdue(ready)
        return ready

    def _give_up_overdue(self, ready: Sequence[int]) -> None:
        """Closes the connections of brokers that did not answer in time; ``ready`` have."""
        overdue = [broker for broker, fetch in self._in_flight.items() if fetch.deadline.expired()]
        for broker in set(overdue).difference(ready):
            fetch = self._in_flight.pop(broker)
            fetch.connection.close()
            timeout = self._cluster.options.request_timeout
            self._errors.back_off(fetch.positions, f"broker {fetch.connection} did not answer within {timeout:.1f} s")

    def _receive(self, fetch: InFlightFetch) -> Response | None:
        try:
            return fetch.connection.receive_raw(self._errors.deadline())
        except RetriableError as error:
            self._errors.back_off(fetch.positions, error.happened)
            return None

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
        answers = [self._handle_partition(*each, fetch, unused_bytes) for each in positions]
        records = [each for each in answers if each is not None]
        if not records:
            self._wait_for_progress(fetch)
        return records

    def _requested(
        self, partitions: Sequence[PartitionData], fetch: InFlightFetch, *, by_id: bool
    ) -> list[tuple[FetchPosition, PartitionData]]:
        """The position of each partition in a response, without those that moved since the fetch was sent."""
        asked = zip(fetch.positions, fetch.offsets, strict=True)
        requested = {(p.topic_id if by_id else p.tp.topic, p.tp.partition): (p, offset) for p, offset in asked}
        found = []
        for data in partitions:
            key = data.topic, data.partition
            if key not in requested:
                tp = f"partition {data.partition} of topic {data.topic}"
                raise ProtocolError(f"A broker answered a fetch with {tp}, which was not requested.")
            position, offset = requested.pop(key)
            if position.offset == offset:
                found.append((position, data))
        for position, _ in requested.values():
            position.last_problem = f"the response of broker {fetch.broker} lacks the partition"
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
        """Delays the next fetch of positions that a response without records brought no further.

        A broker waits for records up to the maximum wait, which is part of the delay: a fetch after that wait is sent
        at once, as is one for more bytes or to another broker. An error has its own backoff.
        """
        min_pause = self._cluster.options.retry_backoff
        max_pause = max(self._max_wait, min_pause)
        for position, offset, size in zip(fetch.positions, fetch.offsets, fetch.sizes, strict=True):
            backs_off = position.next_fetch_at > self._clock()
            asks_for_more = position.partition_max_bytes > size
            asks_another = self._replicas.broker(position.tp, fetch.broker) != fetch.broker
            if position.offset == offset and not (backs_off or asks_for_more or asks_another):
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
        behind_gap = position.offset < batches.base_offset(0)
        has_next = (batches.next_offset or 0) < max(data.high_watermark, position.range.end)
        if lone and behind_gap and has_next and position.partition_max_bytes < position.max_bytes:
            # A gap of compaction, or a wrong base offset: the next record batch tells, if it fits in a response.
            self._request_more(position)
            return None
        position.sizes.observe(batches)
        if not data.aborted:
            # The list of aborted transactions belongs to this response alone.
            self._kept.keep(position.range, position.leader_epoch, batches)
        return self._advance(position, batches, data.aborted)

    def _request_more(self, position: FetchPosition) -> None:
        position.request_more(min(READ_AHEAD * position.partition_max_bytes, position.max_bytes))

    def _advance(
        self, position: FetchPosition, batches: RecordBatches, aborted: Sequence[tuple[int, int]] = ()
    ) -> PartitionRecords:
        """Advances by the headers of the record batches: markers and gaps may follow the last visible record."""
        records = PartitionRecords(batches, position.offset, position.range.end, aborted)
        position.advance(batches.next_offset or position.offset)
        return records

    def _handle_incomplete(self, position: FetchPosition, batches: RecordBatches, unused_bytes: int) -> None:
        """Requests more bytes, because the first record batch did not fit in the response.

        Raises:
            CorruptRecords: there was room for it, or no response has room for it: its length is wrong.
        """
        received, size = len(batches.records), batches.incomplete_batch_size or 0
        had_room = 0 < size <= min(position.partition_max_bytes, received + unused_bytes)
        if had_room or size > MAX_REQUEST_BYTES:
            limit = f", and a fetch requests at most {MAX_REQUEST_BYTES}" if size > MAX_REQUEST_BYTES else ""
            raise batches.location(0).corrupt(f"its header says {size} bytes, but the broker sent fewer{limit}")
        position.request_more(size)
        self._errors.back_off([position], f"the response has {received} bytes, less than one record batch")

    def _handle_no_records(self, position: FetchPosition, data: PartitionData, unused_bytes: int) -> None:
        """Notes the reason, and requests more bytes if the first record batch may not have fitted in the response."""
        if data.high_watermark <= position.offset:
            self._errors.handle_early_end(position, data.high_watermark)
            return
        # A quota, an open transaction, other partitions that filled the response, or a large record batch: the broker
        # sends it only if it comes first in a response.
        ends = f"last stable offset {data.last_stable_offset}, end offset {data.high_watermark}"
        position.note_no_records(f"the broker sent no records; {ends}")
        if position.partition_max_bytes <= min(unused_bytes, position.max_bytes // 2):
            self._request_more(position)

    @property
    def _stuck_at(self) -> float:
        """When the task fails without further progress, in seconds of the clock."""
        return self._last_progress + self._settings.poll_timeout

    def _check_poll_timeout(self) -> None:
        # The same comparison as for the wait: with any other, rounding could leave no time to wait and none passed.
        now = self._clock()
        if now < self._stuck_at:
            return
        stuck = now - self._last_progress
        self._decide_pending()
        pending = [
            f"{each.range} at offset {each.offset} ({each.last_problem})" for each in self._positions if not each.done
        ]
        if pending:
            raise DeadlineExceeded(
                f"A task fetched no records for {stuck:.1f} s: {some(pending, most=MAX_LISTED)}.",
                "Check these brokers and partitions. If they are only slow, raise kafkaConsumer.pollTimeoutMs.",
            )

    def _decide_pending(self) -> None:
        """Decides on lost records now: a short poll timeout ends before the attempts that would confirm a loss."""
        deadline = self._errors.deadline()
        for position in self._positions:
            if not position.done and not deadline.expired():
                self._errors.decide(position)
