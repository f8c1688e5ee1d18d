"""Plans a query's batches: which partitions each reads, from where and up to where."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from spark_group_source.clock import Clock
from spark_group_source.errors import BrokerError
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.membership import NO_GENERATION, Membership
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import (
    BatchOffset,
    OffsetRange,
    Offsets,
    Partitions,
    TopicPartition,
    may_be_same,
    new_checkpoint_id,
    topics_of,
    without_topics,
)
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.admission import Admission, BatchLimits
from spark_group_source.query.available_now import AvailableNowTarget
from spark_group_source.query.data_loss import DataLossCheck
from spark_group_source.query.end_offsets import EndOffsets
from spark_group_source.query.epoch_check import EpochCheck
from spark_group_source.query.limits import total_backlog
from spark_group_source.query.offset_tracker import UNDECIDED
from spark_group_source.query.owned_partition import Owned, OwnedPartition
from spark_group_source.query.ownership import AssignedPartitions
from spark_group_source.query.starts.restored_checkpoint import REPEAT
from spark_group_source.query.topic_ids import TopicIds
from spark_group_source.query.truncation import TruncationCheck

log = logging.getLogger(__name__)


class LogReason(Enum):
    """Why a batch is logged even without records to read.

    ``RUN_WAITS`` makes Spark call the source again. Each other reason is a decision that has to be logged, because a
    restart might decide differently. ``minOffsetsPerTrigger`` does not delay such a batch.
    """

    RUN_WAITS = "an AvailableNow run waits for other members"
    NEW_QUERY = "the checkpoint is new"
    NEW_PARTITION = "no batch has logged the position of a partition"
    START_FOUND = "the lookup of a pinned start has succeeded"
    REWIND = "a position lies before the end that was logged"


MAX_TRIES = 3
"""Maximum number of times that one call plans: data loss may move positions each time."""

MAX_WAIT = 30.0
"""Maximum seconds that one call of an AvailableNow run waits for other members."""

IDLE_S = 0.1
"""Maximum seconds that a call waits while ``minBatchInterval`` delays the batch."""


class BatchPlanner:
    """Plans one batch at a time. Only the query's thread may call it."""

    def __init__(
        self,
        options: SourceOptions,
        settings: GroupSettings,
        clients: KafkaClients,
        assigned_partitions: AssignedPartitions,
        member: Member | ManualAssignment,
        clock: Clock,
    ) -> None:
        self._options = options
        self._settings = settings
        self._clients = clients
        self._assigned_partitions = assigned_partitions
        self._tracker = assigned_partitions.tracker
        self._member = member
        self._clock = clock
        self.end_offsets = EndOffsets(clients.cluster, options, clock)
        self._epochs = EpochCheck(clients.cluster, self._tracker, clock)
        self._truncation = TruncationCheck(clients.cluster, clock)
        self._topic_ids = TopicIds(clients.cluster, options.wire.metadata_max_age, clock)
        self._data_loss = DataLossCheck(
            settings.subscription,
            self.end_offsets,
            self._epochs,
            self._truncation,
            self._topic_ids,
            assigned_partitions,
            clients,
            options.fetch.fail_on_data_loss,
        )
        self.admission = Admission(options, clients.cluster, clock)
        self._target: AvailableNowTarget | None = None
        self._planned_start: BatchOffset | None = None
        self._planned_at = float("-inf")

    def restore(self, logged: BatchOffset, deleted_topics: set[str]) -> None:
        """Continues at the ``logged`` offset of the checkpoint.

        Args:
            deleted_topics: topics in that offset that were deleted since.
        """
        self._data_loss.deleted = deleted_topics
        self._topic_ids.restore(logged)

    def prepare_for_available_now(self) -> None:
        """Makes batches end at the current end offsets of the logs. The first plan looks these up."""
        membership = self._member.snapshot
        self._target = AvailableNowTarget(self._clients, self._settings, membership, self._options, self._clock)

    def in_flight_from(self, start: BatchOffset) -> BatchOffset | None:
        """The batch in flight if it begins at ``start``: Spark requests it again, because Spark has not run it yet."""
        if start != self._planned_start:
            return None
        in_flight = self._tracker.in_flight
        if in_flight is not None:
            self.admission.requested_again()
        return in_flight

    def batch_completed(self, end: BatchOffset, *, reported: bool) -> float | None:
        """Notes that Spark has completed the batch that ends at ``end``. Returns the seconds since it was planned.

        Returns ``None`` if the batch in flight ends elsewhere, or none is in flight.

        Args:
            reported: whether Spark has just completed it. If not, the next plan has shown the completion, and Spark may
                have waited for its trigger before. An AvailableNow run never waits.
        """
        if not self._tracker.completed(end):
            return None
        self.admission.completed(may_have_waited=not reported and self._target is None)
        self._planned_start = None
        self.end_offsets.expire()
        return self._clock() - self._planned_at

    def plan(self, start: BatchOffset, limits: BatchLimits) -> BatchOffset:
        """The end of the batch after ``start``, within the limits; ``start`` itself if there is nothing to read."""
        if self._target is not None:
            self._assigned_partitions.committer.wait()  # the group's commits end the run
            return self._plan_to_target(self._target, start, limits)
        me = self._maintain_offsets()
        if self._waits_for_interval():
            return start
        return self._plan(start, limits, me)

    def _plan_to_target(self, target: AvailableNowTarget, start: BatchOffset, limits: BatchLimits) -> BatchOffset:
        """Ends the run when the group has reached the target in all partitions, not only in those that this query owns.

        Until then each call waits, but not for long: another source of the query may have planned a batch for which
        other members wait. A batch without records then makes Spark call the source again.
        """
        wait_until = self._clock() + min(MAX_WAIT, self._settings.revocation_timeout / 2)
        while True:
            me = self._maintain_offsets()
            self._set_target_once(target, frozenset(me.owned))
            target.leave_out(self._assigned_partitions.permissions.left_out)
            # Before planning: a batch beyond the target is no part of the run.
            if target.extended and self._is_reached(target):
                return start
            planned = self._plan(start, limits, me)
            if planned is not start:
                target.batch_planned(planned)
                return planned
            if not target.extended and self._is_reached(target):
                return start
            if self._clock() >= wait_until:
                return self._plan(start, limits, me, reason=LogReason.RUN_WAITS)
            # A log may also end before the target because its topic was recreated.
            truncated = self._truncated_before(target)
            self._data_loss.raise_or_accept_truncated(truncated, target.unreached, "where this run was to end")
            target.lower(truncated)
            target.wait()

    def _set_target_once(self, target: AvailableNowTarget, owned: Partitions) -> None:
        """As :meth:`AvailableNowTarget.set_once`, but waits while a permission is missing that this query had before.

        Without such a topic the run would be incomplete, unless a pattern matches the topic.

        Raises:
            BrokerError: a topic may not be read, and a retry is useless.
        """
        permissions = self._assigned_partitions.permissions
        while True:
            try:
                target.set_once(without_topics(owned, permissions.left_out), self._not_left_out)
            except BrokerError as error:
                self._raise_unless_denied(error)
                target.pause()
            else:
                return

    def _truncated_before(self, target: AvailableNowTarget) -> Offsets:
        """The ends of those logs that end before the target of this run; none if a broker denies the lookup."""
        try:
            return self._truncation.ends_before(self._epochs.confirmed(target.unreached))
        except BrokerError as error:
            self._raise_unless_denied(error)
            return {}

    def _ahead_of_commits(self, target: AvailableNowTarget) -> Offsets:
        """The offsets of this query in partitions whose committed offsets must not end its run."""
        if self._awaits_first_assignment(target):
            return dict.fromkeys(target.partitions, UNDECIDED)
        # The current membership, not that of the plan, because the first assignment may have come since.
        return self._tracker.ahead_of_commits(self._member.snapshot())

    def _awaits_first_assignment(self, target: AvailableNowTarget) -> bool:
        """Whether this query waits for its first assignment, and its options may start partitions below the commits.

        A member without partitions in a stable group does not wait: other members own all partitions.
        """
        if self._tracker.was_assigned or not self._start_may_move_back():
            return False
        if self._member.snapshot().generation == NO_GENERATION:
            return True
        # This member may never get a partition.
        return not target.group_is_stable()

    def _is_reached(self, target: AvailableNowTarget) -> bool:
        """As :meth:`AvailableNowTarget.is_reached`; also False if a broker denied a lookup. The next lookup leaves
        those topics out."""
        try:
            return target.is_reached(self._ahead_of_commits(target))
        except BrokerError as error:
            self._raise_unless_denied(error)
            return False

    def _raise_unless_denied(self, error: BrokerError) -> None:
        """Notes the topics that this client may not read according to the error.

        Raises:
            BrokerError: it is another error, or a retry is useless.
        """
        if not error.unauthorized_topics:
            raise error
        self._assigned_partitions.permissions.record_denied(error.unauthorized_topics)

    def _not_left_out(self, partitions: Partitions) -> Partitions:
        """These partitions, without partitions of topics that the query leaves out."""
        return self._assigned_partitions.permissions.without_left_out(partitions, self._clients.cluster)

    def _start_may_move_back(self) -> bool:
        """Whether the options may start a partition below the group's commit."""
        if self._tracker.pinned_starts().reset_first_assignment:
            return True
        if self._options.restored_checkpoint == REPEAT:
            return True
        return self._options.starting_offsets_callback is not None

    def _maintain_offsets(self) -> Membership:
        """Does what has become due for the offsets of owned partitions. Returns the current membership."""
        me = self._member.snapshot()
        self._assigned_partitions.maintain_offsets(me, clients=self._clients)
        return me

    def _plan(
        self, start: BatchOffset, limits: BatchLimits, me: Membership, reason: LogReason | None = None
    ) -> BatchOffset:
        """Retries planning when data loss moves positions: PySpark 4.1 calls latestOffset() once per run with
        ``availableNow`` or ``once``. With a ``reason`` the batch differs from ``start`` even without records.
        """
        for _ in range(MAX_TRIES):
            planned = self._plan_unless_denied(start, limits, me, reason)
            if planned is not None:
                return planned
            me = self._member.snapshot()
        return start

    def _plan_unless_denied(
        self, start: BatchOffset, limits: BatchLimits, me: Membership, reason: LogReason | None
    ) -> BatchOffset | None:
        """As :meth:`_plan_unless_moved`; also ``None`` if a broker denied a lookup. The next try leaves those topics
        out."""
        try:
            return self._plan_unless_moved(start, limits, me, reason)
        except BrokerError as error:
            self._raise_unless_denied(error)
            return None

    def _permitted(self, owned: Owned) -> dict[TopicPartition, OwnedPartition]:
        """These partitions, without partitions of topics that this client may not read now."""
        permitted = self._assigned_partitions.permissions.without_denied(owned, self._clients.cluster)
        return {tp: partition for tp, partition in owned.items() if tp in permitted}

    def _plan_unless_moved(
        self, start: BatchOffset, limits: BatchLimits, me: Membership, reason: LogReason | None
    ) -> BatchOffset | None:
        """As :meth:`_plan`; ``None`` if data loss has moved positions."""
        owned = self._permitted(self._tracker.positions(me))
        # Invalidated after the positions are taken: positions of a recreated topic must not be planned with its former
        # id.
        self._clients.cluster.invalidate_topics(self._tracker.take_recreated())
        ends = self._ends_without_loss(start, owned, me)
        self._tracker.note_deleted(self.end_offsets.deleted)
        if ends is None:
            return None
        if self._target is not None:
            ends = self._target.limit(ends)
        topic_ids = self._topic_ids.ids_of(topics_of(owned))
        readable = self._in_these_topics(owned, topic_ids)
        if reason is None:
            reason = self._reason_to_log(start, readable, topic_ids)
        moving = self._ends_of_batch(readable, ends, limits, reason)
        if not moving and reason is None:
            return start
        # All lookups are done, so the partitions that the member allows here are planned at once.
        allowed = self._member.plan(frozenset(moving), me)
        moving = {tp: moving[tp] for tp in allowed}
        if not moving and reason is None:
            return start
        if reason is not None:
            log.debug("group %s: logging a batch, because %s", self._settings.group_id, reason.value)
        return self._record(start, readable, moving, topic_ids)

    def _ends_without_loss(self, start: BatchOffset, owned: Owned, me: Membership) -> Offsets | None:
        """Looks up the ends of the logs, and checks for data loss; ``None`` if that has moved a position.

        Args:
            start: the end of the last completed batch.
            owned: the permitted partitions, with their positions.
            me: the membership to which ``owned`` belongs.

        Raises:
            DataLoss: records are lost, and ``failOnDataLoss`` is true.
        """
        topics = topics_of(owned)
        if self._data_loss.raise_or_restart_recreated(topics, me):
            return None
        self._data_loss.raise_or_forget_deleted(start, topics, me)
        ends = self.end_offsets.look_up(owned)
        truncated = self._data_loss.find_truncated(owned, ends)
        # These lookups may have refreshed the metadata of the topics.
        if self._data_loss.raise_or_restart_recreated(topics, me):
            return None
        if truncated.diverged or truncated.shortened:
            self._data_loss.raise_or_rewind(truncated, owned, me)
            return None
        return ends

    def _ends_of_batch(self, readable: Owned, ends: Offsets, limits: BatchLimits, reason: LogReason | None) -> Offsets:
        """The end of the batch in each partition that it is to read, within the limits."""
        positions = {tp: partition.position for tp, partition in readable.items()}
        if reason is None and self._waits_for_more_offsets(positions, ends):
            return {}
        admitted = self.admission.ends(positions, ends, limits)
        return {tp: end for tp, end in admitted.items() if end > positions[tp]}

    def _in_these_topics(self, owned: Owned, topic_ids: Mapping[str, str]) -> Owned:
        """The partitions that this batch may read: they have a position in the topic with the current id, and their
        leader has confirmed its epoch. A lagging broker may have returned the id of a former topic when a partition
        started. Such positions are looked up again.
        """
        others = self._tracker.drop_other_topics(topic_ids)
        if others:
            self.end_offsets.forget(others)
        unconfirmed = self._epochs.unconfirmed
        readable: dict[TopicPartition, OwnedPartition] = {}
        for tp, partition in owned.items():
            topic_id = topic_ids.get(tp.topic)
            if topic_id is None or tp in unconfirmed:
                continue
            if may_be_same(topic_id, partition.topic_id):
                readable[tp] = partition
        return readable

    def _reason_to_log(self, start: BatchOffset, readable: Owned, topic_ids: Mapping[str, str]) -> LogReason | None:
        """The first reason to log a batch even without records to read; ``None`` without any."""
        pinned_starts = self._tracker.pinned_starts()
        if start.is_empty:
            return LogReason.NEW_QUERY
        if readable.keys() - start.ranges.keys() - start.pinned_starts.keys():
            return LogReason.NEW_PARTITION
        if pinned_starts.offsets.items() - start.pinned_starts.items():
            return LogReason.START_FOUND
        for tp, partition in readable.items():
            if _is_rewind(start.ranges.get(tp), partition.position, topic_ids[tp.topic]):
                return LogReason.REWIND
        return None

    def _waits_for_interval(self) -> bool:
        """Whether ``minBatchInterval`` delays the batch. Sleeps briefly, because Spark would call the source a hundred
        times a second."""
        interval = self._options.min_batch_interval
        if interval is None:
            interval = 0.0
        remaining = self._planned_at + interval - self._clock()
        if remaining > 0:
            time.sleep(min(remaining, IDLE_S))
        return remaining > IDLE_S

    def _waits_for_more_offsets(self, positions: Offsets, end_offsets: Offsets) -> bool:
        """Whether ``minOffsetsPerTrigger`` delays the batch. It never delays the first batch or an AvailableNow run."""
        minimum = self._options.min_offsets_per_trigger
        if minimum is None or self._target is not None:
            return False
        waited = self._clock() - self._planned_at
        if waited >= self._options.max_trigger_delay:
            return False
        return total_backlog(positions, end_offsets) < minimum

    def _record(self, start: BatchOffset, owned: Owned, ends: Offsets, topic_ids: Mapping[str, str]) -> BatchOffset:
        """Makes this the in-flight batch: it reads up to ``ends``, and logs the positions of all other partitions."""
        ranges = self._kept_ranges(start)
        for tp, partition in owned.items():
            at, epoch, lineage = partition.position, partition.epoch, partition.lineage
            ranges[tp] = OffsetRange(*tp, at, ends.get(tp, at), topic_ids[tp.topic], epoch, lineage)
        pinned = self._tracker.pinned_starts().without(ranges)
        checkpoint = start.checkpoint
        if not checkpoint:
            checkpoint = new_checkpoint_id()
        planned = BatchOffset(
            ranges,
            self._options.group.group_id,
            pinned.offsets,
            pinned.resets,
            cluster=self._clients.cluster.identity.id,
            checkpoint=checkpoint,
        )
        if planned == start:  # after a rewind to the start of the last batch
            planned = replace(planned, repeated=True)
        self._planned_start, self._planned_at = start, self._clock()
        self._tracker.planned(planned)
        self.admission.planned(planned)
        return planned

    def _kept_ranges(self, start: BatchOffset) -> dict[TopicPartition, OffsetRange]:
        """The ranges in ``start`` as the next batch logs them if it does not read them.

        Each is an empty range at its end, or at the beginning of a recreated topic. A deleted topic is left out, unless
        ``subscribe`` names it: without its ranges it would count as added if it is recreated. Ranges without an id,
        from brokers before Kafka 2.8, get the id of the current topic, because an offset has one id for each topic.
        """
        named = self._options.group.subscription.topics
        kept: dict[TopicPartition, OffsetRange] = {}
        for tp, logged in start.ranges.items():
            topic_id = self._topic_ids.read.get(tp.topic, "")
            if not may_be_same(logged.topic_id, topic_id):
                kept[tp] = OffsetRange(*tp, 0, 0, topic_id)
            elif tp.topic in named or tp.topic not in self._data_loss.deleted:
                end = logged.end
                kept[tp] = OffsetRange(*tp, end, end, topic_id or logged.topic_id, logged.epoch, logged.lineage)
        return kept


def _is_rewind(logged: OffsetRange | None, position: int, topic_id: str) -> bool:
    """Whether a position lies before the logged end in the same topic."""
    if logged is None or not may_be_same(logged.topic_id, topic_id):
        return False
    return position < logged.end
