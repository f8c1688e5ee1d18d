"""The partitions that the group has assigned to a query: their assignment, start positions, commits and revocation.

The member's thread and the query's thread both call :class:`AssignedPartitions`, each with its own
:class:`KafkaClients`. They share the tracker, the committer and the retry timer, which have locks of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from spark_group_source.clock import Backoff, Clock, Deadline, monotonic
from spark_group_source.errors import (
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerError,
    CommitFailed,
    GroupSourceError,
    RetriableError,
)
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Membership, Phase, RequestFailed
from spark_group_source.offsets import Offsets, Partitions, TopicPartition, topics_of
from spark_group_source.options.source_options import SourceOptions, start_setting
from spark_group_source.query.committer import Committer
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import MAX_REJECTIONS, Owned, OwnedPartition
from spark_group_source.query.permissions import TopicPermissions
from spark_group_source.query.retry_timer import RetryTimer
from spark_group_source.query.starts.resolver import StartOffsetResolver
from spark_group_source.query.starts.rules import Start, StartRule, log_starts
from spark_group_source.text import names
from spark_group_source.wire import waiting
from spark_group_source.wire.metadata import permissions_of

log = logging.getLogger(__name__)

RESOLVE_BACKOFF_FACTOR, RESOLVE_BACKOFF_MAX = 4.0, 30.0
"""Backoff between lookups of start positions that no leader returns, as a multiple of the time that the last lookup
took, and its maximum in seconds. It applies while the query has other partitions to read: they wait for each lookup."""

FAILED_LOOKUPS_BACKOFF_MAX = 10.0
"""Maximum seconds of the backoff after several such lookups in a row, however quick they are. After a failed commit,
the next try is due after ``offsetCommit.retryIntervalMs`` instead."""


LAST_LOOKUP_TIMEOUT = 1.0
"""Seconds at the end of the last commits that are kept for looking up what the group has of them."""

RENEW_EVERY = 3600.0
"""Seconds between two commits of unchanged offsets, with ``assign`` only. If a group has no members, the brokers delete
each offset ``offsets.retention.minutes`` after its commit (default: 7 days)."""


class AssignedPartitions:
    """The partitions that a query owns. The :class:`RebalanceListener` of its member.

    The query's thread also uses ``tracker``, ``permissions``, ``committer`` and ``resolver`` directly.
    """

    def __init__(
        self,
        options: SourceOptions,
        tracker: OffsetTracker,
        member: Member | ManualAssignment,
        member_clients: KafkaClients,
        metadata_fields: Mapping[str, str] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """``metadata_fields`` are passed to :class:`Committer`."""
        self.counters = member.counters
        self.tracker = tracker
        self._retry_timer = RetryTimer(options.commit_retry_interval, clock)
        self._failed_lookups = Backoff(options.commit_retry_interval, FAILED_LOOKUPS_BACKOFF_MAX, jitter=0.0)
        self._renewal = RetryTimer(RENEW_EVERY, clock) if options.group.subscription.partitions else None
        self.permissions = TopicPermissions(options.group.subscription, options.wire, clock)
        self.committer = Committer(options, tracker, member, self._retry_timer, self.permissions, metadata_fields or {})
        self.resolver = StartOffsetResolver(options, tracker, clock)
        self._options = options
        self._clock = clock
        self._group_id = options.group.group_id
        self._member_clients = member_clients

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline | None = None) -> None:
        """Resolves and commits the start positions of newly assigned partitions. Caller: the member's thread."""
        self.tracker.partitions_assigned(partitions, me)
        if self._options.group.subscription.partitions:
            # With ``assign``, a commit of a former process may still be on its way. A member's commits are fenced by
            # their generation.
            self.tracker.expect_late_commits(partitions)
        self.resolve(partitions, me, self._member_clients, deadline)

    def maintenance_due(self, me: Membership) -> float:
        """When :meth:`maintain_offsets` is due, in seconds of the clock; infinite if nothing is to be done. Caller: the
        member's thread."""
        if not self._needs_maintenance(me):
            return math.inf
        return self._retry_timer.due_at

    def partitions_revoked(self, partitions: Partitions) -> None:
        """Removes revoked partitions. Caller: the member's thread."""
        in_flight, uncommitted = self.tracker.remove(partitions)
        self.resolver.unresolved.forget(partitions)
        log.info("group %s: revoked %s", self._group_id, names(partitions))
        self.counters.revoked += len(partitions)
        self.counters.revocation_timed_out += len(in_flight | uncommitted)
        if in_flight:
            log.warning(
                "group %s: the batch that reads %s did not end within the revocation timeout; the next owner repeats"
                " the batch. Make batches shorter with targetBatchDuration, or raise kafka.max.poll.interval.ms.",
                self._group_id,
                names(in_flight),
            )
        if uncommitted - in_flight:
            log.warning(
                "group %s: the offsets of %s could not be committed within the revocation timeout; the next owner"
                " reads the records since the last commit again. Check the group's coordinator.",
                self._group_id,
                names(uncommitted - in_flight),
            )

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """Removes lost partitions. Caller: the member's thread."""
        log.warning("group %s: lost %s: %s", self._group_id, names(partitions), reason)
        self.counters.lost += len(partitions)
        self.tracker.remove(partitions)
        self.resolver.unresolved.forget(partitions)

    def maintain_offsets(
        self, me: Membership, deadline: Deadline | None = None, clients: KafkaClients | None = None
    ) -> None:
        """Does what has become due for the offsets of the owned partitions:

        - renews the commits of ``assign``;
        - looks up start positions that are unresolved, and commits them;
        - commits offsets that are pending, such as those of a failed commit;
        - verifies that no late commit has moved the group back.

        All but the renewal waits until ``offsetCommit.retryIntervalMs`` after the last try; longer while unresolved
        start positions block other partitions. Caller: either thread; the query's thread passes its ``clients``. Only
        one thread does this at a time.
        """
        commit_in_progress = False
        if clients is None:
            clients = self._member_clients
        else:
            commit_in_progress = not self.committer.ended()
            self.committer.raise_error()  # a commit could succeed and be followed by this error, a batch later
        if me.phase is Phase.REVOKING and deadline is not None:
            deadline = deadline.at_most(me.revoke_by - self._clock())
        self._renew_if_due()
        if not self._needs_maintenance(me, commit_in_progress):
            return
        if not self._retry_timer.try_acquire():
            return
        unresolved = self._unresolved(me)
        if unresolved:
            self.verify(me, clients, deadline)
            self.resolve(unresolved, me, clients, deadline)  # and commits all that is pending
        else:
            self._commit_and_verify(me, clients, deadline)
            self._retry_timer.restart()

    def _commit_and_verify(self, me: Membership, clients: KafkaClients, deadline: Deadline | None) -> bool:
        """Commits the pending offsets, including those that a late commit has moved back. Returns whether the group has
        all of them."""
        # The commits come first, because a coordinator that does not return offsets must not delay them.
        committed = self.committer.commit(me, clients, deadline)
        verified = self.verify(me, clients, deadline)
        if not committed or not verified:
            return False
        return self.committer.commit(me, clients, deadline) and not self._worth_a_retry(me)

    def _worth_a_retry(self, me: Membership) -> Owned:
        """Pending commits, without those that the coordinator rejects again and again: their topics may be deleted."""
        pending = self.tracker.pending(me)
        return {tp: owned for tp, owned in pending.items() if owned.rejections < MAX_REJECTIONS}

    def pending(self, membership: Callable[[], Membership]) -> Owned:
        """The pending commits; none if the membership has failed. Caller: any thread."""
        try:
            return self.tracker.pending(membership())
        except GroupSourceError as error:
            log.debug("group %s: no commits count as pending, because the membership failed: %s", self._group_id, error)
            return {}

    def commit_before_leaving(
        self, membership: Callable[[], Membership], clients: KafkaClients, deadline: Deadline
    ) -> Owned:
        """Commits the completed batches, with retries until the deadline. Caller: the query's thread, when the query
        ends.

        The coordinator may be moving, or a rebalance or another commit may be in progress. Each try therefore uses the
        current ``membership``, and looks up the coordinator again if the last try failed because of it.

        Returns:
            the offsets that stay uncommitted, including those of partitions that the group takes away in the meantime.
        """
        # The owned partitions come from the records, because the membership may have ended unnoticed with the last
        # commit.
        tried = self.tracker.completed_work()
        try:
            last_try = deadline.at_most(deadline.remaining() - LAST_LOOKUP_TIMEOUT)
            self._commit_until(last_try, membership, clients, tried)
        except GroupSourceError as error:
            log.debug(
                "group %s: cannot retry the last commits, because the membership failed: %s", self._group_id, error
            )
        unconfirmed = {tp: owned for tp, owned in tried.items() if owned.pending}
        if not unconfirmed:
            return {}
        return self._without_committed(unconfirmed, clients, deadline)

    def _without_committed(self, unconfirmed: Owned, clients: KafkaClients, deadline: Deadline) -> Owned:
        """Leaves out the offsets that the group has, although no answer confirmed their commits to this assignment.

        The coordinator may have applied a commit whose answer was lost, or that it answered with an error; and if this
        member has joined again since, the offset was confirmed to its new assignment. If the group's offsets cannot be
        looked up, all offsets count as uncommitted.
        """
        found = clients.offsets.committed(unconfirmed, deadline, unavailable={})
        if isinstance(found, RequestFailed):
            log.debug("group %s: cannot look up the last commits: %s", self._group_id, found.reason)
            return unconfirmed
        uncommitted = {}
        for tp, owned in unconfirmed.items():
            if not owned.is_committed_by(found.get(tp)):
                uncommitted[tp] = owned
        return uncommitted

    def _commit_until(
        self,
        deadline: Deadline,
        membership: Callable[[], Membership],
        clients: KafkaClients,
        tried: dict[TopicPartition, OwnedPartition],
    ) -> None:
        """Tries the last commits until they succeed. ``tried`` receives the partitions to commit.

        Raises:
            GroupSourceError: the membership failed.
        """
        me = membership()
        if not self._has_pending_work(me):
            deadline = deadline.at_most(self._options.commit_timeout)  # only starts are uncommitted
        backoff = Backoff(self._options.wire.retry_backoff, self._options.wire.retry_backoff_max)
        tried |= self.tracker.pending(me)
        while not self._try_last_commit(me, clients, deadline):
            seconds = backoff.next()
            if deadline.remaining() <= seconds:
                break
            waiting.sleep(seconds, deadline)
            me = membership()
            tried |= self.tracker.pending(me)

    def _has_pending_work(self, me: Membership) -> bool:
        """Whether the end of a completed batch is pending, and not only start positions."""
        return any(owned.has_work for owned in self.tracker.pending(me).values())

    def _try_last_commit(self, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        """Tries the last commits once. Returns whether they succeeded, or whether no further try would help."""
        try:
            return self._commit_and_verify(me, clients, deadline.share(2))
        except CommitFailed:  # the limit of onCommitFailure, but the query ends in any case
            return False
        except GroupSourceError as error:
            log.debug("group %s: the last commits failed, and a retry would not help: %s", self._group_id, error)
            return True

    def _needs_maintenance(self, me: Membership, commit_in_progress: bool = False) -> bool:
        """Whether start positions are to be looked up, or offsets to be committed or verified. Offsets are not to be
        committed while a commit is in progress, so that planning does not wait for it."""
        has_commits_to_send = not commit_in_progress and bool(self.tracker.pending(me))
        has_starts_to_look_up = bool(self._unresolved(me))
        if has_commits_to_send or has_starts_to_look_up:
            return True
        return bool(self.tracker.unsettled(me))  # a late commit may have moved the group back

    def _unresolved(self, me: Membership) -> Partitions:
        """The unresolved partitions. Includes a partition that is being revoked only while the revocation waits for
        it."""
        return self.tracker.unresolved(me) - (me.revoking - self.tracker.uncommitted())

    def verify(self, me: Membership, clients: KafkaClients, deadline: Deadline | None = None) -> bool:
        """Makes a commit pending again if a late commit has moved the group back to an earlier offset. Caller: either
        thread.

        A commit is late if its answer never came and the coordinator handles it after a newer one. Returns False if the
        group's offsets could not be looked up.
        """
        unsettled = self.tracker.unsettled(me)
        if not unsettled:
            return True
        if deadline is None:
            deadline = Deadline.after(self._options.commit_timeout)
        found = clients.offsets.committed(unsettled, deadline, me, unavailable={})
        if isinstance(found, RequestFailed):
            log.debug("group %s: cannot verify the committed offsets, will retry: %s", self._group_id, found.reason)
            return False
        moved = self.tracker.verify(found)
        if moved:
            log.info("group %s: a late commit moved %s back; the query commits again", self._group_id, names(moved))
        return True

    def resolve(
        self, partitions: Partitions, me: Membership, clients: KafkaClients, deadline: Deadline | None = None
    ) -> None:
        """Resolves the start positions of partitions and commits them, so that a crash before their first batch skips
        no records.

        A failure is logged, and the partition stays unresolved until a retry. The call ends by the ``deadline``.
        """
        began = self._clock()
        timeout = self.resolver.timeout
        if deadline is None:
            deadline = Deadline.after(timeout + self._options.commit_timeout)
        with self.tracker.start_lookup(partitions) as lookup:
            if lookup:
                # The last third is for the commit, so that positions found do not wait for the query's next retry.
                within = deadline.at_most(min(timeout, deadline.remaining() * 2 / 3))
                self._look_up(lookup, me, clients, within)
        self._renew_if_due()
        self.committer.commit(me, clients, deadline)
        self._retry_timer.restart(self._lookup_backoff(me, took=self._clock() - began))

    def _look_up(self, lookup: Owned, me: Membership, clients: KafkaClients, deadline: Deadline) -> None:
        """Resolves start positions, except those of topics that may not be read now.

        One request asks the coordinator for the topics' ids and leaders, and whether they may be read.
        """
        due = self.permissions.due(topics_of(lookup))
        topics = clients.offsets.topics(topics_of(lookup), deadline, with_permissions=bool(due))
        if not isinstance(topics, RequestFailed):
            self.permissions.record(due, permissions_of(topics))
        denied = self.permissions.denied
        permitted = {tp: owned for tp, owned in lookup.items() if tp.topic not in denied}
        self.tracker.note_denied(frozenset(lookup.keys() - permitted.keys()))
        try:
            if permitted:
                self.resolver.resolve(permitted, topics, me, clients, deadline)
        except GroupSourceError as error:
            self._raise_unless_retriable(error)
            self.resolver.unresolved.note(frozenset(permitted), error)

    def _lookup_backoff(self, me: Membership, took: float) -> float:
        """Seconds until the next lookup of unresolved start positions, after one that ``took`` so many seconds."""
        if not self._blocks_others(me):
            self._failed_lookups.reset()
            return 0.0
        return max(min(took * RESOLVE_BACKOFF_FACTOR, RESOLVE_BACKOFF_MAX), self._failed_lookups.next())

    def _blocks_others(self, me: Membership) -> bool:
        """Whether lookups of start positions delay the other partitions, while no revocation waits for a commit."""
        unresolved = self.tracker.unresolved(me)
        if not unresolved or not self.tracker.positions(me):
            return False
        return not self.tracker.uncommitted() - unresolved

    def _raise_unless_retriable(self, error: GroupSourceError) -> None:
        """Raises an error of a lookup of starts, unless the lookup may succeed later or without some topics."""
        if isinstance(error, RetriableError):
            return
        if isinstance(error, BrokerError) and error.unauthorized_topics:
            self.permissions.record_denied(error.unauthorized_topics)
            return
        # A topic may be deleted after its assignment: the next rebalance revokes it.
        if getattr(error, "error_code", None) != UNKNOWN_TOPIC_OR_PARTITION:
            raise error

    def _renew_if_due(self) -> None:
        """With ``assign``, makes the offsets pending again every :data:`RENEW_EVERY`. The first renewal is at the
        start, because a query may end before that time has passed."""
        if self._renewal is not None and self._renewal.try_acquire():
            self.tracker.renew()

    def restart_topics(self, ids: Mapping[str, str], me: Membership, clients: KafkaClients) -> None:
        """Reads recreated topics, whose current ids are ``ids``, from their earliest offsets. Caller: the query's
        thread.

        Forgets all offsets in the former topics, even of partitions that other members own now. A partition that has
        started in the new topic stays where it is, and one that the group has assigned in the former topic waits for
        the new assignment. If no leader returns the earliest offset, the partition starts at 0. Without any commit in
        the new topic, its next owner would start at the end offset of the former topic.
        """
        positions = self.tracker.positions(me).items()
        former = set()
        for tp, at in positions:
            if at.topic_id != ids.get(tp.topic, at.topic_id):
                former.add(tp)
        partitions = self.tracker.assigned_in(ids, frozenset(former))
        starts = dict.fromkeys(partitions, Start(0, StartRule.RECREATED))
        starts |= self.resolver.starting_offsets.earliest(partitions, clients)
        self.tracker.restart_topics(ids, starts)
        log_starts(self._group_id, starts, start_setting(self._options))
        self.committer.commit(me, clients)

    def rewind(self, offsets: Offsets, epochs: Offsets, before: Owned, me: Membership, clients: KafkaClients) -> None:
        """Rewinds as :meth:`OffsetTracker.rewind` does, and commits the new positions. Caller: the query's thread."""
        self.tracker.rewind(offsets, epochs, before)
        self.committer.commit(me, clients)
