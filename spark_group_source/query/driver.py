"""What runs on Spark's driver for one query: the member, its share of the group, and the planning of batches.

It knows no pyspark: :mod:`spark_group_source.spark.stream` is its door to Spark, tests drive it directly. All methods
are for the one thread that Spark's calls come on.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.counters import Timings
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.state import Membership
from spark_group_source.offsets import BatchOffset, OffsetRange, Offsets
from spark_group_source.options.stream_and_batch import stream_start
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.assigned_partitions import AssignedPartitions
from spark_group_source.query.commits.retry import Retry
from spark_group_source.query.group_settings import group_settings
from spark_group_source.query.kafka_clients import KafkaClients
from spark_group_source.query.planning.admission import admit, backlog
from spark_group_source.query.planning.available_now_target import AvailableNowTarget
from spark_group_source.query.planning.data_loss import DataLossPolicy
from spark_group_source.query.planning.end_offsets import EndOffsets
from spark_group_source.query.planning.leader_epochs import EpochCheck
from spark_group_source.query.planning.topic_ids import TopicIds
from spark_group_source.query.query_log import Report
from spark_group_source.query.shared_group import warn_if_shared
from spark_group_source.query.starting_offsets.resolution import check_names
from spark_group_source.query.starting_offsets.topic_validator import TopicValidator
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import partitions_of
from spark_group_source.wire.settings import WireOptions

log = logging.getLogger(__name__)

RENEW_EVERY = 3600.0
"""Seconds between two commits of offsets that do not move, where partitions are assigned: the brokers forget those of a
group without members after ``offsets.retention.minutes`` since each was committed, by default 7 days."""

MOVES = 3
"""Maximum number of times that one call plans: after each but the last the query may move because of lost records."""


class Driver:
    """One running query's part in its group."""

    def __init__(
        self, options: SourceOptions, wire: WireOptions, clock: Clock = monotonic, application_id: str = ""
    ) -> None:
        self._options = options
        self._clock = clock
        self._names = wire.client_id, application_id
        self._settings = group_settings(options)
        timings = Timings()
        cluster = Cluster(wire)
        self._own = KafkaClients(cluster, GroupOffsets(cluster, self._settings, timings))
        members_cluster = Cluster(wire)
        member_side = KafkaClients(members_cluster, GroupOffsets(members_cluster, self._settings, timings))
        facts = {"application": application_id, "client": wire.client_id}
        self._share = AssignedPartitions(options, member_side, facts, clock, self._no_member)
        self._ledger = self._share.ledger
        self.counters = self._share.counters
        kind = ManualAssignment if options.partitions else Member
        self._member: ManualAssignment | Member = kind(members_cluster, self._settings, self._share, clock, timings)
        self._check = TopicValidator(cluster, self._settings.subscription, options.fail_on_data_loss, clock)
        self._renewal = Retry(RENEW_EVERY, clock) if options.partitions else None
        self._ends = EndOffsets(cluster, options, clock)
        self._epochs = EpochCheck(cluster, self._ledger.epochs, clock)
        self._ids = TopicIds(cluster, options.metadata_max_age, clock, options.group_id)
        self._losses = DataLossPolicy(
            self._settings.subscription, self._ids, self._share, self._own, options.fail_on_data_loss
        )
        self._target: AvailableNowTarget | None = None
        self._planned_from: BatchOffset | None = None
        self._planned: BatchOffset | None = None
        self._last_batch_at = float("-inf")
        self._handed_out_at = clock()
        self._report = Report(self._settings, self._share.counters, timings, clock)

    def decide_start(self) -> None:
        """Notes where the query starts if its checkpoint is new. Nothing is joined or committed yet.

        Raises:
            What :meth:`start` raises of topics and brokers.
        """
        self._share.decide(partitions_of(self._check.topics(()).values()), self._own)

    def start(self, logged: BatchOffset, *, replayed: bool = False) -> None:
        """Checks that the topics are there, then joins the group.

        Args:
            logged: where the checkpoint stands.
            replayed: Spark has read that batch once more, since an earlier process did not complete it.

        Raises:
            BrokerUnavailable: no broker answered in time.
            TopicError: a topic or an assigned partition does not exist, or may not be described.
            DataLoss: one that was read before does not exist any more.
            OptionError: the checkpoint is new, and an option names other partitions than there are to start at.
            GroupError: partitions are assigned, and the group has members.
            GroupSourceError: the checkpoint belongs to another group.
        """
        logged.check_group(self._options.group_id)
        topics = self._check.topics(logged.ranges)
        self._losses.gone = self._check.gone(topics, logged.ranges)
        self._ids.restore(logged)
        self._ledger.epochs.logged(logged)
        existing = partitions_of(topics.values())
        if logged.is_empty:
            check_names(stream_start(self._options), existing)
        self._share.restore(logged, existing, self._own, replayed=replayed)
        self._member.start(topics)
        if self._renew():  # a run may be over before the first hour is
            self._share.committer.commit(self._member.snapshot(), self._own)

    def await_share(self) -> None:
        """Waits until the group has given this query its share, as long as a dead member may hold it up."""
        if not self._member.await_assignment(Deadline.after(self._settings.session_timeout, self._clock)):
            log.warning(
                "group %s: no share after %.0f s; the query goes on and reads when it comes",
                self._settings.group_id,
                self._settings.session_timeout,
            )
        warn_if_shared(self._own.offsets, self._settings.group_id, *self._names, self._clock)

    def freeze_target(self) -> None:
        """From here on the query reads up to what the log holds now, in all partitions, and no further."""
        own, given = self._own, self._options
        self._target = AvailableNowTarget(
            own.cluster, own.offsets, self._settings, given.read_committed, given.fail_on_data_loss, self._clock
        )

    def latest(self, start: BatchOffset, limit: int | None) -> BatchOffset:
        """The end of the next batch; ``start`` itself where there is nothing to read.

        Args:
            start: the end of the last completed batch.
            limit: most offsets to cover, or ``None``.
        """
        if self._planned is not None and start == self._planned_from:
            # Spark has not taken the batch it was given: it is still to be read.
            return self._planned
        self._complete(start)
        me = self._member.snapshot()
        self._report.membership(me, self._member.time_since_heartbeat, self._share.rebalanced_at)
        self._mend(me)
        if self._target is None:
            return self._plan(start, limit, me)
        return self._plan_to_target(start, limit)

    def ends(self) -> Offsets:
        """The ends of the log as last seen."""
        return self._ends.known

    def complete(self, end: BatchOffset) -> None:
        """Spark has completed the batch that ends at ``end``: commits it."""
        self._complete(end)

    def close(self) -> None:
        """Leaves the group and closes all connections. What is completed and not committed is tried once more."""
        try:
            self._share.committer.commit(self._member.snapshot(), self._own)
        except GroupSourceError as error:
            log.debug("group %s: no last commit, as the query has failed: %s", self._settings.group_id, error)
        finally:
            self._member.close()
            self._own.cluster.close()
            self._report.end()

    def _complete(self, end: BatchOffset) -> None:
        if self._planned is None or end != self._planned:
            return
        self._report.pace(self._clock() - self._handed_out_at)
        self._share.counters.batches += 1
        self._share.counters.offsets += sum(each.size for each in end.reads())
        self._ledger.completed({each.tp: each.end for each in end.reads()})
        self._ledger.batch_logged(end.ranges)
        self._planned = self._planned_from = None
        self._ends.expire()
        self._share.committer.commit(self._member.snapshot(), self._own)
        self._member.batch_completed(self._ledger.uncommitted())

    def _no_member(self, me: Membership, refused: RequestFailed) -> None:
        self._member.commit_rejected(me, refused)

    def _mend(self, me: Membership) -> None:
        """Tries again what failed: commits, and start positions of newly owned partitions. Renews assigned ones'."""
        self._renew()
        self._share.mend(me, self._own)
        if self._planned is None and me.in_flight - self._ledger.uncommitted():
            # Committed by now, perhaps on the member's thread: a hand-over may be waiting for just this.
            self._member.batch_completed(self._ledger.uncommitted())

    def _renew(self) -> bool:
        """Has the offsets of assigned partitions committed once more where it is time to; whether it is."""
        due = self._renewal is not None and self._renewal.due()
        if due:
            self._ledger.renew()
        return due

    def _plan(self, start: BatchOffset, limit: int | None, me: Membership) -> BatchOffset:
        """The next batch; if lost records move the query, the batch from there on.

        PySpark 4.1 asks a run with ``availableNow`` or ``once`` a single time: it must not be told that there is none.
        """
        for _ in range(MOVES):
            planned = self._plan_unless_moved(start, limit, me)
            if planned is not None:
                return planned
            me = self._member.snapshot()
        return start

    def _plan_unless_moved(self, start: BatchOffset, limit: int | None, me: Membership) -> BatchOffset | None:
        """As :meth:`_plan`; ``None`` where positions have moved."""
        positions = self._ledger.positions(me)
        topics = {tp.topic for tp in positions}
        if self._losses.start_over(topics, me):
            return None
        self._losses.continue_without(start, topics, me)
        ends = self._ends.of(positions)
        replaced = self._epochs.replaced(positions, self._ends.epochs)
        cut = {} if replaced else self._ends.cut(positions, ends)
        # Those looks at the logs may have brought news of the topics.
        if self._losses.start_over(topics, me) or self._losses.go_back_to(replaced, positions, me):
            return None
        if self._losses.go_back(cut, positions, me):
            return None
        positions = {tp: at for tp, at in positions.items() if tp not in self._epochs.unsure}
        if self._target is not None:
            ends = self._target.cap(ends)
        if self._held_back(positions, ends):
            return start
        ids = self._ids.of(topics)
        positions = {tp: at for tp, at in positions.items() if tp.topic in ids}
        admitted = admit(positions, ends, limit)
        moving = frozenset(tp for tp, end in admitted.items() if end > positions[tp])
        # That is logged at once, also where there is nothing to read: a restart goes on at the end logged last.
        went_back = any(_behind(start.ranges.get(tp), at, ids[tp.topic]) for tp, at in positions.items())
        # So is where the query starts: a restart must not decide that again.
        must_be_logged = went_back or start.is_empty
        if not moving and not must_be_logged:
            return start
        # The last thing that may take time is behind: what is allowed here is noted as planned at once.
        moving = self._member.plan(moving, self._ledger.uncommitted(), me)
        if not moving and not must_be_logged:
            return start
        known = {
            tp: OffsetRange(*tp, each.end, each.end, each.topic_id, each.epoch)
            for tp, each in start.ranges.items()
            if each.topic_id == self._ids.read.get(tp.topic, each.topic_id) and tp.topic not in self._losses.gone
        }
        for tp, position in positions.items():
            end = admitted[tp] if tp in moving else position
            known[tp] = OffsetRange(*tp, position, end, ids[tp.topic], self._epochs.known[tp])
        first = self._ledger.first_start().without(known)
        self._planned_from = start
        self._planned = BatchOffset(known, self._options.group_id, first.offsets, first.resets)
        self._ledger.epochs.logged(self._planned)
        self._last_batch_at = self._handed_out_at = self._clock()
        self._ledger.planned({tp: admitted[tp] for tp in moving}, positions)
        return self._planned

    def _plan_to_target(self, start: BatchOffset, limit: int | None) -> BatchOffset:
        """A run to a frozen target ends when the group has reached it everywhere, not only in what is owned now."""
        assert self._target is not None
        while True:
            me = self._member.snapshot()
            self._target.freeze(frozenset(me.owned))
            self._mend(me)
            planned = self._plan(start, limit, me)
            if planned is not start or self._target.reached(self._ledger.first_start().resets & me.readable.keys()):
                return planned
            cut = self._ends.before(self._target.behind)
            self._losses.accept_cut(cut, self._target.behind)
            self._target.lower(cut)
            self._target.wait()

    def _held_back(self, positions: Offsets, ends: Offsets) -> bool:
        """Whether there is too little for a batch. The first one after a start, and a run to a target, never wait."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        waited = self._clock() - self._last_batch_at
        return waited < self._options.max_trigger_delay and backlog(positions, ends) < least


def _behind(logged: OffsetRange | None, position: int, topic_id: str) -> bool:
    """Whether a position lies before the end that was logged of the same topic."""
    return logged is not None and logged.topic_id == topic_id and position < logged.end
