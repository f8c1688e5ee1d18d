"""One query on Spark's driver: starts, plans batches, completes them and closes. The parts do the work.

No pyspark here: :mod:`spark_group_source.spark.stream` calls it for Spark, and tests call it directly. One thread at a
time calls a driver, except for :meth:`Driver.leave`. Elsewhere in this package that is "the query's thread".
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.grace import Permission
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import GroupOffsets
from spark_group_source.group.counters import Counters
from spark_group_source.group.current_coordinator import CurrentCoordinator
from spark_group_source.group.description import MemberDescription
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import BLOCKED_AFTER, Member
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.protocol import LEAVE_TIMEOUT
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import BatchOffset, Offsets
from spark_group_source.options.source_options import SourceOptions, stream_start
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.ownership import AssignedPartitions
from spark_group_source.query.permissions import principal_of
from spark_group_source.query.planner import BatchLimits, BatchPlanner
from spark_group_source.query.start_specs import check_names
from spark_group_source.query.starts.latest_at_start import starts_of
from spark_group_source.query.topics import TopicValidator
from spark_group_source.text import some
from spark_group_source.wire.identity import ClusterIdentity

log = logging.getLogger(__name__)

REPORT_INTERVAL = 300.0
"""Seconds between two lines about the membership."""

SLOW_BATCH_INTERVAL = 1800.0
"""Minimum seconds between two warnings about slow batches: a query may have one every few minutes."""


class QueryLog:
    """Logs what happens to one query, and repeats it rarely."""

    def __init__(self, settings: GroupSettings, counters: Counters, timings: Timings, clock: Clock) -> None:
        self._settings = settings
        self._counters = counters
        self._timings = timings
        self._clock = clock
        self._slow_batches = LogEvery(SLOW_BATCH_INTERVAL, clock)
        self._reports = LogEvery(REPORT_INTERVAL, clock, clock() + REPORT_INTERVAL)
        self._reported = ""

    def membership(self, me: Membership, since_heartbeat: float | None, rebalanced_at: float | None) -> None:
        """Logs the counters every :data:`REPORT_INTERVAL`, if one has changed. Times are in seconds of the clock."""
        if self._reports.try_acquire() and str(self._counters) != self._reported:
            self._reported = str(self._counters)
            times = "" if since_heartbeat is None else f", last heartbeat {since_heartbeat:.0f} s ago"
            times += "" if rebalanced_at is None else f", last rebalance {self._clock() - rebalanced_at:.0f} s ago"
            report = self._reported + times + self._responses()
            log.info("group %s: owns %d partition(s), %s", self._settings.group_id, len(me.owned), report)

    def end(self) -> None:
        """Logs the last counters."""
        log.info("group %s: the query has ended: %s%s", self._settings.group_id, self._counters, self._responses())

    def uncommitted(self, offsets: Owned, why: str) -> None:
        """Warns of completed offsets that the query could not commit before its end."""
        if offsets:
            log.warning(
                "group %s: the query ended without committing %s: %s. The next owner continues at the commits before,"
                " and repeats what follows them.",
                self._settings.group_id,
                some([f"{tp} at {owned.completed}" for tp, owned in sorted(offsets.items())]),
                why or "another commit was in progress, or the group had removed this member",
            )

    def _responses(self) -> str:
        counts = self._timings.take_report()
        return counts and f"; since the last such line the coordinator answered {counts}"

    def warn_if_slow(self, seconds: float) -> None:
        """Warns if a batch was in flight for longer than a revocation waits, at most every :data:`SLOW_BATCH_INTERVAL`.

        ``seconds`` includes the time to the next trigger if completed batches are not reported.
        """
        settings = self._settings
        no_revocations = bool(settings.subscription.partitions)  # with assign, there is no membership
        if seconds <= settings.revocation_timeout or no_revocations or not self._slow_batches.try_acquire():
            return
        log.warning(
            "group %s: a batch took %.0f s until its commit, but a revocation waits for at most %.0f s: a rebalance in"
            " this time makes the next owner repeat the batch. Make batches smaller with maxOffsetsPerTrigger, or raise"
            " kafka.max.poll.interval.ms (now %.0f) above %.0f. If this query commits each batch when Spark plans the"
            " next one, use minBatchInterval instead of processingTime.",
            settings.group_id,
            seconds,
            settings.revocation_timeout,
            settings.rebalance_timeout * 1000,
            settings.rebalance_timeout_for(seconds) * 1000,
        )


CLOSE_TIMEOUT = 16.0
"""Maximum seconds for the end of a query whose caller gives no deadline."""

CLOSE_MEMBER_TIMEOUT = BLOCKED_AFTER + LEAVE_TIMEOUT
"""Seconds of the end that are for :meth:`Member.close`."""

TIMEOUT = 2.0
"""Maximum seconds for the lookup: the start of the query waits for it."""


def other_client_ids(members: Iterable[MemberDescription], client_id: str, application_id: str) -> list[str]:
    """The client ids of other members of this Spark application; ``client_id`` is this query's."""
    part = f"-{application_id}-"
    return [member.client_id for member in members if part in member.client_id and member.client_id != client_id]


def log_other_members(offsets: GroupOffsets, group_id: str, client_id: str, application_id: str, clock: Clock) -> None:
    """Logs which other members of the group belong to this application.

    One lookup at the start of each query is enough: of two queries the later one sees the other. Where the user's
    process checks the queries (:mod:`spark_group_source.spark.started_queries`), it knows them by name, and warns.
    """
    if not application_id:
        return
    try:
        group = offsets.describe(Deadline.after(TIMEOUT, clock))
    except GroupSourceError as error:
        log.debug("group %s: its members are unknown: %s", group_id, error)
        return
    if isinstance(group, RequestFailed):
        log.debug("group %s: its members are unknown: %s", group_id, group.reason)
    elif group.members_hidden:
        log.debug("group %s: its members are unknown: this principal may not describe all of their topics", group_id)
    elif others := other_client_ids(group.members, client_id, application_id):
        log.warning(
            "group %s: %d members of this application share this group, also %s. Each reads only some of the"
            " partitions; a query that is to read all of them needs its own kafka.group.id.",
            group_id,
            len(others) + 1,
            some(others),
        )


def why_unassigned(offsets: GroupOffsets, client_id: str, clock: Clock) -> str:
    """What a join without an answer waits for, as the group's description shows."""
    try:
        group = offsets.describe(Deadline.after(TIMEOUT, clock))
    except GroupSourceError as error:
        return f"the coordinator has not answered the join, and the group cannot be described: {error}"
    if isinstance(group, RequestFailed):
        return f"the coordinator has not answered the join, and the group cannot be described: {group.reason}"
    others = [f"{member.client_id} at {member.host}" for member in group.members if member.client_id != client_id]
    if not others:
        return f"the coordinator has not answered the join; the group is {group.state}"
    return f"the coordinator waits for other members to rejoin; the group is {group.state}, with {some(others)}"


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
        # Only the driver's connections need the protocol, and what a member knows of its coordinator is its own.
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
        kind = ManualAssignment if options.group.subscription.partitions else Member
        self._member: ManualAssignment | Member = kind(member_clients.cluster, settings, self._tracker, clock, timings)
        self._assigned_partitions = AssignedPartitions(
            options, self._tracker, self._member, member_clients, metadata_fields, clock
        )
        fail_on_data_loss = options.fetch.fail_on_data_loss
        self._topics = TopicValidator(self._clients.cluster, settings.subscription, fail_on_data_loss, clock)
        self._planner = BatchPlanner(options, settings, self._clients, self._assigned_partitions, self._member, clock)
        self.counters = self._member.counters
        self._query_log = QueryLog(settings, self.counters, timings, clock)
        self._unassigned_lines = LogEvery(WARN_EVERY, clock, clock() + WARN_EVERY)
        self._unassigned_since = clock()

    def pin_starts(self) -> None:
        """Looks up what ``latest`` means for a query with a new checkpoint. Joins and commits nothing.

        Raises:
            BrokerUnavailable, TopicError: as :meth:`start`.
        """
        existing = starts_of(self._topics.find(()), time.time())
        self._assigned_partitions.resolver.pin_latest(existing, self._clients, confirmed=self._topics.confirmed)

    def start(self, logged: BatchOffset, *, replayed: bool = False) -> None:
        """Checks that the topics exist, then joins the group.

        Args:
            logged: where the checkpoint stands.
            replayed: Spark has replayed that batch, because an earlier process did not complete it.

        Raises:
            BrokerUnavailable: no broker answered in time.
            OtherCluster: only brokers of another cluster than that of the checkpoint did.
            TopicError: a topic or an assigned partition does not exist, or may not be described or read.
            DataLoss: a topic or partition that the query has read was deleted.
            OptionError: the checkpoint is new, and an option names other partitions than those that exist.
            GroupError: partitions are assigned by ``assign``, and the group has members.
            GroupSourceError: the checkpoint belongs to another group.
        """
        logged.check_group(self._options.group.group_id)
        if self._identity.expect(logged.cluster):
            # Only these clients have asked a broker before, for the starts of a query that turned out not to be new.
            self._clients.cluster.forget()
            self._assigned_partitions.resolver.forget_latest()
        topics = self._topics.find(logged.ranges)
        if lacks := self._clients.cluster.lacks():
            log.warning("group %s: these brokers have no %s", self._options.group.group_id, "; no ".join(lacks))
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
        """Waits for the first assignment, at most for the session of a dead member."""
        self._unassigned_since = self._clock()
        importlib.import_module("kafka.protocol.admin")  # takes 30 ms; needed below, and the member's thread joins now
        if not self._member.await_assignment(Deadline.after(self._settings.session_timeout, self._clock)):
            self._unassigned_lines.restart()
            self._warn_unassigned()
        if self._looks_for_other_members:
            log_other_members(
                self._clients.offsets, self._settings.group_id, self._client_id, self._application_id, self._clock
            )

    def _warn_unassigned(self) -> None:
        log.warning(
            "group %s: no assignment after %.0f s; the query waits for it and reads nothing until then: %s",
            self._settings.group_id,
            self._clock() - self._unassigned_since,
            self._member.last_failure or why_unassigned(self._clients.offsets, self._client_id, self._clock),
        )

    def prepare_for_available_now(self) -> None:
        """From here on the query reads up to the present end of every partition, and no further."""
        self._planner.prepare_for_available_now()

    def plan_batch(self, start: BatchOffset, max_offsets: int | None, max_bytes: int | None = None) -> BatchOffset:
        """The end of the next batch; ``start`` itself if the query has nothing to read.

        Args:
            start: the end of the last completed batch.
            max_offsets: maximum number of offsets in the batch, or ``None``.
            max_bytes: about the maximum number of bytes of records in the batch, or ``None``.
        """
        planned = self._planner.in_flight_from(start)
        if planned is not None:
            return planned
        self.complete(start)
        me = self._member.snapshot()
        if not self._member.has_assignment and self._unassigned_lines.try_acquire():
            self._warn_unassigned()
        self._query_log.membership(me, self._member.time_since_heartbeat, self._member.rebalanced_at)
        end = self._planner.plan(start, BatchLimits(max_offsets, max_bytes))
        if end is start:  # 2: an idle stream shows lag 0
            self._assigned_partitions.committer.wait()
        return end

    def end_offsets(self) -> Offsets:
        """The end offsets of the logs, as of the last lookup."""
        return self._planner.end_offsets.known

    @property
    def batch_in_flight(self) -> bool:
        """Whether the source does not know yet that the last planned batch is complete."""
        return self._tracker.in_flight is not None

    def complete(self, end: BatchOffset) -> None:
        """Spark has completed the batch that ends at ``end``: commits it. Any other offset has no effect."""
        if self._note_completed(end):
            self._assigned_partitions.committer.begin(self._member.snapshot(), self._commit_clients)

    def _note_completed(self, end: BatchOffset) -> bool:
        """Whether Spark has just completed the batch in flight, because that ends at ``end``."""
        seconds = self._planner.batch_completed(end)
        if seconds is None:
            return False
        self._query_log.warn_if_slow(seconds)
        self.counters.batches += 1
        self.counters.offsets += sum(read.size for read in end.reads())
        return True

    def leave(self) -> None:
        """Leaves the group and does nothing else, because another thread is at work. Caller: any thread."""
        pending = self._assigned_partitions.pending(self._member.snapshot)
        self._member.close()
        left = {tp: owned for tp, owned in pending.items() if owned.pending}
        self._query_log.uncommitted(left, self._assigned_partitions.committer.last_failure)

    def close(self, deadline: Deadline | None = None, completed: BatchOffset | None = None) -> None:
        """Commits what is completed, leaves the group and closes all connections, by the deadline.

        The commits are retried until the time that the leave needs begins. What stays uncommitted is the last line.

        Args:
            completed: the end of the batch in flight, if Spark has completed it.
        """
        deadline = deadline or Deadline.after(CLOSE_TIMEOUT, self._clock)
        left: Owned = {}
        if completed is not None:
            self._note_completed(completed)
        try:
            left = self._commit_before_leaving(deadline.at_most(deadline.remaining() - CLOSE_MEMBER_TIMEOUT))
        finally:
            self._member.close()
            self._clients.cluster.close()
            if self._assigned_partitions.committer.ended():  # or its thread still waits for the socket
                self._commit_clients.cluster.close()
            self._query_log.end()
            self._query_log.uncommitted(left, self._assigned_partitions.committer.last_failure)

    def _commit_before_leaving(self, deadline: Deadline) -> Owned:
        """The last commits, within the deadline; returns what stays uncommitted."""
        # If the commit that is under way fails, the next tries repeat it.
        self._assigned_partitions.committer.ended(within=min(self._options.commit_timeout, deadline.remaining()))
        return self._assigned_partitions.commit_before_leaving(self._member.snapshot, self._clients, deadline)
