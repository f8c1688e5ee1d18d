"""What is done about a partition that could not be fetched: wait and ask again, skip what is gone, or fail."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from spark_group_source.clock import Clock, Deadline
from spark_group_source.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, describe
from spark_group_source.errors import BrokerUnavailable, CorruptRecords, DataLoss, DeadlineExceeded, TopicError
from spark_group_source.fetch.cursor import Cursor
from spark_group_source.fetch.epochs import UNDEFINED, EpochEnd, epoch_ends
from spark_group_source.fetch.errors import UNKNOWN_TOPIC_ID, Remedy, remedy
from spark_group_source.fetch.positions import list_offsets
from spark_group_source.fetch.replicas import Replicas
from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import EARLIEST, LATEST, UNKNOWN_EPOCH, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic

log = logging.getLogger(__name__)

TRIES = 5
"""Times in a row that brokers may answer that a topic is gone, a log damaged, or at its end too early, before it is
believed: a leader just elected may not know yet."""


class Recovery:
    """Decides for the cursors of one reading, by the table in :mod:`spark_group_source.fetch.errors`."""

    def __init__(self, task: FetchTask, cluster: Cluster, clock: Clock) -> None:
        self._task = task
        self._cluster = cluster
        self._clock = clock
        self.replicas = Replicas(task.rack, task.replica_max_age, clock)

    def brokers(self, cursors: Sequence[Cursor]) -> Iterator[tuple[Cursor, int]]:
        """Each cursor with the broker to fetch from now: its leader, or a follower.

        After an error of any the cluster is asked anew. Those that have no leader are held back.

        Raises:
            DataLoss, TopicError: as :meth:`answer`.
        """
        names = {cursor.tp.topic for cursor in cursors}
        fresh = any(cursor.pause for cursor in cursors)
        try:
            topics = self._cluster.topics(names, self._deadline(), fresh=fresh)
            if not fresh and any(UNKNOWN_EPOCH < _leader_epoch(each, topics) < each.confirmed for each in cursors):
                # These executors last asked before the batch was planned.
                topics = self._cluster.topics(names, self._deadline(), fresh=True)
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self.hold(cursors, error.happened)
            return
        led: list[tuple[Cursor, int]] = []
        for cursor in cursors:
            topic = topics.get(cursor.tp.topic)
            errno = _error(cursor, topic)
            if errno:
                self.answer(cursor, errno)
            elif topic is not None:
                cursor.topic_id = topic.id
                cursor.leader_epoch = _leader_epoch(cursor, topics)
                leader = topic.partitions.get(cursor.tp.partition)
                if leader is None:
                    self.hold([cursor], "it has no leader, or does not exist")
                else:
                    led.append((cursor, leader))
        self._confirm([cursor for cursor, _ in led if cursor.unconfirmed], topics)
        for cursor, leader in led:
            if not cursor.unconfirmed:
                yield cursor, self.replicas.broker(cursor.tp, leader)

    def _confirm(self, cursors: Sequence[Cursor], topics: Mapping[str, Topic]) -> None:
        """Asks leaders that came after these ranges were planned whether their logs still hold them to the end."""
        if not cursors:
            return
        told = epoch_ends(self._cluster, topics, {each.tp: each.confirmed for each in cursors}, self._deadline())
        for cursor in cursors:
            now = told.get(cursor.tp)
            if now is None:
                self.hold([cursor], "its leader does not tell what it has of earlier epochs")
            elif now.end == UNDEFINED:
                self.hold([cursor], f"its leader has epoch {now.leader}, older than epoch {cursor.confirmed} before")
            elif now.end < cursor.range.end:
                self._truncated(cursor, now)
            else:
                cursor.confirmed = now.leader

    def _truncated(self, cursor: Cursor, now: EpochEnd) -> None:
        """What the range ends with was replaced: the driver goes back there, and plans what stands there now."""
        start = max(now.end, cursor.position)
        why = (
            f"the log was truncated at offset {now.end} and written again. The range was planned under leader epoch"
            f" {cursor.confirmed}, and the leader now has epoch {now.leader}"
        )
        self._judge(cursor, start, cursor.range.end, why)
        cursor.end_at(now.end)

    def answer(self, cursor: Cursor, errno: int) -> None:
        """A broker answered for this partition with an error code.

        Raises:
            DataLoss: records of its range are gone from the log, and ``fail_on_data_loss`` is set.
            TopicError: another try cannot help.
            CorruptRecords: the broker says again and again that its log is damaged.
        """
        if self.replicas.leave(cursor.tp, describe(errno)):
            return
        what = f"{cursor.tp} at offset {cursor.position}: {describe(errno)}"
        kind = remedy(errno)
        tries = cursor.count(kind)
        if kind is Remedy.FATAL:
            action = "Grant the principal READ on the topic." if errno == TOPIC_AUTHORIZATION_FAILED else ""
            raise TopicError(f"Cannot fetch {what}.", action, errno=errno)
        if kind is Remedy.OUT_OF_RANGE:
            self._jump(cursor)
        elif kind is Remedy.CORRUPT and tries > TRIES:
            raise CorruptRecords(f"The broker cannot read {what}.", "Look at the log of its leader.")
        elif kind is Remedy.TOPIC_GONE and tries > TRIES:
            named = f"the topic with id {cursor.topic_id} is gone" if cursor.topic_id else "the topic does not exist"
            self._lost(cursor, cursor.range.end, f"{named} ({describe(errno)})")
        else:
            self.hold([cursor], describe(errno))

    def ends_early(self, cursor: Cursor, high_watermark: int) -> None:
        """A broker says that there is nothing at the position, which lies before the end of the range.

        Ranges lie below a high watermark that was told once, so the rest was cut off: by an unclean election, or as the
        log was restored from an older copy. It is believed once leaders have said so several times in a row, and say it
        to ListOffsets too, which they refuse for as long as their high watermark may lag behind (KIP-207). Where a
        transaction that is still open ends what may be read, the log does not end there: that is waited for.

        Raises:
            DataLoss: it was cut, and ``fail_on_data_loss`` is set.
        """
        if cursor.count(Remedy.CUT) > TRIES:
            try:
                latest = self._offset(cursor.tp, LATEST)
            except (BrokerUnavailable, DeadlineExceeded) as error:
                self.hold([cursor], error.happened)
                return
            if latest <= cursor.position:
                self._lost(cursor, cursor.range.end, f"the log ends at {latest}")
                return
        self.hold([cursor], f"the log ends at {high_watermark}")

    def hold(self, cursors: Iterable[Cursor], why: str) -> None:
        """These are tried again after a pause, with leaders asked for anew."""
        wire = self._cluster.options
        for cursor in cursors:
            self.replicas.leave(cursor.tp, why)
            cursor.hold(why, self._clock(), wire.retry_backoff, wire.retry_backoff_max)
            log.info("fetch: %s at %d: %s; trying again in %.1f s", cursor.tp, cursor.position, why, cursor.pause)

    def _jump(self, cursor: Cursor) -> None:
        """The wanted offset is not in the log: sees what is left of the range."""
        try:
            earliest, latest = (self._offset(cursor.tp, at) for at in (EARLIEST, LATEST))
        except (BrokerUnavailable, DeadlineExceeded) as error:
            self.hold([cursor], error.happened)
            return
        if earliest <= cursor.position <= latest:
            self.hold([cursor], f"its offset was refused, and the log holds [{earliest}, {latest})")
            return
        # Behind the end of the log nothing can be left; before its beginning, what comes after that.
        until = earliest if cursor.position < earliest else cursor.range.end
        self._lost(cursor, min(until, cursor.range.end), f"the log holds [{earliest}, {latest})")

    def _offset(self, tp: TopicPartition, at: int) -> int:
        return list_offsets(self._cluster, {tp: at}, read_committed=False, deadline=self._deadline())[tp]

    def _lost(self, cursor: Cursor, until: int, why: str) -> None:
        """Offsets up to ``until`` are gone: fails, or warns and goes on behind them."""
        self._judge(cursor, cursor.position, until, why)
        cursor.advance(until, self._task.most_bytes)

    def _judge(self, cursor: Cursor, start: int, end: int, why: str) -> None:
        what = f"Offsets [{start}, {end}) of {cursor.tp}, of {cursor.range}, are gone: {why}."
        if self._task.fail_on_data_loss:
            raise DataLoss(
                what,
                "Records were deleted by retention, the log was cut, or the topic was made anew. To go on without them"
                " set failOnDataLoss to false.",
            )
        log.warning("%s They are skipped, as failOnDataLoss is false.", what)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._cluster.options.request_timeout, self._clock)


def _leader_epoch(cursor: Cursor, topics: Mapping[str, Topic]) -> int:
    topic = topics.get(cursor.tp.topic)
    return topic.epochs.get(cursor.tp.partition, UNKNOWN_EPOCH) if topic else UNKNOWN_EPOCH


def _error(cursor: Cursor, topic: Topic | None) -> int:
    """What the cluster's metadata says against reading this range, as an error code; 0 where nothing."""
    if topic is None or topic.error == UNKNOWN_TOPIC_OR_PARTITION:
        return UNKNOWN_TOPIC_ID
    if topic.error:
        return topic.error
    return UNKNOWN_TOPIC_ID if cursor.topic_id not in ("", topic.id) else 0
