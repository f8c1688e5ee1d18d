"""A task's ranges to Arrow record batches, with the next fetch in flight while the last is decoded."""

from __future__ import annotations

import logging
import select
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import BrokerUnavailable, CorruptRecords, DataLoss, DeadlineExceeded, TopicError
from spark_group_source.fetch import pool, requests
from spark_group_source.fetch.errors import Remedy, describe, remedy
from spark_group_source.fetch.positions import log_offsets
from spark_group_source.fetch.requests import Fetched, Wanted
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.records.columns import arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.records.frames import Slice, frames
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection, Payload

log = logging.getLogger(__name__)

PURPOSE = "fetch"
FIRST_BYTES = 64 * 1024
"""Least bytes asked of a partition. A small range asks for little first, so that a batch of few records does not fetch
megabytes of what comes after it."""
BYTES_PER_RECORD = 1024
"""Guess for the first fetch of a range; what follows doubles."""
TRIES = 5
"""Times in a row that a partition may answer that its topic is gone or its log is damaged, before it is believed."""

_UNKNOWN_TOPIC = 3
_UNKNOWN_TOPIC_ID = 100


@dataclass
class Cursor:
    """Where the reading of one range stands."""

    range: OffsetRange
    topic_id: str
    position: int
    max_bytes: int
    tries: int = 0

    @property
    def done(self) -> bool:
        """Whether everything of the range was read."""
        return self.position >= self.range.end


def read(task: FetchTask) -> Iterator[pa.RecordBatch]:
    """The rows of a task's ranges, as Arrow record batches with the task's columns.

    Raises:
        DataLoss: records of a range are gone from the log, and ``fail_on_data_loss`` is set.
        TopicError: a topic may not be read.
        DeadlineExceeded: no progress for the task's patience.
        RecordsError: records are damaged, or in a format that is not read.
    """
    with pool.cluster(task.wire) as cluster:
        yield from _Reading(task, cluster).batches()


class _Reading:
    def __init__(self, task: FetchTask, cluster: Cluster, clock: Clock = monotonic) -> None:
        self._task = task
        self._cluster = cluster
        self._clock = clock
        self._decoder = Decoder(
            arrow_schema(task.columns), read_committed=task.read_committed, check_crcs=task.check_crcs
        )
        self._cursors: dict[tuple[str, int], Cursor] = {}
        self._asked: dict[int, Connection] = {}
        self._moved_at = clock()
        self._pause = 0.0
        self._last_trouble = "the brokers sent nothing"

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._open()
        while any(not cursor.done for cursor in self._cursors.values()):
            self._ask()
            for leader in self._answered():
                connection = self._asked.pop(leader)
                payload = self._receive(connection)
                slices = self._take(payload) if payload else []
                # The next answer is on its way while this one is decoded.
                self._ask()
                yield from self._decoder.decode(slices)
                if payload:
                    connection.reuse(payload)
            self._check_patience()

    def _open(self) -> None:
        ids = {each.topic for each in self._task.ranges if not each.topic_id}
        topics = self._cluster.topics(ids, self._deadline()) if ids else {}
        for each in self._task.ranges:
            topic_id = each.topic_id or topics[each.topic].id
            first = min(max(each.size * BYTES_PER_RECORD, FIRST_BYTES), self._task.max_bytes)
            self._cursors[topic_id, each.partition] = Cursor(each, topic_id, each.start, first)

    def _ask(self) -> None:
        """Sends a fetch to every leader that has something to read and was not asked yet."""
        if self._pause:
            time.sleep(self._pause)
        by_leader: dict[int, list[Cursor]] = defaultdict(list)
        open_ones = [cursor for cursor in self._cursors.values() if not cursor.done]
        topics = self._cluster.topics(
            {cursor.range.topic for cursor in open_ones}, self._deadline(), fresh=self._pause > 0
        )
        for cursor in open_ones:
            topic = topics.get(cursor.range.topic)
            if topic is None or topic.error == _UNKNOWN_TOPIC or (topic.id != cursor.topic_id and not topic.error):
                self._remedy(cursor, _UNKNOWN_TOPIC_ID)
                continue
            leader = topic.partitions.get(cursor.range.partition)
            if leader is None:
                self._trouble(f"{cursor.range.tp} has no leader, or does not exist")
            elif leader not in self._asked:
                by_leader[leader].append(cursor)
        for leader, cursors in by_leader.items():
            self._send(leader, cursors)

    def _send(self, leader: int, cursors: list[Cursor]) -> None:
        request = requests.build(
            [Wanted(each.topic_id, each.range.partition, each.position, each.max_bytes) for each in cursors],
            max_wait=self._task.max_wait,
            max_bytes=self._task.max_bytes,
            read_committed=self._task.read_committed,
        )
        try:
            connection = self._cluster.connection(leader, self._deadline(), PURPOSE)
            connection.send(request, self._deadline())
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self._trouble(error.happened)
            return
        self._asked[leader] = connection

    def _answered(self) -> list[int]:
        """Leaders whose answer has begun to arrive, waiting for the first."""
        if not self._asked:
            return []
        connections = {connection.fileno(): leader for leader, connection in self._asked.items()}
        ready, _, _ = select.select(list(connections), [], [], self._deadline().remaining())
        if not ready:
            self._trouble(f"broker {next(iter(self._asked.values()))} did not answer in time")
            for connection in self._asked.values():
                connection.close()
            self._asked.clear()
        return [connections[each] for each in ready]

    def _receive(self, connection: Connection) -> Payload | None:
        try:
            return connection.receive_payload(self._deadline())
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self._trouble(error.happened)
            return None

    def _take(self, payload: Payload) -> list[Slice]:
        """What one answer holds of the ranges, with the cursors moved on."""
        slices = []
        for each in requests.interpret(payload.body):
            cursor = self._cursors[each.topic_id, each.partition]
            if each.error:
                self._remedy(cursor, each.error)
            elif not cursor.done:
                slices += self._advance(cursor, each)
        return slices

    def _advance(self, cursor: Cursor, fetched: Fetched) -> list[Slice]:
        """Moves on by the batches' headers: the last visible record says nothing of markers and gaps behind it."""
        framed = frames(cursor.range.tp, fetched.records)
        after = framed.next_offset
        if after is None or after <= cursor.position:
            # Nothing, or less than one batch: more must be asked for, or it comes later.
            cursor.max_bytes = max(cursor.max_bytes * 2, framed.wanted_bytes or 0)
            if not fetched.records and fetched.high_watermark <= cursor.position:
                self._trouble(f"{cursor.range.tp} ends at {fetched.high_watermark}, before {cursor.range}")
            return []
        found = Slice(framed, cursor.position, cursor.range.end, fetched.aborted)
        cursor.position, cursor.tries = after, 0
        cursor.max_bytes = min(cursor.max_bytes * 2, self._task.max_bytes)
        self._moved_at, self._pause = self._clock(), 0.0
        return [found]

    def _remedy(self, cursor: Cursor, errno: int) -> None:
        what = f"{cursor.range.tp} at offset {cursor.position}: {describe(errno)}"
        match remedy(errno):
            case Remedy.OUT_OF_RANGE:
                self._jump(cursor)
            case Remedy.TOPIC_GONE if cursor.tries >= TRIES:
                self._lost(cursor, cursor.range.end, f"the topic with id {cursor.topic_id} is gone ({describe(errno)})")
            case Remedy.CORRUPT if cursor.tries >= TRIES:
                raise CorruptRecords(f"The broker cannot read {what}.", "Look at the log of its leader.")
            case Remedy.FATAL:
                action = "Grant the principal READ on the topic." if errno == 29 else ""
                raise TopicError(f"Cannot fetch {what}.", action, errno=errno)
            case _:
                cursor.tries += 1
                self._trouble(what)

    def _jump(self, cursor: Cursor) -> None:
        """The wanted offset is not in the log: sees what is left of the range."""
        tp: TopicPartition = cursor.range.tp
        found = {}
        for at in (-2, -1):
            found[at] = log_offsets(self._cluster, {tp: at}, read_committed=False, deadline=self._deadline())[tp].offset
        earliest, latest = found[-2], found[-1]
        if earliest <= cursor.position <= latest:
            self._trouble(f"{tp} refused offset {cursor.position} of [{earliest}, {latest})")
            return
        until = max(earliest, cursor.position) if cursor.position < earliest else cursor.range.end
        self._lost(cursor, min(until, cursor.range.end), f"the log holds [{earliest}, {latest})")

    def _lost(self, cursor: Cursor, until: int, why: str) -> None:
        """Offsets up to ``until`` are gone: fails, or warns and goes on behind them."""
        what = f"Offsets [{cursor.position}, {until}) of {cursor.range.tp} are gone: {why}."
        if self._task.fail_on_data_loss:
            raise DataLoss(
                what,
                "Records were deleted by retention, or the topic was made anew. To go on without them set"
                " failOnDataLoss to false.",
            )
        log.warning("%s They are skipped, as failOnDataLoss is false.", what)
        cursor.position, cursor.tries = until, 0
        self._moved_at = self._clock()

    def _trouble(self, what: str) -> None:
        """Something to be tried again, with fresh metadata after a pause."""
        self._last_trouble = what
        wire = self._cluster.options
        self._pause = min(max(self._pause * 2, wire.retry_backoff), wire.retry_backoff_max)
        log.info("fetch: %s; trying again in %.1f s", what, self._pause)

    def _check_patience(self) -> None:
        stuck = self._clock() - self._moved_at
        if stuck > self._task.patience:
            waiting = ", ".join(
                f"{cursor.range} at {cursor.position}" for cursor in self._cursors.values() if not cursor.done
            )
            raise DeadlineExceeded(f"Nothing could be fetched for {stuck:.0f} s of {waiting}: {self._last_trouble}.")

    def _deadline(self) -> Deadline:
        return Deadline.after(self._cluster.options.request_timeout, self._clock)
