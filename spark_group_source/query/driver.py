"""One query on Spark's driver: starts, plans batches, completes them and closes. The parts do the work.

No pyspark here: :mod:`spark_group_source.spark.stream` calls it for Spark, and tests call it directly. One thread at a
time calls a driver: this package names it "the query's thread". Only :meth:`Driver.leave` may be called from any
thread.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery, monotonic
from spark_group_source.grace import Permission
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.current_coordinator import CurrentCoordinator
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import BLOCKED_AFTER, Member
from spark_group_source.group.protocol import LEAVE_TIMEOUT
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import BatchLimit, BatchOffset, Offsets, TopicPartition
from spark_group_source.options.source_options import SourceOptions, stream_start
from spark_group_source.query.admission import BatchLimits
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.other_members import log_other_members, why_unassigned
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.ownership import AssignedPartitions
from spark_group_source.query.permissions import principal_of
from spark_group_source.query.planner import BatchPlanner
from spark_group_source.query.query_log import QueryLog
from spark_group_source.query.start_specs import check_names
from spark_group_source.query.starts.latest_at_start import starts_of
from spark_group_source.query.topic_validator import TopicValidator
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.known_leaders import known_leaders
from spark_group_source.wire.metadata import Metadata

log = logging.getLogger(__name__)

FIRST_LINE_AFTER = 5.0
"""Seconds without an assignment until the log says what the query waits for. A new group assigns within 3 s."""

CLOSE_TIMEOUT = 16.0
"""Maximum seconds for the end of a query whose caller gives no deadline."""

CLOSE_MEMBER_TIMEOUT = BLOCKED_AFTER + LEAVE_TIMEOUT
"""Seconds that :meth:`Driver.close` reserves for :meth:`Member.close`."""


class Driver:
    """One running query."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Clock = monotonic,
        application_id: str = "",
        looks_for_other_members: bool = True,
    ) -> None:
        """``looks_for_other_members``: whether to warn of other members of this application."""
        self._looks_for_other_members = looks_for_other_members
        self._clock = clock
        self._client_id, self._application_id = options.wire.client_id, application_id
        # Only the driver's connections need the group protocol, and each query looks up the coordinator for itself.
        wire = replace(options.wire, consumer_protocol=options.group.consumer_protocol)
        group_id = options.group.group_id
        read = Permission(f"READ on group '{group_id}'", principal_of(wire), clock=clock)
        coordinator = CurrentCoordinator(permission=read)
        self._settings = settings = replace(options.group, wire=wire, coordinator=coordinator)
        self._options = options = replace(options, group=replace(options.group, coordinator=coordinator))
        timings = Timings()
        self._identity = ClusterIdentity()
        self._clients = KafkaClients.connect(settings, timings, self._identity)
        self._commit_clients = KafkaClients.connect(settings, timings, self._identity)
        member_clients = KafkaClients.connect(settings, timings, self._identity)
        metadata_fields = {"application": application_id, "client": wire.client_id}
        self._tracker = OffsetTracker(clock)
        self._member: ManualAssignment | Member
        if options.group.subscription.partitions:
            self._member = ManualAssignment(member_clients, settings, clock)
        else:
            self._member = Member(member_clients.cluster, settings, self._tracker, clock, timings)
        self._assigned_partitions = AssignedPartitions(
            options, self._tracker, self._member, member_clients, metadata_fields, clock
        )
        fail_on_data_loss = options.fetch.fail_on_data_loss
        self._topics = TopicValidator(self._clients.cluster, settings.subscription, fail_on_data_loss, clock)
        self._planner = BatchPlanner(options, settings, self._clients, self._assigned_partitions, self._member, clock)
        self.counters = self._member.counters
        self._query_log = QueryLog(settings, options.target_batch_duration, self._member, timings, clock)
        self._unassigned_lines = LogEvery(WARN_EVERY, clock, clock() + WARN_EVERY)
        self._unassigned_since = clock()

    def pin_starts(self) -> None:
        """Looks up the offsets of ``latest`` for a query with a new checkpoint. Neither joins the group nor commits.

        Raises:
            BrokerUnavailable, TopicError: as :meth:`start`.
        """
        existing = starts_of(self._topics.find(()), time.time())
        self._assigned_partitions.resolver.starting_offsets.pin_latest(
            existing, self._clients, confirmed=self._topics.confirmed
        )

    def start(self, logged: BatchOffset, *, replayed: bool = False) -> None:
        """Checks that the topics exist, then joins the group.

        Args:
            logged: the last offset in the checkpoint; empty if the checkpoint is new.
            replayed: Spark has replayed that batch, because an earlier process did not complete it.

        Raises:
            BrokerUnavailable: no broker answered in time.
            OtherCluster: only brokers of another cluster than the checkpoint's answered.
            TopicError: a topic or an assigned partition does not exist, or may not be described or read.
            DataLoss: a topic or partition that the query has read was deleted.
            OptionError: the checkpoint is new, and an option names other partitions than those that exist.
            GroupError: partitions are assigned by ``assign``, and the group has members.
            GroupSourceError: the checkpoint belongs to another group.
        """
        logged.check_group(self._options.group.group_id)
        if self._identity.expect(logged.cluster):
            # Only these clients have sent requests before, for the starts of a query that turned out not to be new.
            self._clients.cluster.forget()
            self._assigned_partitions.resolver.starting_offsets.forget_latest()
        topics = self._topics.find(logged.ranges)
        missing_features = self._clients.cluster.lacks()
        if missing_features:
            log.warning(
                "group %s: these brokers have no %s", self._options.group.group_id, "; no ".join(missing_features)
            )
        self._query_log.warn_of_long_target()
        self._planner.restore(logged, self._topics.deleted(topics, logged.ranges))
        existing = starts_of(topics, time.time())
        if logged.is_empty:
            check_names(stream_start(self._options), existing)
        self._assigned_partitions.permissions.check_start(topics, self._clients.cluster)
        self._assigned_partitions.resolver.restore(
            logged, existing, self._clients, replayed=replayed, confirmed=self._topics.confirmed
        )
        self._member.start(topics, self._assigned_partitions)

    def await_assignment(self) -> None:
        """Waits for the first assignment, at most until the session of a dead member would have timed out."""
        self._unassigned_since = self._clock()
        deadline = Deadline.after(self._settings.session_timeout, self._clock)
        importlib.import_module("kafka.protocol.admin")  # takes 30 ms; needed below, and the member's thread joins now
        assigned = self._member.await_assignment(deadline.at_most(FIRST_LINE_AFTER))
        if not assigned and not deadline.expired():
            self._log_wait()
            assigned = self._member.await_assignment(deadline)
        if not assigned:
            self._unassigned_lines.restart()
            self._warn_unassigned()
        if self._looks_for_other_members:
            log_other_members(
                self._clients.offsets, self._settings.group_id, self._client_id, self._application_id, self._clock
            )

    def _log_wait(self) -> None:
        """Logs why a start takes long. Caller: the query's thread, during its first wait."""
        log.info(
            "group %s: no assignment yet after %.0f s; the start of the query waits for it, at most %.0f s in all: %s",
            self._settings.group_id,
            self._clock() - self._unassigned_since,
            self._settings.session_timeout,
            self._why_unassigned(),
        )

    def _why_unassigned(self) -> str:
        cause = self._member.last_failure
        if not cause:
            cause = why_unassigned(self._clients.offsets, self._client_id, self._settings.session_timeout, self._clock)
        return cause

    def _warn_unassigned(self) -> None:
        log.warning(
            "group %s: no assignment after %.0f s, and the query reads nothing until it has one: %s",
            self._settings.group_id,
            self._clock() - self._unassigned_since,
            self._why_unassigned(),
        )

    def prepare_for_available_now(self) -> None:
        """Limits the query to the current end of every partition."""
        self._planner.prepare_for_available_now()

    def plan_batch(self, start: BatchOffset, max_offsets: int | None, max_bytes: int | None = None) -> BatchOffset:
        """The end of the next batch; ``start`` itself if the query has nothing to read.

        Args:
            start: the end of the last completed batch.
            max_offsets: maximum number of offsets in the batch, or ``None``.
            max_bytes: about the maximum number of bytes of records in the batch, or ``None``.
        """
        return self._plan(start, BatchLimits(max_offsets, max_bytes))

    def plan_all_available(self, start: BatchOffset) -> BatchOffset:
        """As :meth:`plan_batch`, without any limit: for the trigger ``once``."""
        return self._plan(start, BatchLimits(None, None, to_target=False))

    def _plan(self, start: BatchOffset, limits: BatchLimits) -> BatchOffset:
        planned = self._planner.in_flight_from(start)
        if planned is not None:
            return planned
        self._complete(start, reported=False)
        if self.batch_in_flight:
            self._query_log.warn_of_unknown_offset()
        if not self._member.has_assignment and self._unassigned_lines.try_acquire():
            self._warn_unassigned()
        self._query_log.membership()
        end = self._planner.plan(start, limits)
        if end is start:  # "An idle stream and a finished AvailableNow run show lag 0"
            self._assigned_partitions.committer.wait()
        return end

    def leaders_of(self, partitions: Iterable[TopicPartition]) -> Metadata:
        """The leaders of these partitions as of the last plan, for tasks."""
        return known_leaders(self._clients.cluster, partitions)

    def end_offsets(self) -> Offsets:
        """The end offsets of the logs, as of the last lookup."""
        return self._planner.end_offsets.known

    def batch_limit(self) -> BatchLimit | None:
        """The limit that decided the last planned batch; ``None`` if no limit is set, or before the first batch."""
        return self._planner.admission.decided

    @property
    def batch_in_flight(self) -> bool:
        """Whether the last planned batch may still be incomplete, as far as the source knows."""
        return self._tracker.in_flight is not None

    def complete(self, end: BatchOffset) -> None:
        """Commits the batch that ends at ``end``, which Spark has just completed. Any other offset has no effect."""
        self._complete(end, reported=True)

    def _complete(self, end: BatchOffset, *, reported: bool) -> None:
        if self._note_completed(end, reported=reported):
            self._assigned_partitions.committer.begin(self._member.snapshot(), self._commit_clients)

    def _note_completed(self, end: BatchOffset, *, reported: bool) -> bool:
        """Counts the batch in flight as completed if it ends at ``end``; returns whether it does.

        ``reported`` is whether Spark has just reported the completion. Otherwise Spark may have completed the batch
        earlier.
        """
        seconds = self._planner.batch_completed(end, reported=reported)
        if seconds is None:
            return False
        self._query_log.warn_if_slow(seconds)
        self.counters.batches += 1
        for read in end.reads():
            self.counters.offsets += read.size
        return True

    def leave(self) -> None:
        """Leaves the group and does nothing else: another thread may be using the driver. Caller: any thread."""
        pending = self._assigned_partitions.pending(self._member.snapshot)
        self._member.close()
        uncommitted = {tp: owned for tp, owned in pending.items() if owned.pending}
        self._query_log.uncommitted(uncommitted, self._assigned_partitions.committer.last_failure)

    def close(self, deadline: Deadline | None = None, completed: BatchOffset | None = None) -> None:
        """Commits the completed batches, leaves the group and closes all connections, by the deadline.

        The commits are retried until only the time for leaving the group remains. The last log line names the offsets
        that stay uncommitted.

        Args:
            completed: the end of the batch in flight, if Spark has completed it.
        """
        if deadline is None:
            deadline = Deadline.after(CLOSE_TIMEOUT, self._clock)
        uncommitted: Owned = {}
        if completed is not None:
            self._note_completed(completed, reported=False)
        try:
            uncommitted = self._commit_before_leaving(deadline.at_most(deadline.remaining() - CLOSE_MEMBER_TIMEOUT))
        finally:
            self._member.close()
            self._clients.cluster.close()
            if self._assigned_partitions.committer.ended():  # otherwise its thread still waits for the socket
                self._commit_clients.cluster.close()
            self._query_log.end()
            self._query_log.uncommitted(uncommitted, self._assigned_partitions.committer.last_failure)

    def _commit_before_leaving(self, deadline: Deadline) -> Owned:
        """Makes the last commits, within the deadline. Returns the offsets that stay uncommitted."""
        # If the commit in progress fails, the next tries include its offsets.
        self._assigned_partitions.committer.ended(within=min(self._options.commit_timeout, deadline.remaining()))
        return self._assigned_partitions.commit_before_leaving(self._member.snapshot, self._clients, deadline)
