"""A query's share of its group: where each partition stands, and what the group has been told of it.

Two threads meet here, the member's and the query's. Each brings its own :class:`Coordinator` and cluster, so that no
socket is shared; the ledger is guarded by one lock, held for no longer than it takes to read or write it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_group_source.bounds import Committed, Earliest, Place
from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION, describe
from spark_group_source.errors import CommitFailed, DataLoss, DeadlineExceeded, GroupSourceError, OptionError
from spark_group_source.fetch.positions import log_offsets
from spark_group_source.group.commits import MARK, Ledger, marked, resume_at
from spark_group_source.group.coordinator import Coordinator
from spark_group_source.group.counters import Counters
from spark_group_source.group.state import Membership, Partitions, Refused
from spark_group_source.group.verdicts import Verdict, denied, verdict
from spark_group_source.modes import stream_start
from spark_group_source.offsets import TopicPartition, names
from spark_group_source.option_table import SourceOptions
from spark_group_source.rebalance_callback import rebalance_callback
from spark_group_source.resolution import resolve
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT = 10.0
"""Most seconds that leaders have to tell start positions, after the group has told its offsets; what is not found is
looked for again."""

SILENT_PART = 0.5
"""Part of a session that finding and committing start positions may take on the member's thread, which does not
heartbeat meanwhile: the first heartbeat after it still has half a session to arrive."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Access:
    """One thread's way to the group and the logs."""

    cluster: Cluster
    coordinator: Coordinator


class Share:
    """Positions and commits of the partitions a query owns. Is the member's listener."""

    def __init__(
        self,
        options: SourceOptions,
        member_side: Access,
        facts: Mapping[str, str] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        """``facts`` stand in the metadata of commits where ``commitMetadata`` is on.

        ``rebalanced_at`` is when the present generation began, in monotonic seconds.
        """
        self.counters = Counters()
        self.rebalanced_at: float | None = None
        self._options = options
        self._clock = clock
        self._retry_at = float("-inf")
        self._group_id = options.group_id
        self._callback = rebalance_callback(options.rebalance_callback)
        self._resetting = False
        self._existing: Partitions = frozenset()
        self._member_side = member_side
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._owned: set[TopicPartition] = set()
        self._resolving: set[TopicPartition] = set()
        self._anew: set[TopicPartition] = set()
        self._takings = 0
        # Held while a commit is under way: two at once could arrive in the wrong order and move offsets back.
        self._one_commit = threading.Lock()
        self._failed_in_a_row = 0
        self._facts = dict(facts or {}) if options.commit_metadata else None

    def gained(self, partitions: Partitions, me: Membership) -> None:
        """Finds where newly owned partitions start, and commits it. Caller: the member's thread."""
        with self._lock:
            self._owned |= partitions
        self.resolve(partitions, me, self._member_side, self._between_heartbeats())

    def heard(self, me: Membership) -> None:
        """Tries again what failed when partitions were gained: the query may be busy. Caller: the member's thread."""
        with self._lock:
            unstarted = self._ledger.unstarted()
        if self.unresolved(me) or unstarted & me.owned.keys():
            self.mend(me, self._member_side, self._between_heartbeats())

    def _between_heartbeats(self) -> Deadline:
        return Deadline.after(self._options.session_timeout * SILENT_PART)

    def joining(self) -> None:
        """This member asks to join. Caller: the member's thread."""
        self.counters.joins += 1

    def rebalanced(self) -> None:
        """This member is in a new generation. Caller: the member's thread."""
        self.counters.rebalances += 1
        self.rebalanced_at = self._clock()

    def revoked(self, partitions: Partitions, late: Partitions) -> None:
        """Forgets partitions given up. Caller: the member's thread."""
        log.info("group %s: gave up %s", self._group_id, names(partitions))
        self.counters.handed_over += len(partitions)
        self.counters.handed_over_late += len(late)
        if late:
            log.warning(
                "group %s: the batch that reads %s did not end within the hand-over time; its next owner repeats it."
                " Raise kafka.max.poll.interval.ms or make batches smaller with maxOffsetsPerTrigger.",
                self._group_id,
                names(late),
            )
        self._dropped(partitions)

    def lost(self, partitions: Partitions, why: str) -> None:
        """Forgets partitions that were taken away. Caller: the member's thread."""
        log.warning("group %s: lost %s: %s", self._group_id, names(partitions), why)
        self.counters.lost += len(partitions)
        self._dropped(partitions)

    def _dropped(self, partitions: Partitions) -> None:
        with self._lock:
            self._takings += 1
            self._owned -= partitions
            self._anew -= partitions
            self._ledger.dropped(partitions)

    def restore(self, logged: Offsets, existing: Partitions) -> None:
        """Begins where the checkpoint stands. Caller: the query, before the member starts.

        With nothing ``logged`` the checkpoint is new: ``resetOffsetsOnStart`` applies to the first share, and
        ``startingOffsets`` to the partitions ``existing`` now. What comes into being later is read from its beginning,
        as by Spark's own source: a query that starts at the latest offsets must not miss the first records of a
        partition that was added while it runs.
        """
        with self._lock:
            self._ledger.logged.update(logged)
        self._resetting = self._options.reset_offsets_on_start and not logged
        self._existing = frozenset() if logged else existing

    def positions(self, me: Membership) -> dict[TopicPartition, int]:
        """Next offset to plan of each partition that may be read. Caller: the query."""
        readable = me.readable
        with self._lock:
            return {tp: at for tp, at in self._ledger.positions.items() if tp in readable}

    def planned(self, ends: Offsets) -> None:
        """Spark is given a batch up to these ends. Caller: the query."""
        with self._lock:
            self._ledger.planned(ends)

    def replayed(self, ends: Offsets) -> None:
        """Spark reads a batch up to these ends that was logged by an earlier process. Caller: the query."""
        with self._lock:
            self._ledger.replayed(ends)

    def completed(self, ends: Offsets) -> None:
        """Spark has completed the batch with these ends. Caller: the query."""
        self.counters.batches += 1
        with self._lock:
            self._ledger.completed(ends)

    def unresolved(self, me: Membership) -> Partitions:
        """Partitions owned whose start could not be found yet. Caller: the query."""
        with self._lock:
            return frozenset((me.readable.keys() & self._owned) - self._ledger.positions.keys() - self._resolving)

    def mend(self, me: Membership, access: Access, deadline: Deadline | None = None) -> None:
        """Tries again what failed, start positions and commits, ``groupCommit.retryIntervalMs`` after the last try.

        Caller: both threads; what one of them tries, the other does not.
        """
        unresolved = self.unresolved(me)
        with self._lock:
            if self._clock() < self._retry_at or not (unresolved or self._ledger.pending()):
                return
            self._retry_at = self._clock() + self._options.commit_retry_interval
        if unresolved:
            self.resolve(unresolved, me, access, deadline)  # and commits
        else:
            self.commit(me, access, deadline)
        with self._lock:
            self._retry_at = self._clock() + self._options.commit_retry_interval

    def resolve(self, partitions: Partitions, me: Membership, access: Access, deadline: Deadline | None = None) -> None:
        """Finds where partitions start, and commits that, so that a crash before their first batch skips nothing.

        What cannot be found now is logged, and is :meth:`unresolved` for another try. With a ``deadline`` all of it is
        over by then.
        """
        deadline = deadline or Deadline.after(self._resolve_timeout + self._options.commit_timeout)
        with self._lock:
            # What was taken away since the caller's snapshot would keep a position that is old when it comes back.
            mine = (partitions & self._owned) - self._ledger.positions.keys() - self._resolving
            takings = self._takings
            self._resolving |= mine
        try:
            if mine:
                # The last third is the commit's: what was found by then is not to wait for the query's next try.
                self._resolve(
                    mine, takings, access, deadline.at_most(min(self._resolve_timeout, deadline.remaining() * 2 / 3))
                )
        except GroupSourceError as error:
            # A topic may be deleted between its assignment and now: the next rebalance takes it away.
            if not error.retriable and getattr(error, "errno", None) != UNKNOWN_TOPIC_OR_PARTITION:
                raise
            log.warning("group %s: no start position for %s: %s", self._group_id, names(mine), error)
        finally:
            with self._lock:
                self._resolving -= mine
        self.commit(me, access, deadline)

    @property
    def _resolve_timeout(self) -> float:
        return RESOLVE_TIMEOUT + self._options.offset_fetch_timeout

    def _resolve(self, partitions: Partitions, takings: int, access: Access, deadline: Deadline) -> None:
        committed = access.coordinator.committed(partitions, deadline)
        if isinstance(committed, Refused):
            raise committed.error or DeadlineExceeded(f"The committed offsets cannot be read: {committed.why}.")
        if self._resetting:
            log.info("group %s: resetOffsetsOnStart moves %s", self._group_id, names(partitions))
            committed = {}
        with self._lock:
            logged = {tp: self._ledger.logged.get(tp) for tp in partitions}
            anew = self._anew & partitions
        # The group's commit of a topic made anew is one in the old topic.
        committed = {tp: each for tp, each in committed.items() if tp not in anew}
        unknown = frozenset(tp for tp in partitions if tp not in committed and logged[tp] is None)
        existing = self._existing - anew
        starts = self._starts_without_commit(unknown & existing, access, deadline)
        starts |= self._beginnings(unknown - existing - anew, access, deadline)
        starts |= self._starts(unknown & anew, access, deadline, Earliest())
        silent = unknown - starts.keys()
        if silent:
            log.warning("group %s: no start position for %s: no leader tells it", self._group_id, names(silent))
        positions = {tp: resume_at(committed.get(tp), logged[tp], starts.get(tp)) for tp in partitions - silent}
        moved = self._callback(logged, positions)
        with self._lock:
            if takings != self._takings:
                # Some may have been taken away meanwhile, and be moved by their next owner: all are asked for again.
                return
            for tp, position in positions.items():
                # A position that was set anew is committed even where the group has a further one.
                found = None if tp in moved else committed.get(tp)
                self._ledger.gained(tp, found, moved.get(tp, position))
            self._anew -= positions.keys()
        self._resetting = False

    def _starts_without_commit(
        self, partitions: Partitions, access: Access, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        at = stream_start(self._options)
        if isinstance(at, Committed):
            if at.otherwise is None:
                raise OptionError(
                    f"The group '{self._group_id}' has no committed offset of {names(partitions)}, and"
                    " 'startingOffsetsFallback' is fail.",
                    "Commit some (kafka-consumer-groups --reset-offsets), or set the option to earliest or latest.",
                )
            at = at.otherwise
        return self._starts(partitions, access, deadline, at)

    def _beginnings(self, partitions: Partitions, access: Access, deadline: Deadline) -> dict[TopicPartition, int]:
        """Where partitions begin that came into being while nobody read them.

        Raises:
            DataLoss: that is not offset 0: what came before was deleted unread, and ``failOnDataLoss`` is true.
        """
        starts = self._starts(partitions, access, deadline, Earliest())
        late = {tp: at for tp, at in starts.items() if at > 0}
        if not late:
            return starts
        gaps = ", ".join(f"{tp} at offset {at}" for tp, at in sorted(late.items())[:20])
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"Partitions that are new to the group '{self._group_id}' do not begin at offset 0: {gaps}.",
                "What came before was deleted unread. To go on without it set failOnDataLoss to false, or commit where"
                " to start (kafka-consumer-groups --reset-offsets).",
            )
        log.warning(
            "group %s: new partitions do not begin at offset 0: %s; they are read from there, as failOnDataLoss is"
            " false",
            self._group_id,
            gaps,
        )
        return starts

    def start_over(self, topics: Collection[str], me: Membership, access: Access) -> None:
        """Reads topics made anew from the beginning of their logs, whatever was read or committed. Caller: the query.

        What this query logged of their partitions means nothing any more, also of those that others own now. Where
        nobody tells the beginning now, it is :meth:`unresolved`, and the group's commit is passed over then as well.
        """
        partitions = frozenset(tp for tp in me.readable if tp.topic in topics)
        try:
            starts = self._starts(partitions, access, Deadline.after(RESOLVE_TIMEOUT), Earliest())
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("group %s: no start position for %s: %s", self._group_id, names(partitions), error)
            starts = {}
        with self._lock:
            self._takings += 1  # what the other thread is about to find is a position in the old topic
            self._ledger.forget(topics)
            mine = partitions & self._owned
            self._anew |= mine - starts.keys()
            for tp in mine & starts.keys():
                self._ledger.gained(tp, None, starts[tp])
        self.commit(me, access)

    def go_back(self, ends: Offsets, me: Membership, access: Access) -> None:
        """Goes on at these offsets, which lie before what was read and committed. Caller: the query."""
        with self._lock:
            mine = ends.keys() & self._owned
            self._ledger.dropped(mine)
            for tp in mine:
                self._ledger.logged[tp] = ends[tp]
                self._ledger.gained(tp, None, ends[tp])
        self.commit(me, access)

    def _starts(
        self, partitions: Collection[TopicPartition], access: Access, deadline: Deadline, at: Place
    ) -> dict[TopicPartition, int]:
        def ask(wanted: Offsets) -> Offsets:
            found = log_offsets(
                access.cluster,
                wanted,
                read_committed=self._options.read_committed,
                deadline=deadline,
                missing=set(),  # those are left out, and stay unresolved
            )
            return {tp: each.offset for tp, each in found.items()}

        return resolve(at, partitions, ask, self._options.fail_on_data_loss)

    def uncommitted(self) -> Partitions:
        """Partitions with completed work that the group has not been told of. Caller: the query."""
        with self._lock:
            return frozenset(self._ledger.pending())

    def commit(self, me: Membership, access: Access, deadline: Deadline | None = None) -> bool:
        """Commits what is completed of what ``me`` owns, within ``groupCommit.timeoutMs``; whether nothing is left.

        A failure is logged, and what failed is part of the next commit; so is what was not sent before ``deadline``,
        because the other thread's commit was still under way.

        Raises:
            CommitFailed: it has failed too often in a row, and ``onCommitFailure`` is ``fail``.
            AuthenticationFailed, GroupError: this client may not commit, or is not let in any more.
        """
        most = self._options.commit_timeout
        deadline = deadline.at_most(most) if deadline else Deadline.after(most)
        if not self._one_commit.acquire(timeout=deadline.remaining()):
            return False
        try:
            with self._lock:
                pending = {tp: offset for tp, offset in self._ledger.pending().items() if tp in me.owned}
            return not pending or self._send(pending, self._metadata(me), me, access, deadline)
        finally:
            self._one_commit.release()

    def _send(self, pending: Offsets, metadata: str, me: Membership, access: Access, deadline: Deadline) -> bool:
        answer = access.coordinator.commit(me, pending, metadata, deadline)
        with self._lock:
            self._ledger.confirmed(answer.confirmed)
        if answer.refused is not None:
            if answer.refused.error is not None and denied(answer.refused.error):
                raise answer.refused.error
            self._failed(pending, answer.refused.why)
            return False
        self._failed_in_a_row = 0
        self.counters.commits += 1
        too_long = {tp: pending[tp] for tp, errno in answer.errors.items() if verdict(errno) is Verdict.SHORTEN}
        if too_long and metadata:
            return self._send(too_long, self._shorter(metadata), me, access, deadline)
        for tp, errno in answer.errors.items():
            log.warning("group %s: %s is not committed: %s", self._group_id, tp, describe(errno))
        with self._lock:
            self._ledger.uncommittable(answer.errors)
        return True

    def _metadata(self, me: Membership) -> str:
        if self._facts is None:
            return MARK
        now = {"member": me.member_id, "generation": me.generation, "batches": self.counters.batches}
        return marked(self._facts | now)

    def _shorter(self, metadata: str) -> str:
        if metadata == MARK:
            return ""
        log.warning("group %s: commitMetadata is too long for the brokers and left out from now on", self._group_id)
        self._facts = None
        return MARK

    def _failed(self, pending: Offsets, why: str) -> None:
        self.counters.failed_commits += 1
        self._retry_at = self._clock() + self._options.commit_retry_interval
        self._failed_in_a_row += 1
        if self._options.on_commit_failure != "fail" or self._failed_in_a_row <= self._options.commit_retries:
            log.warning("group %s: a commit failed and is tried again: %s", self._group_id, why)
            return
        raise CommitFailed(
            f"The offsets of {names(frozenset(pending))} could not be committed to group '{self._group_id}' in"
            f" {self._failed_in_a_row} tries: {why}.",
            "Look at the group's coordinator, raise groupCommit.numRetries, or set onCommitFailure to warn.",
        )
