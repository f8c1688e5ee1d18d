"""Handles the errors of fetched partitions: retries after a backoff, returns from a preferred read replica (KIP-392)
to the leader, skips lost offsets, or fails the task.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    CorruptRecords,
    RecordsError,
    RetriableError,
    TopicError,
    UnsupportedRecords,
    describe_error_code,
    raise_or_warn,
)
from spark_group_source.fetch.messages import FetchErrorAction, fetch_error_action
from spark_group_source.fetch.position import FetchPosition
from spark_group_source.fetch.preferred_replicas import PreferredReplicas
from spark_group_source.fetch.task import FetchTask
from spark_group_source.grace import Permission
from spark_group_source.offsets import EARLIEST, LATEST, may_be_same
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leader_epochs import EpochEndOffset
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.offset_lookup import ListedOffsets, list_offsets
from spark_group_source.wire.stale_metadata import unknown_to_all

log = logging.getLogger(__name__)

GRANT_READ = "Grant the principal READ on the topic."

MAX_ATTEMPTS = 5
"""After how many attempts in a row the task believes that a topic was deleted, or that a log is damaged or ends early.
Until then, a leader may only lag behind. If the poll timeout ends earlier, fewer attempts are enough. Also the maximum
number of responses from one offset that are damaged, each in another way."""
MIN_DAMAGED = 2
"""How many responses must have the same damage before a task fails: a single response may be damaged in transit."""


class FetchErrorHandler:
    """Handles the errors of one task's positions, by the table in :mod:`spark_group_source.fetch.messages`."""

    def __init__(self, task: FetchTask, cluster: Cluster, replicas: PreferredReplicas, clock: Clock) -> None:
        self._task = task
        self._cluster = cluster
        self._replicas = replicas
        self._clock = clock
        self._permissions: dict[str, Permission] = {}

    def deadline(self) -> Deadline:
        """The deadline of a request that starts now."""
        return Deadline.after(self._cluster.options.request_timeout, self._clock)

    def handle_error(self, position: FetchPosition, error_code: int) -> None:
        """Handles an error code from a broker.

        Raises:
            DataLoss: records of the range are lost, and ``fail_on_data_loss`` is set.
            TopicError: a retry cannot help.
            CorruptRecords: the broker reports a damaged log at every attempt.
        """
        if self._replicas.return_to_leader(position.tp, describe_error_code(error_code)):
            return
        action = fetch_error_action(error_code)
        confirmed = position.count_attempt(action, error_code) > MAX_ATTEMPTS
        if error_code == TOPIC_AUTHORIZATION_FAILED:
            self._handle_denied(position, f"Cannot fetch {_problem(position, error_code)}.")
            return
        if action is FetchErrorAction.FAIL:
            raise TopicError(f"Cannot fetch {_problem(position, error_code)}.", error_code=error_code)
        if action is FetchErrorAction.CHECK_LOG_RANGE:
            self._check_log_range(position)
        elif confirmed and action in (FetchErrorAction.CONFIRM_CORRUPT, FetchErrorAction.CONFIRM_TOPIC_DELETED):
            self.decide(position)
        else:
            self.back_off([position], describe_error_code(error_code))

    def decide(self, position: FetchPosition) -> None:
        """Decides whether the last problem of a position is final, and then skips the lost offsets.

        Otherwise the position backs off. Does nothing if the last problem needs no confirmation.

        Raises:
            DataLoss: records of the range are lost, and ``fail_on_data_loss`` is set.
            CorruptRecords: the broker reports a damaged log.
        """
        if position.last_action is FetchErrorAction.CONFIRM_CORRUPT:
            raise CorruptRecords(
                f"The broker cannot read {_problem(position, position.last_error)}.",
                "Check the partition's log on its leader.",
            )
        if position.last_action is FetchErrorAction.CONFIRM_TOPIC_DELETED:
            self._confirm_deletion(position)
        elif position.last_action is FetchErrorAction.CONFIRM_TRUNCATED:
            self._confirm_early_end(position)

    def _confirm_deletion(self, position: FetchPosition) -> None:
        reason = "the topic does not exist"
        if position.topic_id:
            reason = f"the topic with id {position.topic_id} was deleted"
        error = describe_error_code(position.last_error)
        ids = {position.tp.topic: position.topic_id}
        if unknown_to_all(self._cluster, [position.tp], self.deadline(), ids):
            self._skip_lost(position, position.range.end, f"{reason} ({error})")
        else:
            self.back_off([position], f"{error}, and not all brokers confirm that {reason}")

    def _handle_denied(self, position: FetchPosition, happened: str) -> None:
        """Retries for a while: the broker denies this client the topic, but the driver was allowed to read it.

        Raises:
            TopicError: brokers have denied the topic for too long.
        """
        topic = position.tp.topic
        if topic not in self._permissions:
            self._permissions[topic] = Permission(f"READ on topic '{topic}'", clock=self._clock)
            self._permissions[topic].record_granted()
        error = TopicError(happened, GRANT_READ, error_code=TOPIC_AUTHORIZATION_FAILED, topics=[topic])
        self._permissions[topic].record_denied(error)
        self.back_off([position], f"{describe_error_code(TOPIC_AUTHORIZATION_FAILED)}. {GRANT_READ}")

    def handle_denied_lookup(self, positions: Iterable[FetchPosition], error: TopicError) -> None:
        """Handles the error of a lookup about these positions: the others wait while a broker denies one topic.

        Raises:
            TopicError: the error is not about a permission, or brokers have denied the topic for too long.
        """
        if not error.unauthorized_topics:
            raise error
        for position in positions:
            if position.tp.topic in error.unauthorized_topics:
                self._handle_denied(position, error.happened)
            else:
                self.back_off([position], error.happened)

    def handle_early_end(self, position: FetchPosition, high_watermark: int) -> None:
        """Handles a log that ends before the end of the range.

        Every range was below the high watermark when it was planned. Since then, an unclean election has truncated the
        log, or an older log was restored. The task believes this after several such responses in a row and a
        ListOffsets response, which a leader refuses while its high watermark may lag (KIP-207). While a transaction is
        open, the task waits.

        Raises:
            DataLoss: the log was truncated, and ``fail_on_data_loss`` is set.
        """
        position.last_problem = f"the log ends at {high_watermark}"
        if position.count_attempt(FetchErrorAction.CONFIRM_TRUNCATED) > MAX_ATTEMPTS:
            self._confirm_early_end(position)
        else:
            self.back_off([position], position.last_problem)

    def _confirm_early_end(self, position: FetchPosition) -> None:
        offsets = self._list_offsets(position, LATEST)
        if offsets is None:
            return
        (latest,) = offsets
        if latest <= position.offset:
            self._skip_lost(position, position.range.end, f"the log ends at {latest}")
        else:
            self.back_off([position], position.last_problem)

    def handle_damage(self, position: FetchPosition, error: RecordsError) -> None:
        """Fetches damaged records again: the damage may be in the response alone, or in a follower's copy of the log.

        Raises:
            CorruptRecords, UnsupportedRecords: a second response from this offset has the same damage, or too many
                responses from this offset are damaged.
        """
        same, damaged = position.note_damage(error.happened)
        if same < MIN_DAMAGED and damaged <= MAX_ATTEMPTS:
            log.warning(
                "fetch: fetching the records again, because this response may have been damaged in transit: %s",
                error.happened,
            )
            self.back_off([position], error.happened)
            return
        if isinstance(error, UnsupportedRecords):
            raise error
        seen = f"{damaged} responses from this offset were damaged"
        if same > 1:
            seen = f"{same} responses had this damage"
        raise CorruptRecords(f"{error.happened} {seen}.", error.action) from error

    def handle_earlier_records(self, position: FetchPosition) -> None:
        """Handles a response that has only record batches that end before the position.

        Raises:
            CorruptRecords: the broker sends only such record batches, response after response.
        """
        if position.count_attempt(FetchErrorAction.CONFIRM_EARLIER) > MAX_ATTEMPTS:
            raise CorruptRecords(
                f"The broker answers a fetch of {position.tp} from offset {position.offset} only with record batches"
                " that end before it.",
                "Compare the log with those of the other replicas (kafka-dump-log.sh --deep-iteration).",
            )
        self.back_off([position], "the response has only earlier record batches")

    def handle_truncation(self, position: FetchPosition, epoch_end: EpochEndOffset) -> None:
        """Ends the range where the log was truncated. The driver rewinds to that offset, and plans the records that the
        log has now.

        Raises:
            DataLoss: ``fail_on_data_loss`` is set.
        """
        start = max(epoch_end.end_offset, position.offset)
        reason = (
            f"the log was truncated at offset {epoch_end.end_offset} and written again. The range was planned under"
            f" leader epoch {position.verified_epoch}, and the leader now has epoch {epoch_end.leader_epoch}"
        )
        self._report_loss(position, start, position.range.end, reason)
        position.end_range_at(epoch_end.end_offset)

    def back_off(self, positions: Iterable[FetchPosition], reason: str) -> None:
        """Retries these positions after a backoff, with new metadata."""
        wire = self._cluster.options
        for position in positions:
            self._replicas.return_to_leader(position.tp, reason)
            position.back_off(reason, self._clock(), wire.retry_backoff, wire.retry_backoff_max)
            log.info(
                "fetch: %s at offset %d: %s; retrying in %.1f s", position.tp, position.offset, reason, position.backoff
            )

    def _check_log_range(self, position: FetchPosition) -> None:
        """Handles an offset outside the log: skips to the part of the range that the log still has."""
        offsets = self._list_offsets(position, EARLIEST, LATEST)
        if offsets is None:
            return
        earliest, latest = offsets
        if earliest <= position.offset <= latest:
            self.back_off([position], f"the broker rejected this offset, but the log holds [{earliest}, {latest})")
            return
        end = position.range.end
        if position.offset < earliest:
            end = min(earliest, end)  # the records after the start of the log are left
        self._skip_lost(position, end, f"the log holds [{earliest}, {latest})")

    def _list_offsets(self, position: FetchPosition, *timestamps: int) -> list[int] | None:
        """The offset at each timestamp. ``None`` if an offset is unknown: then the position already backs off."""
        tp = position.tp
        found: list[ListedOffsets] = []
        try:
            for at in timestamps:
                deadline = self.deadline()
                found.append(
                    list_offsets(self._cluster, {tp: at}, read_committed=False, deadline=deadline, partial=True)
                )
        except RetriableError as error:
            self.back_off([position], error.happened)
            return None
        except TopicError as error:
            self.handle_denied_lookup([position], error)
            return None
        for listed in found:
            if tp not in listed.offsets:
                self.handle_error(position, UNKNOWN_TOPIC_ID)
                return None
        return [listed.offsets[tp] for listed in found]

    def _skip_lost(self, position: FetchPosition, end: int, reason: str) -> None:
        """Fails because the offsets before ``end`` are lost, or warns and continues after them."""
        self._report_loss(position, position.offset, end, reason)
        position.advance(end)

    def _report_loss(self, position: FetchPosition, start: int, end: int, reason: str) -> None:
        raise_or_warn(
            log,
            self._task.settings.fail_on_data_loss,
            f"Offsets [{start}, {end}) of {position.tp}, in the range {position.range}, are lost: {reason}",
            "Retention deleted records, the log was truncated, or the topic was recreated. To continue without these"
            " records, set failOnDataLoss to false.",
            "The task skips these offsets",
        )


def _problem(position: FetchPosition, error_code: int) -> str:
    return f"{position.tp} at offset {position.offset}: {describe_error_code(error_code)}"


def metadata_error(position: FetchPosition, topic: Topic | None) -> int:
    """The error code of the topic in the metadata, 0 for none; a topic with another id counts as unknown."""
    if topic is None or topic.error == UNKNOWN_TOPIC_OR_PARTITION:
        return UNKNOWN_TOPIC_ID
    if topic.error:
        return topic.error
    if not may_be_same(position.topic_id, topic.id):
        return UNKNOWN_TOPIC_ID
    return 0
