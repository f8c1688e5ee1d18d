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
from spark_group_source.group.commits import CommittedOffset, raise_final
from spark_group_source.group.description import STABLE, GroupDescription
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import (
    EARLIEST,
    LATEST,
    BatchOffset,
    Offsets,
    Partitions,
    TopicPartition,
    without_topics,
)
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.offset_tracker import UNDECIDED
from spark_group_source.query.tails import SCAN_TIMEOUT, Tail, TailScan
from spark_group_source.query.topics import LOOKUP_TIMEOUT, raise_or_skip_deleted, unreadable
from spark_group_source.text import some
from spark_group_source.wire.leaders import HEALED_BY_NEW_METADATA
from spark_group_source.wire.metadata import Topic, partitions_of
from spark_group_source.wire.offset_lookup import ListedOffsets, list_offsets
from spark_group_source.wire.stale_metadata import CONFIRM_TIMEOUT, EveryBroker, topics_unknown_to_all

log = logging.getLogger(__name__)

TARGET_TIMEOUT = 30.0
"""Maximum seconds until every partition has returned its end offset. Without all end offsets, the run would be
incomplete."""

UNKNOWN_TIMEOUT = 5.0
"""How many seconds a topic or partition may be unknown when the run begins: a new topic reaches the brokers one by
one."""

POLL_INTERVALS = (0.1, 1.0)
"""Minimum and maximum seconds between two lookups of the group's commits."""

MAX_LOOK = 5.0
"""Maximum seconds between two lookups that count as time without progress: a batch may lie between them."""

SCAN_AFTER = 5.0
"""Seconds without progress after which the run scans the rest of the partitions for records."""

LOG_INTERVAL = 10.0
"""Seconds between two log lines that say which members the run waits for."""

_ITSELF = (
    "If one query reads twice with this group id, as in a union or a join, give each read its own group id. Spark"
    " starts the second read only when the first has ended, and the first waits for the second."
)


class AvailableNowTarget:
    """The target of a run, and whether the group has reached it, by this member or another.

    The run waits as long as the group makes progress, and as long as other members own the remaining partitions: a
    member may be in a long batch. A dead member stays in the group until its session ends. If there is no progress, and
    no other member owns the remaining partitions, the run waits for a session and a rebalance: between the two
    rebalances of a hand-over, no member owns the partitions that a batch still reads. Without progress, the run also
    scans the remaining partitions for records (:mod:`.tails`). Only time between successful lookups counts: a batch of
    this query, or a lost answer, is no lack of progress. ``availableNowTimeout`` limits the wait in any case.

    ``extended``: whether the run reads beyond its target.
    """

    def __init__(
        self,
        clients: KafkaClients,
        settings: GroupSettings,
        membership: Callable[[], Membership],
        options: SourceOptions,
        clock: Clock,
    ) -> None:
        """``membership`` returns the current membership of this query."""
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
        without_left_out: Callable[[Partitions], Partitions] = lambda partitions: partitions,
    ) -> None:
        """Takes the end offsets of the logs as the target, on the first call only.

        Retriable errors are retried for :data:`TARGET_TIMEOUT`.

        Args:
            owned: the partitions that this query owns. They exist, even if a broker does not know all of them.
            without_left_out: returns those of its argument that the run is to read.

        Raises:
            DataLoss: a topic or partition was deleted, and ``failOnDataLoss`` is true.
            TopicError: a topic may not be read.
            BrokerUnavailable, DeadlineExceeded: not every partition has returned its end offset in time.
        """
        deadline = Deadline.after(TARGET_TIMEOUT, self._clock)
        unknown_until, confirmed_until = deadline.at_most(UNKNOWN_TIMEOUT), deadline.at_most(CONFIRM_TIMEOUT)
        while self._target is None:
            try:
                topics = self._find_topics(deadline.at_most(LOOKUP_TIMEOUT), confirmed_until)
                ends = self._look_up_ends(topics, owned, deadline.at_most(LOOKUP_TIMEOUT), unknown_until)
                to_read = without_left_out(frozenset(ends))
                self._target = {tp: end for tp, end in ends.items() if tp in to_read}
            except RetriableError as error:
                if deadline.remaining() <= self._interval:
                    raise
                log.warning(
                    "group %s: cannot look up the end offsets of this AvailableNow run, will retry: %s",
                    self._settings.group_id,
                    error,
                )
                self.pause()
            else:
                self._limits, self._unreached = dict(self._target), dict(self._target)
                self._status_lines.restart()
                self._note_progress()

    def limit(self, end_offsets: Offsets) -> dict[TopicPartition, int]:
        """``end_offsets`` up to the target. Partitions that were added later are not read in this run.

        A run that waits reads its own partitions beyond the target, because another run that began at the same time may
        have a later target in them and wait for this run. Such a read is no progress towards this run's own end.
        """
        assert self._target is not None, "set_once() comes first"
        if self._extension_due:
            self._extension_due, self.extended = False, True
            for tp, end in end_offsets.items():
                if tp in self._limits:
                    self._limits[tp] = max(end, self._limits[tp])
        return {tp: min(end, self._limits.get(tp, 0)) for tp, end in end_offsets.items()}

    @property
    def partitions(self) -> Partitions:
        """The partitions of the target; none before :meth:`set_once`."""
        if self._target is None:
            return frozenset()
        return frozenset(self._target)

    def group_is_stable(self) -> bool:
        """Whether all partitions have an owner, and no rebalance is moving any; False if the coordinator is silent."""
        group = self._describe()
        if group is None:
            return False
        return group.state == STABLE

    def is_reached(self, own: Offsets | None = None) -> bool:
        """Whether the group's commits have reached the target in every partition, or no record lies between the commit
        and the target.

        Args:
            own: the offsets of this query in partitions whose commits do not show them, or :data:`UNDECIDED`. The run
                does not end before these offsets reach the target too.

        Raises:
            GroupError: the group's offsets may not be read.
            DeadlineExceeded: no progress for as long as a dead member and a rebalance may take, while no other member
                owns the remaining partitions; or no progress for ``availableNowTimeout``.
        """
        if own is None:
            own = {}
        known = len(self._unreached)
        self._look_at_progress(own)
        if not self._unreached and self._target is not None and known < len(self._target):
            # A truncation or a reset may have moved the group back since, so all partitions are looked up again.
            self._unreached = dict(self._target)
            self._look_at_progress(own)
        self._check_progress()
        return not self._unreached

    def _look_at_progress(self, own: Offsets) -> None:
        """Looks up the group's commits, and which members own the partitions that have not reached the target."""
        self._progress_at = min(self._progress_at, self._clock())
        deadline = Deadline.after(LOOKUP_TIMEOUT + self._settings.offset_fetch_timeout, self._clock)
        unavailable: dict[TopicPartition, RequestFailed] = {}  # they count as unreached
        committed: dict[TopicPartition, CommittedOffset] | RequestFailed = {}
        if self._unreached:
            committed = self._group_offsets.committed(self._unreached, deadline, unavailable=unavailable)
        looked_before, self._looked_at = self._looked_at, None
        try:
            if isinstance(committed, RequestFailed):
                if committed.error is not None:
                    raise committed.error
                self._warn_without_progress(committed.reason)
                return
            self._update_progress(committed, own, frozenset(unavailable), deadline)
            self._update_owners(looked_before)
            raise_final(unavailable[tp] for tp in sorted(unavailable))
        except RetriableError as error:
            self._warn_without_progress(error)

    def _update_owners(self, looked_before: float | None) -> None:
        """Looks up which other members own the remaining partitions, and counts the time without such members.

        Args:
            looked_before: when the lookup before this one succeeded, in seconds of the clock; ``None`` if it failed.
        """
        self._owners = []
        if self._unreached:
            self._owners = self._other_owners()
        self._looked_at = self._clock()
        if self._owners is None:
            return
        if self._owners:
            self._without_owner = 0.0
        elif looked_before is not None:
            self._without_owner += min(self._looked_at - looked_before, MAX_LOOK)

    def _warn_without_progress(self, why: object) -> None:
        if self._warnings.try_acquire():
            log.warning(
                "group %s: cannot look up how far the group has committed, will retry: %s", self._settings.group_id, why
            )

    @property
    def unreached(self) -> Offsets:
        """The target of partitions where the group has not reached it yet."""
        return self._unreached

    def lower(self, ends: Offsets) -> None:
        """Lowers the target to the end of each of these logs, which were truncated before it."""
        assert self._target is not None, "set_once() comes first"
        self._tails.forget(ends)
        for offsets in (self._target, self._limits, self._unreached):
            for tp, end in ends.items():
                if tp in offsets:
                    offsets[tp] = end

    def leave_out(self, topics: Collection[str]) -> None:
        """Takes these topics, which may not be read, out of the target."""
        self._remove({tp for tp in self._unreached if tp.topic in topics})

    def batch_planned(self, batch: BatchOffset) -> None:
        """Notes that this query has planned a batch. It counts as progress until the next lookup, however long the
        batch takes.

        A batch that reads only beyond the target does not count.
        """
        if any(read.tp in self._unreached for read in batch.reads()):
            self._note_progress()
            self._progress_at = math.inf

    def wait(self) -> None:
        """Waits before the next lookup. Logs at intervals which partitions the run waits for."""
        if self._status_lines.try_acquire():
            waits_for = "other members"
            if self._owners:
                waits_for = some(self._owners)
            log.info("group %s: the run waits for %s: %s", self._settings.group_id, waits_for, self._status())
            self._extension_due = True
            if not self._hinted:
                self._hinted = True
                log.warning("group %s: the run waits for other members. %s", self._settings.group_id, _ITSELF)
        self.pause()

    def pause(self) -> None:
        """Waits before the next lookup."""
        time.sleep(self._interval)
        self._interval = min(self._interval * 2, POLL_INTERVALS[1])

    def _find_topics(self, deadline: Deadline, confirmed_until: Deadline) -> dict[str, Topic]:
        """The subscribed topics. Until ``confirmed_until``, one broker of several is not enough to know them."""
        every_broker = EveryBroker(self._cluster)
        topics = self._settings.subscription.find(every_broker, deadline)
        if not every_broker.confirmed and not confirmed_until.expired():
            raise BrokerUnavailable("Only one broker says which partitions exist, and its metadata may be old.")
        return topics

    def _look_up_ends(
        self, topics: Mapping[str, Topic], owned: Partitions, deadline: Deadline, unknown_until: Deadline
    ) -> dict[TopicPartition, int]:
        """The end offset of every subscribed partition; unknown ones are an error before ``unknown_until``."""
        unknown = _unknown_topics(topics)
        partitions = partitions_of(topics.values()) | without_topics(owned, unknown)
        found = self._list_offsets(partitions, LATEST, deadline)
        ends, missing = found.offsets, found.missing
        leaderless = partitions - ends.keys() - missing
        known_to_some = unknown - topics_unknown_to_all(self._cluster, unknown, deadline)
        if leaderless or known_to_some or _may_be_new(unknown, missing, unknown_until):
            without_end = [*sorted(unknown), *map(str, sorted(leaderless | missing))]
            raise BrokerUnavailable(f"No broker returns the end of {some(without_end)}.")
        raise_or_skip_deleted(unknown, self._fail_on_data_loss)
        raise_or_skip_deleted(missing, self._fail_on_data_loss)
        return ends

    def _update_progress(
        self, committed: Mapping[TopicPartition, CommittedOffset], own: Offsets, hidden: Partitions, deadline: Deadline
    ) -> None:
        """Updates the group's progress from its commits.

        ``hidden`` are partitions whose commits the coordinator does not return now. They keep their last known
        offsets.
        """
        # The owner of an empty partition may never commit it. Its earliest offset shows that it is empty.
        earliest = self._list_offsets(self._unreached.keys() - committed.keys(), EARLIEST, deadline)
        raise_or_skip_deleted(earliest.missing, self._fail_on_data_loss)
        self._remove(earliest.missing)
        looked_up = {tp: commit.offset for tp, commit in committed.items()} | earliest.offsets
        progress = self._progress(looked_up, own, hidden)
        if progress != self._committed:
            self._note_progress()
        if self._clock() - self._progress_at > SCAN_AFTER:
            self._scan_tails(progress, committed, deadline)
        self._keep_unreached(progress, hidden)

    def _progress(self, looked_up: Offsets, own: Offsets, hidden: Partitions) -> dict[TopicPartition, int]:
        """The group's offset in each partition, or this query's own offset if that is lower."""
        progress = dict(self._committed)
        for tp, offset in looked_up.items():
            if tp not in hidden:
                progress[tp] = offset
        for tp, offset in own.items():
            if tp in self._unreached:
                progress[tp] = min(offset, progress.get(tp, 0))
        return progress

    def _keep_unreached(self, progress: Offsets, hidden: Partitions) -> None:
        """Keeps the partitions that have not reached the target.

        A partition without a leader counts as unreached, unless it never held a record.
        """
        unreached: dict[TopicPartition, int] = {}
        for tp, end in self._unreached.items():
            if tp in hidden or self._is_left(tp, progress.get(tp, 0)):
                unreached[tp] = end
        self._unreached = unreached
        # Only these partitions are looked up from here on. The absence of the others from the next lookup is no
        # progress.
        self._committed = {tp: progress[tp] for tp in unreached if tp in progress}

    def _is_left(self, tp: TopicPartition, progress: int) -> bool:
        """Whether a partition has, or may have, records between the group's commit and the target."""
        end = self._unreached[tp]
        if progress >= end:
            return False
        return not self._tails.is_empty(tp, progress, end)

    def _scan_tails(
        self, progress: Offsets, committed: Mapping[TopicPartition, CommittedOffset], deadline: Deadline
    ) -> None:
        """Looks for records in the rest of partitions that others own and whose commits do not move."""
        due = self._tails.due(self._tails_of_others(progress, committed))
        if not due:
            return
        begins: Offsets = {}
        try:
            begins = self._list_offsets(due, EARLIEST, deadline.at_most(SCAN_TIMEOUT)).offsets
        except RetriableError as error:  # partitions without a leader must not hide the progress of the others
            log.debug(
                "group %s: cannot check whether the remaining partitions have records, will retry: %s",
                self._settings.group_id,
                error,
            )
        if due.keys() - begins.keys():
            self._tails.failed()
        self._tails.scan(due, begins)

    def _tails_of_others(
        self, progress: Offsets, committed: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, Tail]:
        """The offsets after the commits of partitions that other members own."""
        others = self._unreached.keys() - self._membership().owned.keys()
        tails: dict[TopicPartition, Tail] = {}
        for tp in others & progress.keys():
            start, end = progress[tp], self._unreached[tp]
            if not UNDECIDED < start < end:
                continue
            # Clients of another kind may read committed records only, whatever this query reads. Members with this
            # source commit with a tag.
            is_ours = tp in committed and committed[tp].tagged
            tails[tp] = Tail(start, end, self._read_committed or not is_ours)
        return tails

    def _note_progress(self) -> None:
        self._progress_at = self._clock()
        self._interval = POLL_INTERVALS[0]
        self._without_owner = 0.0

    def _remove(self, deleted: set[TopicPartition]) -> None:
        """Takes deleted partitions out of the target. The run does not read them even if they are recreated."""
        assert self._target is not None, "set_once() comes first"
        self._tails.forget(deleted)
        for offsets in (self._target, self._limits, self._unreached, self._committed):
            for tp in deleted:
                offsets.pop(tp, None)

    def _list_offsets(self, partitions: Iterable[TopicPartition], spec: int, deadline: Deadline) -> ListedOffsets:
        """The offsets at ``spec`` that leaders return, and the partitions that do not exist."""
        return list_offsets(
            self._cluster,
            dict.fromkeys(partitions, spec),
            read_committed=self._read_committed,
            deadline=deadline,
            partial=True,
        )

    def _check_progress(self) -> None:
        """Raises DeadlineExceeded if the run has waited for too long."""
        if not self._unreached:
            return
        waited = self._clock() - self._progress_at
        if self._timeout is not None and waited > self._timeout:
            raise DeadlineExceeded(
                f"The group '{self._settings.group_id}' made no progress towards the end of this run for"
                f" {waited:.0f} s: {self._status()}.",
                f"Check the members that own these partitions, or raise 'availableNowTimeout'. {_ITSELF}",
            )
        patience = self._settings.session_timeout + self._settings.rebalance_timeout
        if self._without_owner <= patience:
            return
        raise DeadlineExceeded(
            f"The group '{self._settings.group_id}' made no progress towards the end of this run for"
            f" {self._without_owner:.0f} s, and no other member owns the rest: {self._status()}.",
            f"Check that these partitions have leaders, and that this query may commit. {_ITSELF}",
        )

    def _other_owners(self) -> list[str] | None:
        """The other members that own the remaining partitions, or may get them in a rebalance; ``None`` if unknown."""
        group = self._describe()
        if group is None or group.members_hidden:
            return None
        # Members are not distinguished by client id, because kafka.client.id may give all members the same one.
        me = self._membership().member_id
        owners: list[str] = []
        for member in group.members:
            may_get_partitions = group.state != STABLE
            if member.member_id != me and (may_get_partitions or member.partitions & self._unreached.keys()):
                owners.append(f"{member.client_id} at {member.address}")
        return owners

    def _describe(self) -> GroupDescription | None:
        """The group's members; ``None`` if the coordinator does not describe the group."""
        try:
            group = self._group_offsets.describe(Deadline.after(LOOKUP_TIMEOUT, self._clock))
        except GroupSourceError as error:
            log.debug("group %s: cannot look up the group's members: %s", self._settings.group_id, error)
            return None
        if isinstance(group, RequestFailed):
            return None
        return group

    def _status(self) -> str:
        unreached = sorted(self._unreached.items())[:10]
        return ", ".join(f"{tp} at {self._stands_at(tp)} of {end}" for tp, end in unreached)

    def _stands_at(self, tp: TopicPartition) -> str:
        committed = self._committed.get(tp)
        if committed is None:
            return "no commit"
        if committed == UNDECIDED:
            return "an unknown start"
        return str(committed)


def _unknown_topics(topics: Mapping[str, Topic]) -> set[str]:
    """The topics that no broker knows.

    Raises:
        BrokerUnavailable: another topic has an error that new metadata may heal.
        TopicError: another topic has an error that does not heal.
    """
    unknown: set[str] = set()
    for name, topic in topics.items():
        if not topic.error:
            continue
        if topic.error == UNKNOWN_TOPIC_OR_PARTITION:
            unknown.add(name)
            continue
        error = unreadable(topic.name, topic.error, "Check its partitions and leaders.")
        if topic.error in HEALED_BY_NEW_METADATA:
            raise BrokerUnavailable(error.happened)
        raise error
    return unknown


def _may_be_new(unknown: set[str], missing: set[TopicPartition], unknown_until: Deadline) -> bool:
    """Whether there are unknown topics or partitions that the brokers may not have learned of yet."""
    if not unknown and not missing:
        return False
    return not unknown_until.expired()
