"""The target of an AvailableNow run: the end offset of every subscribed partition when the run began."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery
from spark_group_source.errors import (
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    RetriableError,
)
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.description import STABLE, GroupDescription
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import EARLIEST, LATEST, BatchOffset, Offsets, Partitions, TopicPartition
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.offset_tracker import UNDECIDED
from spark_group_source.query.tails import SCAN_TIMEOUT, Tail, TailScan
from spark_group_source.query.topics import LOOKUP_TIMEOUT, raise_or_skip_deleted, unreadable
from spark_group_source.text import some
from spark_group_source.wire.leaders import HEALED_BY_NEW_METADATA
from spark_group_source.wire.metadata import partitions_of
from spark_group_source.wire.offset_lookup import list_offsets
from spark_group_source.wire.stale_metadata import EveryBroker, unknown_to_all

log = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Maximum seconds until every partition has returned its end offset: without one the run would not be complete."""

UNKNOWN_TIMEOUT = 5.0
"""How many seconds a topic or partition may be unknown when the run begins: brokers learn of new ones one by one."""

POLL_INTERVALS = (0.1, 1.0)
"""Minimum and maximum seconds between two lookups of the group's commits."""

MAX_LOOK = 5.0
"""Maximum seconds between two lookups that count as time without progress: a batch may lie between them."""

SCAN_AFTER = 5.0
"""Seconds without progress after which the run looks whether what is left has records."""

LOG_INTERVAL = 10.0
"""Seconds between two log lines about what the run waits for."""

_ITSELF = (
    "If one query reads twice with this group id, as in a union or a join, give each read its own. Spark starts the"
    " second read only when the first has ended, and the first waits for the second."
)


class AvailableNowTarget:
    """The target of a run, and whether the group has reached it, by this member or another.

    The run waits as long as the group makes progress, and as long as other members own the rest: one may be in a long
    batch. A dead member is in the group until its session ends. Without progress and without such members the run
    waits for a session and a rebalance: between the two rebalances of a hand-over nobody owns what a batch still reads.
    Without progress it also looks whether records are left at all (:mod:`.tails`).
    Only time between lookups that succeed counts: a batch of this query, or a lost answer, is no lack of progress.
    ``availableNowTimeout`` limits the wait in any case.
    """

    def __init__(
        self,
        clients: KafkaClients,
        settings: GroupSettings,
        membership: Callable[[], Membership],
        options: SourceOptions,
        clock: Clock,
    ) -> None:
        """``membership`` returns that of this query as it is now. ``extended``: the run reads beyond its target."""
        self._cluster = clients.cluster
        self._group_offsets = clients.offsets
        self._settings = settings
        self._membership = membership
        self._read_committed = options.fetch.read_committed
        self._fail_on_data_loss = options.fetch.fail_on_data_loss
        self._timeout = options.available_now_timeout
        self._clock = clock
        self._target: dict[TopicPartition, int] | None = None
        self._limits: dict[TopicPartition, int] = {}
        self._unreached: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._progress_at = clock()
        self._status_lines = LogEvery(LOG_INTERVAL, clock)
        self._warnings = LogEvery(WARN_EVERY, clock)
        self._looked_at: float | None = None
        self._owners: list[str] | None = None
        self._without_owner = 0.0
        self._interval = POLL_INTERVALS[0]
        self._extension_due = self.extended = False
        self._hinted = False
        self._tails = TailScan(clients.cluster.options, clients.cluster.identity, clock)

    def set_once(
        self,
        owned: Partitions = frozenset(),
        readable: Callable[[Partitions], Partitions] = lambda partitions: partitions,
    ) -> None:
        """Takes the end offsets of the logs as the target, on the first call only.

        Partitions that this query has ``owned`` by then exist, even if one broker does not know them. ``readable``
        returns those of some partitions that the run is to read. Retriable errors are retried, up to
        :data:`START_TIMEOUT`.

        Raises:
            DataLoss: a topic or partition was deleted, and ``failOnDataLoss`` is true.
            TopicError: a topic may not be read.
            BrokerUnavailable, DeadlineExceeded: not every partition has returned its end offset in time.
        """
        deadline = Deadline.after(START_TIMEOUT, self._clock)
        unknown_until = deadline.at_most(UNKNOWN_TIMEOUT)
        while self._target is None:
            try:
                ends = self._end_offsets(owned, deadline.at_most(LOOKUP_TIMEOUT), unknown_until)
                may_be_read = readable(frozenset(ends))
                self._target = {tp: end for tp, end in ends.items() if tp in may_be_read}
            except RetriableError as error:
                if deadline.remaining() <= self._interval:
                    raise
                log.warning("group %s: the end of this run cannot be looked up: %s", self._settings.group_id, error)
                self._sleep()
            else:
                self._limits, self._unreached = dict(self._target), dict(self._target)
                self._status_lines.restart()
                self._note_progress()

    def limit(self, end_offsets: Offsets) -> dict[TopicPartition, int]:
        """``end_offsets`` up to the target. Partitions that were added later are not read in this run.

        A run that waits reads on in what it owns: another run that began at the same time may have a later target
        there, and wait in turn for this one. That is no progress towards its own end.
        """
        assert self._target is not None, "set_once() comes first"
        if self._extension_due:
            self._extension_due, self.extended = False, True
            self._limits |= {tp: max(end, self._limits[tp]) for tp, end in end_offsets.items() if tp in self._limits}
        return {tp: min(end, self._limits.get(tp, 0)) for tp, end in end_offsets.items()}

    @property
    def partitions(self) -> Partitions:
        """The partitions of the target."""
        return frozenset(self._target or ())

    def group_is_stable(self) -> bool:
        """Whether all partitions have an owner, as far as the coordinator tells: no rebalance will move any."""
        group = self._describe()
        return group is not None and group.state == STABLE

    def is_reached(self, own: Offsets | None = None) -> bool:
        """Whether the group's commits have reached the target in every partition, or no record lies between.

        Args:
            own: where this query stands in partitions whose commits do not tell, or :data:`UNDECIDED`: the run does
                not end before they reach the target too.

        Raises:
            GroupError: the group's offsets may not be read.
            DeadlineExceeded: no progress for as long as a dead member and a rebalance may take, while no other member
                owns the rest; or for ``availableNowTimeout``.
        """
        known = len(self._unreached)
        own = own or {}
        self._look_at_progress(own)
        if not self._unreached and known < len(self._target or ()):
            # The group may have gone back meanwhile, after a truncation or by a reset: all are looked up again.
            self._unreached = dict(self._target or {})
            self._look_at_progress(own)
        self._check_progress()
        return not self._unreached

    def _look_at_progress(self, own: Offsets) -> None:
        self._progress_at = min(self._progress_at, self._clock())
        deadline = Deadline.after(LOOKUP_TIMEOUT + self._settings.offset_fetch_timeout, self._clock)
        unavailable: dict[TopicPartition, RequestFailed] = {}  # these are unreached, and the others make progress
        committed: dict[TopicPartition, CommittedOffset] | RequestFailed = {}
        if self._unreached:
            committed = self._group_offsets.committed(self._unreached, deadline, unavailable=unavailable)
        looked_before, self._looked_at = self._looked_at, None
        try:
            if isinstance(committed, RequestFailed):
                if committed.error is not None:
                    raise committed.error
                self._warn_without_progress(committed.reason)
            else:
                self._update_progress(committed, own, frozenset(unavailable), deadline)
                self._owners = self._other_owners() if self._unreached else []
                self._looked_at = self._clock()
                if self._owners:
                    self._without_owner = 0.0
                elif self._owners is not None and looked_before is not None:
                    self._without_owner += min(self._looked_at - looked_before, MAX_LOOK)
        except RetriableError as error:
            self._warn_without_progress(error)

    def _warn_without_progress(self, why: object) -> None:
        if self._warnings.try_acquire():
            log.warning("group %s: the group's progress cannot be looked up: %s", self._settings.group_id, why)

    @property
    def unreached(self) -> Offsets:
        """The target of partitions where the group has not reached it yet."""
        return self._unreached

    def lower(self, ends: Offsets) -> None:
        """These logs were truncated before the target: their end is the target now."""
        assert self._target is not None, "set_once() comes first"
        self._tails.forget(ends)
        for offsets in (self._target, self._limits, self._unreached):
            offsets.update({tp: end for tp, end in ends.items() if tp in offsets})

    def leave_out(self, topics: Collection[str]) -> None:
        """The run does not wait for these topics, which may not be read."""
        self._remove({tp for tp in self._unreached if tp.topic in topics})

    def batch_planned(self, batch: BatchOffset) -> None:
        """This query has a batch. Up to the target it is progress until the next lookup, however long it takes."""
        if any(read.tp in self._unreached for read in batch.reads()):
            self._note_progress()
            self._progress_at = math.inf

    def wait(self) -> None:
        """Waits before the next lookup; logs from time to time what the run waits for."""
        if self._status_lines.try_acquire():
            waits_for = some(self._owners) if self._owners else "other members"
            log.info("group %s: the run waits for %s: %s", self._settings.group_id, waits_for, self._status())
            self._extension_due = True
            if not self._hinted:
                self._hinted = True
                log.warning("group %s: %s", self._settings.group_id, _ITSELF)
        self._sleep()

    def _sleep(self) -> None:
        time.sleep(self._interval)
        self._interval = min(self._interval * 2, POLL_INTERVALS[1])

    def _end_offsets(self, owned: Partitions, deadline: Deadline, unknown_until: Deadline) -> dict[TopicPartition, int]:
        """The end offset of every subscribed partition; unknown ones are an error before ``unknown_until``."""
        topics = self._settings.subscription.find(EveryBroker(self._cluster), deadline)
        unknown = {name for name, topic in topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}
        for topic in topics.values():
            if topic.error and topic.name not in unknown:
                error = unreadable(topic.name, topic.error, "Check its partitions and leaders.")
                raise BrokerUnavailable(error.happened) if topic.error in HEALED_BY_NEW_METADATA else error
        partitions = partitions_of(topics.values()) | {tp for tp in owned if tp.topic not in unknown}
        ends, missing = self._look_up(partitions, LATEST, deadline)
        leaderless = partitions - ends.keys() - missing
        deleted = unknown_to_all(self._cluster, {TopicPartition(name, 0) for name in unknown}, deadline)
        if leaderless or len(deleted) < len(unknown) or ((unknown or missing) and not unknown_until.expired()):
            without_end = [*sorted(unknown), *map(str, sorted(leaderless | missing))]
            raise BrokerUnavailable(f"No broker returns the end of {some(without_end)}.")
        raise_or_skip_deleted(unknown, self._fail_on_data_loss)
        raise_or_skip_deleted(missing, self._fail_on_data_loss)
        return ends

    def _update_progress(
        self, committed: Mapping[TopicPartition, CommittedOffset], own: Offsets, hidden: Partitions, deadline: Deadline
    ) -> None:
        """``hidden`` are partitions whose commits the coordinator does not show now: they stay where they were."""
        # The owner of an empty partition may never commit it. Its earliest offset shows that it is empty.
        earliest, missing = self._look_up(self._unreached.keys() - committed.keys(), EARLIEST, deadline)
        raise_or_skip_deleted(missing, self._fail_on_data_loss)
        self._remove(missing)
        looked_up = {tp: commit.offset for tp, commit in committed.items()} | earliest
        progress = self._committed | {tp: offset for tp, offset in looked_up.items() if tp not in hidden}
        progress |= {tp: min(offset, progress.get(tp, 0)) for tp, offset in own.items() if tp in self._unreached}
        if progress != self._committed:
            self._note_progress()
        if self._clock() - self._progress_at > SCAN_AFTER:
            self._scan_tails(progress, committed, deadline)
        # A partition without a leader now is unreached, unless it never held a record.
        self._unreached = {
            tp: end for tp, end in self._unreached.items() if tp in hidden or self._is_left(tp, progress.get(tp, 0))
        }
        # Only these are looked up from here on. That the others are missing in the next lookup is no progress.
        self._committed = {tp: progress[tp] for tp in self._unreached if tp in progress}

    def _is_left(self, tp: TopicPartition, progress: int) -> bool:
        """Whether records of a partition are left up to the target, or may be."""
        end = self._unreached[tp]
        return progress < end and not self._tails.is_empty(tp, progress, end)

    def _scan_tails(
        self, progress: Offsets, committed: Mapping[TopicPartition, CommittedOffset], deadline: Deadline
    ) -> None:
        """Looks for records in what is left of partitions that others own: the commits there do not move."""
        others = self._unreached.keys() - self._membership().owned.keys()
        # Other clients may read committed records only, whatever this query reads. Ours have committed with a tag.
        tagged = {tp for tp, commit in committed.items() if commit.tagged}
        tails = {
            tp: Tail(progress[tp], self._unreached[tp], self._read_committed or tp not in tagged)
            for tp in others & progress.keys()
            if UNDECIDED < progress[tp] < self._unreached[tp]
        }
        if not (due := self._tails.due(tails)):
            return
        begins: Offsets = {}
        try:
            begins, _ = self._look_up(due, EARLIEST, deadline.at_most(SCAN_TIMEOUT))
        except RetriableError as error:  # of partitions without a leader, which must not hide the others' progress
            log.debug("group %s: no scan of what is left: %s", self._settings.group_id, error)
        if due.keys() - begins.keys():
            self._tails.failed()
        self._tails.scan(due, begins)

    def _note_progress(self) -> None:
        self._progress_at, self._interval, self._without_owner = self._clock(), POLL_INTERVALS[0], 0.0

    def _remove(self, deleted: set[TopicPartition]) -> None:
        """The run does not wait for deleted partitions, nor does it read them if they are recreated."""
        assert self._target is not None, "set_once() comes first"
        self._tails.forget(deleted)
        for offsets in (self._target, self._limits, self._unreached, self._committed):
            for tp in deleted:
                offsets.pop(tp, None)

    def _look_up(
        self, partitions: Iterable[TopicPartition], spec: int, deadline: Deadline
    ) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """The offsets that leaders return, and the partitions that do not exist."""
        specs = dict.fromkeys(partitions, spec)
        listed = list_offsets(
            self._cluster, specs, read_committed=self._read_committed, deadline=deadline, partial=True
        )
        return listed.offsets, listed.missing

    def _check_progress(self) -> None:
        waited = self._clock() - self._progress_at
        if self._unreached and self._timeout is not None and waited > self._timeout:
            raise DeadlineExceeded(
                f"The group '{self._settings.group_id}' made no progress towards the end of this run for"
                f" {waited:.0f} s: {self._status()}.",
                f"Check the members that own these partitions, or raise 'availableNowTimeout'. {_ITSELF}",
            )
        timeout = self._settings.session_timeout + self._settings.rebalance_timeout
        if not self._unreached or self._without_owner <= timeout:
            return
        raise DeadlineExceeded(
            f"The group '{self._settings.group_id}' made no progress towards the end of this run for"
            f" {self._without_owner:.0f} s, and no other member owns the rest: {self._status()}.",
            f"Check that these partitions have leaders, and that this query may commit. {_ITSELF}",
        )

    def _other_owners(self) -> list[str] | None:
        """The other members that own what is left, or that may get it by a rebalance; ``None`` if unknown."""
        group = self._describe()
        if group is None or group.members_hidden:
            return None
        # Not by client id: kafka.client.id may give all members the same one.
        me = self._membership().member_id
        others = [member for member in group.members if member.member_id != me]
        if group.state == STABLE:
            others = [member for member in others if member.partitions & self._unreached.keys()]
        return [f"{member.client_id} at {member.host}" for member in others]

    def _describe(self) -> GroupDescription | None:
        """The group's members; ``None`` if the coordinator does not tell."""
        try:
            group = self._group_offsets.describe(Deadline.after(LOOKUP_TIMEOUT, self._clock))
        except GroupSourceError as error:
            log.debug("group %s: its members are unknown: %s", self._settings.group_id, error)
            return None
        return None if isinstance(group, RequestFailed) else group

    def _status(self) -> str:
        unreached = sorted(self._unreached.items())[:10]
        return ", ".join(f"{tp} at {self._stands_at(tp)} of {end}" for tp, end in unreached)

    def _stands_at(self, tp: TopicPartition) -> str:
        committed = self._committed.get(tp)
        if committed is None:
            return "no commit"
        return "an unknown start" if committed == UNDECIDED else str(committed)
