"""A task's ranges to Arrow record batches, with the next fetch in flight while the last is decoded."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import BrokerError, BrokerUnavailable, DeadlineExceeded, ProtocolError
from spark_group_source.fetch import pool, requests
from spark_group_source.fetch.cursor import Cursor
from spark_group_source.fetch.recovery import Recovery
from spark_group_source.fetch.requests import Fetched, Wanted
from spark_group_source.fetch.task import FetchTask
from spark_group_source.listing import some
from spark_group_source.records.decode import Decoder
from spark_group_source.records.record_batches import PartitionRecords, find_record_batches
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.response import Response
from spark_group_source.wire.waiting import poll_readable

log = logging.getLogger(__name__)

PURPOSE = "fetch"
TOLD = 5
"""Ranges of which an error tells what is the matter with each."""


def read(task: FetchTask) -> Generator[pa.RecordBatch, None, None]:
    """The rows of a task's ranges, as Arrow record batches with the task's columns.

    Raises:
        DataLoss: records of a range are gone from the log, and ``fail_on_data_loss`` is set.
        TopicError: a topic may not be read.
        DeadlineExceeded: no progress for the task's patience.
        RecordsError: records are damaged, or in a format that is not read.
    """
    with pool.cluster(task.wire) as cluster:
        yield from Reading(task, cluster).batches()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A fetch on its way: what it is to bring, and until when."""

    connection: Connection
    cursors: Sequence[Cursor]
    deadline: Deadline


class Reading:
    """One reading of one task."""

    def __init__(self, task: FetchTask, cluster: Cluster, clock: Clock = monotonic) -> None:
        self._task = task
        self._cluster = cluster
        self._clock = clock
        self._decoder = Decoder(task.schema, read_committed=task.read_committed, check_crcs=task.check_crcs)
        self._cursors = [Cursor.at_start(each, task.most_bytes) for each in task.ranges]
        self._recovery = Recovery(task, cluster, clock)
        self._asked: dict[int, _Asked] = {}
        self._moved_at = clock()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of the offsets within each partition. To be called once."""
        while not all(cursor.done for cursor in self._cursors):
            self._ask()
            for broker in self._answered():
                asked = self._asked.pop(broker)
                payload = self._receive(asked)
                slices = self._take(payload, asked.cursors) if payload else []
                # The next answer is on its way while this one is decoded.
                self._ask()
                yield from self._decoder.decode(slices)
                if payload:
                    asked.connection.reuse_buffer(payload)
                if slices:
                    # Not before: whoever takes the rows may take his time, and that is no lack of progress.
                    self._moved_at = self._clock()
            self._check_patience()

    def _ask(self) -> None:
        """Sends a fetch to every broker that has something to read and was not asked yet."""
        now = self._clock()
        in_flight = {id(cursor) for asked in self._asked.values() for cursor in asked.cursors}
        due = [each for each in self._cursors if not each.done and each.due <= now and id(each) not in in_flight]
        by_broker: dict[int, list[Cursor]] = defaultdict(list)
        for cursor, broker in self._recovery.brokers(due):
            by_broker[broker].append(cursor)
        for broker, cursors in by_broker.items():
            if broker in self._asked:
                continue
            if throttled := self._cluster.throttle_remaining(broker, PURPOSE):
                # The others are read meanwhile.
                for each in cursors:
                    each.due, each.trouble = now + throttled, f"broker {broker} throttles this client"
                continue
            self._send(broker, cursors)

    def _send(self, broker: int, cursors: list[Cursor]) -> None:
        deadline = Deadline.after(self._cluster.options.request_timeout, self._clock)
        request = requests.build(
            [
                Wanted(each.topic_id, each.tp.partition, each.position, each.max_bytes, each.leader_epoch)
                for each in cursors
            ],
            max_wait=self._task.max_wait,
            max_bytes=max(self._task.answer_bytes, *(each.max_bytes for each in cursors)),
            read_committed=self._task.read_committed,
            min_bytes=self._task.min_bytes,
            rack=self._recovery.replicas.rack({each.tp for each in cursors}),
        )
        try:
            connection = self._cluster.connection(broker, deadline, PURPOSE)
            connection.send(request, deadline)
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self._recovery.hold(cursors, error.happened)
            return
        self._asked[broker] = _Asked(connection, cursors, deadline)

    def _answered(self) -> list[int]:
        """Brokers whose answer has begun to arrive, waiting for the first; overdue ones are given up.

        The wait ends as well when a range that was held back after an error is due.
        """
        now = self._clock()
        held = [each.due - now for each in self._cursors if each.due > now and not each.done]
        left = self._moved_at + self._task.patience - now
        if not self._asked:
            time.sleep(max(0.0, min(*held, left)) if held else 0.0)
            return []
        overdue_in = [asked.deadline.remaining() for asked in self._asked.values()]
        wait = min(*held, *overdue_in, left)
        broker_of = {asked.connection.fileno(): broker for broker, asked in self._asked.items()}
        ready = [broker_of[each] for each in poll_readable(broker_of, wait)]
        overdue = {each: self._asked[each] for each in self._asked if self._asked[each].deadline.expired()}
        for broker in overdue.keys() - set(ready):
            asked = self._asked.pop(broker)
            asked.connection.close()
            patience = self._cluster.options.request_timeout
            self._recovery.hold(asked.cursors, f"broker {asked.connection} did not answer within {patience:.1f} s")
        return ready

    def _receive(self, asked: _Asked) -> Response | None:
        deadline = Deadline.after(self._cluster.options.request_timeout, self._clock)
        try:
            return asked.connection.receive_raw(deadline)
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self._recovery.hold(asked.cursors, error.happened)
            return None

    def _take(self, payload: Response, cursors: Sequence[Cursor]) -> list[PartitionRecords]:
        """What one answer holds of the ranges, with the cursors moved on."""
        asked_for = {(cursor.topic_id, cursor.tp.partition): cursor for cursor in cursors}
        try:
            answer = requests.interpret(payload.body)
        except BrokerError as error:
            for cursor in cursors:
                self._recovery.answer(cursor, error.errno)
            return []
        slices = []
        for each in answer:
            found = asked_for.get((each.topic_id, each.partition))
            if found is None:
                raise ProtocolError(f"A fetch was answered with partition {each.partition} of topic {each.topic_id}.")
            if each.error:
                self._recovery.answer(found, each.error)
            elif each.preferred_replica >= 0:
                self._recovery.replicas.follow(found.tp, each.preferred_replica)
            else:
                slices += self._advance(found, each)
        return slices

    def _advance(self, cursor: Cursor, fetched: Fetched) -> list[PartitionRecords]:
        """Moves on by the batches' headers: the last visible record says nothing of markers and gaps behind it."""
        framed = find_record_batches(cursor.tp, fetched.records)
        after = framed.next_offset
        if after is None or after <= cursor.position:
            self._explain(cursor, fetched, framed.incomplete_batch_size or 0)
            return []
        found = PartitionRecords(framed, cursor.position, cursor.range.end, fetched.aborted)
        cursor.advance(after, self._task.most_bytes)
        return [found]

    def _explain(self, cursor: Cursor, fetched: Fetched, wanted_bytes: int) -> None:
        """Nothing new has come: notes why, and asks for more where it was too little."""
        if fetched.records:
            cursor.widen(wanted_bytes)
            self._recovery.hold([cursor], f"{len(fetched.records)} bytes came, which is less than one batch")
        elif fetched.high_watermark <= cursor.position:
            self._recovery.ends_early(cursor, fetched.high_watermark)
        else:
            # A quota, a transaction still open, or the other partitions have filled the answer.
            cursor.pause = 0.0
            cursor.trouble = f"nothing came; stable to {fetched.last_stable}, log ends at {fetched.high_watermark}"

    def _check_patience(self) -> None:
        stuck = self._clock() - self._moved_at
        if stuck <= self._task.patience:
            return
        waiting = [f"{each.range} at {each.position} ({each.trouble})" for each in self._cursors if not each.done]
        if waiting:
            raise DeadlineExceeded(f"Nothing could be fetched for {stuck:.0f} s of {some(waiting, most=TOLD)}.")
