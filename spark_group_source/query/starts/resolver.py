"""Where newly assigned partitions start, by the rules of "Where a partition starts" in ``DESIGN.md``.

:func:`.rules.log_starts` logs the offset and its :class:`.rules.StartRule`. A new reason to start elsewhere is a step
in :meth:`StartOffsetResolver._by_rules`, and a rule with a name for the log.

Once a partition has a position, ``startingOffsets`` plays no part. The planner finds recreated topics and positions
past the end of the log (``data_loss.py``); the task finds positions before the start of the log. Both then apply
``failOnDataLoss``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import raise_final
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.offsets import (
    BatchOffset,
    OffsetRange,
    Partitions,
    PinnedOffsets,
    PinnedStart,
    TopicPartition,
    topics_of,
)
from spark_group_source.options.source_options import SourceOptions, given_start, start_setting
from spark_group_source.query.offset_history import LoggedOffsets
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.starts.callback import starting_offsets_callback
from spark_group_source.query.starts.new_checkpoint import NewCheckpoint
from spark_group_source.query.starts.other_commits import CommitWarnings, warn_if_read_by_others
from spark_group_source.query.starts.pinned import PinnedStarts, with_added
from spark_group_source.query.starts.restored_checkpoint import RestoredCheckpoint
from spark_group_source.query.starts.rules import (
    Commits,
    Start,
    StartRule,
    Starts,
    log_ignored_start,
    log_starts,
    resume_at,
)
from spark_group_source.query.starts.starting_offsets import RESOLVE_TIMEOUT, StartingOffsets
from spark_group_source.query.starts.unresolved import UnresolvedStarts
from spark_group_source.wire.metadata import Topic, ids_of

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The facts from which the rules decide.

    Attributes:
        partitions: the partitions that are to start, without those whose commit is unknown now.
        ids: the ids of their topics, as the coordinator knows them.
        commits: the group's commits.
        logged: the offsets that this query has logged of them.
        resets: the partitions that ``resetOffsetsOnStart`` moves.
        restored: the partitions whose last batches the checkpoint lacks.
        repeats: those of ``restored`` that start where the checkpoint ends.
    """

    partitions: Partitions
    ids: Mapping[str, str]
    commits: Commits
    logged: LoggedOffsets
    resets: Partitions
    restored: Partitions
    repeats: Partitions


class StartOffsetResolver:
    """Resolves start positions and records them in the tracker, for the thread that began the lookup.

    ``unresolved`` logs the partitions whose start is not found yet. ``starting_offsets`` looks up the starts that
    neither a commit nor a logged batch decides.

    ``_replayed`` has the ranges that Spark has just replayed, as :func:`.rules.resume_at` gets them. A partition is
    removed when it starts, because from then on its commits are this query's own.
    """

    def __init__(self, options: SourceOptions, tracker: OffsetTracker, clock: Clock = monotonic) -> None:
        self.unresolved = UnresolvedStarts(options.group.group_id, clock)
        self.starting_offsets = StartingOffsets(options, self.unresolved)
        self._options = options
        self._tracker = tracker
        self._group_id = options.group.group_id
        self._callback = starting_offsets_callback(options.starting_offsets_callback)
        self._restored = RestoredCheckpoint(self._group_id, options.restored_checkpoint)
        self._new_checkpoint = NewCheckpoint(options)
        self._warnings = CommitWarnings(self._group_id)
        self._replayed: dict[TopicPartition, OffsetRange] = {}

    def restore(
        self,
        logged: BatchOffset,
        existing: PinnedOffsets,
        clients: KafkaClients,
        *,
        replayed: bool = False,
        confirmed: bool = True,
    ) -> None:
        """Begins at the last offset in the checkpoint. Caller: the query's thread, before the member starts.

        If ``logged`` is empty the checkpoint is new: ``resetOffsetsOnStart`` applies to the first assignment, and
        ``startingOffsets`` to the partitions ``existing`` now. Both are pinned: the checkpoint keeps them until a batch
        has logged the partition. ``startingOffsets`` also applies to topics and partitions that were added to
        ``subscribe`` or ``assign`` since, because the checkpoint has no offsets of them. Partitions that are created
        later start at earliest, as in Spark's own source, because at latest the query would miss their first records.

        Args:
            existing: the partitions that exist now, as :func:`.latest_at_start.starts_of` returns them.
            replayed: Spark has replayed the batch ``logged``, because an earlier process did not complete it.
            confirmed: whether enough brokers have answered to determine which partitions exist
                (:mod:`.wire.stale_metadata`).

        Raises:
            GroupSourceError: a leader permanently rejects the lookup of an end offset.
        """
        log_ignored_start(self._group_id, logged, given_start(self._options))
        added = existing
        if not logged.is_empty:
            added = self._added(logged, existing)
        offsets = with_added(logged.pinned_starts, self._pinned_now(added, clients, confirmed=confirmed))
        if not logged.is_empty:  # partitions that were added since the first start did not exist then
            self.starting_offsets.confirmed = True
        self._tracker.restore(logged, self._pinned(logged, offsets))
        self._new_checkpoint.restore(logged, existing)
        self._warnings.restore(logged)
        if replayed:
            now = round(time.time() * 1000)
            self._replayed = {read.tp: replace(read, lineage=now) for read in logged.reads()}

    def _pinned_now(self, added: PinnedOffsets, clients: KafkaClients, *, confirmed: bool) -> PinnedOffsets:
        """The starts of these partitions that ``startingOffsets`` pins now."""
        pinned: dict[TopicPartition, PinnedStart] = {}
        for tp, start in self.starting_offsets.pin_latest(added, clients, confirmed=confirmed).items():
            if tp in added:  # another partition was created since latest was looked up, and counts as created later
                pinned[tp] = start
        return pinned

    def _pinned(self, logged: BatchOffset, offsets: PinnedOffsets) -> PinnedStarts:
        """The pinned starts of a query that has logged this offset."""
        if not self._options.reset_offsets_on_start:
            return PinnedStarts(offsets)
        nothing_assigned_yet = not logged.ranges and not logged.resets
        return PinnedStarts(offsets, logged.resets, reset_first_assignment=nothing_assigned_yet)

    def _added(self, logged: BatchOffset, existing: PinnedOffsets) -> PinnedOffsets:
        """Partitions that were added to ``subscribe`` or ``assign`` since the checkpoint was written; none with a
        pattern."""
        known = logged.ranges.keys() | logged.pinned_starts.keys() | logged.resets
        subscription = self._options.group.subscription
        if subscription.partitions:
            return {tp: start for tp, start in existing.items() if tp not in known}
        if subscription.topics:
            known_topics = topics_of(known)
            return {tp: start for tp, start in existing.items() if tp.topic not in known_topics}
        return {}

    @property
    def timeout(self) -> float:
        """Maximum seconds that :meth:`resolve` takes."""
        return RESOLVE_TIMEOUT + self._options.group.offset_fetch_timeout

    def resolve(
        self,
        lookup: Owned,
        topics: Mapping[str, Topic] | RequestFailed,
        me: Membership,
        clients: KafkaClients,
        deadline: Deadline,
    ) -> None:
        """Finds and records where the partitions start.

        Partitions without a leader, or whose commit the coordinator does not return now, stay unresolved.

        Args:
            topics: the metadata of the topics, requested from the coordinator after the lookup began, and before the
                commits, so that each commit belongs to this topic or a later one of the same name.

        Raises:
            DataLoss: the options name an offset that is not in the log.
            OptionError: the options name no starting offset, or the group has other commits.
            CheckpointError: the checkpoint lacks batches of its query, and ``restoredCheckpoint`` is ``fail``.
            GroupSourceError: the group or the leaders do not answer, or reject the request.
        """
        began_at = time.time()
        known = self._known(frozenset(lookup), ids_of(_answered(topics)), me, clients, deadline)
        warn_if_read_by_others(dict(self._replayed), _without(known.restored, known.commits), self._group_id)
        starts = self._by_rules(known, clients, deadline)
        self._restored.check(known.restored, _offsets(starts), known.logged.ranges)
        recorded = self._tracker.record_starts(lookup, starts, known.commits, known.ids, began_at)
        self.unresolved.forget(recorded)
        for tp in recorded:
            self._replayed.pop(tp, None)  # one by one: the other thread may be recording other partitions
        log_starts(self._group_id, recorded, start_setting(self._options))
        self._restored.started(known.restored, _offsets(recorded), known.logged.ranges, known.commits)

    def _known(
        self, partitions: Partitions, ids: Mapping[str, str], me: Membership, clients: KafkaClients, deadline: Deadline
    ) -> KnownOffsets:
        """The offsets that the group has committed and this query has logged of these partitions."""
        commits, unknown = self._committed(partitions, me, clients, deadline)
        partitions = self._tracker.assigned_in(ids, partitions - unknown)
        logged = self._tracker.logged(partitions, ids)
        commits = _without_replaced(commits, logged)
        self._warnings.check(commits, logged.ranges)
        resets = set(partitions & logged.pinned.resets)
        for tp, commit in commits.items():
            if commit.tagged_reset:  # another process has reset it already
                resets.discard(tp)
        restored = self._restored.find(commits, logged) - resets
        repeats = self._restored.to_repeat(restored)
        return KnownOffsets(partitions, ids, commits, logged, frozenset(resets), restored, repeats)

    def _by_rules(self, known: KnownOffsets, clients: KafkaClients, deadline: Deadline) -> Starts:
        """Where the partitions start, by the rules in ``DESIGN.md``.

        The order of the steps is not that of the rules, because each step finds the starts of other partitions: first
        of partitions with a commit or a logged end, then of partitions with neither, then of partitions of recreated
        topics. Only the callback has to come last.
        """
        logged = known.logged
        starts = self._resumed(known.partitions - known.resets, _without(known.repeats, known.commits), logged)
        without_start = known.partitions - starts.keys()
        existing, recreated = without_start - logged.recreated, without_start & logged.recreated
        starts |= self.starting_offsets.find(existing, logged.pinned, clients, deadline)
        starts |= _in_new_lineage(starts, known.resets, StartRule.RESET)
        starts |= _in_new_lineage(starts, known.repeats, StartRule.REPEATED)
        of_recreated = self.starting_offsets.earliest(recreated, clients, deadline)
        starts |= _in_new_lineage(of_recreated, recreated, StartRule.RECREATED)
        return self._moved_by_callback(starts, logged.ranges)

    def _resumed(self, partitions: Partitions, commits: Commits, logged: LoggedOffsets) -> Starts:
        """The starts of those partitions that the group has committed or this query has logged."""
        starts: Starts = {}
        for tp in partitions:
            replayed, given_up = self._replayed.get(tp), logged.given_up.get(tp)
            start = resume_at(commits.get(tp), logged.ranges.get(tp), replayed=replayed, given_up=given_up)
            if start is not None:
                starts[tp] = start
        return starts

    def _moved_by_callback(self, starts: Starts, logged: Mapping[TopicPartition, OffsetRange]) -> Starts:
        """The starts after the user's callback: if it goes back, a new lineage begins."""
        positions = _offsets(starts)
        logged_ends = {tp: read.end for tp, read in logged.items()}
        moved = dict(starts)
        for tp, offset in self._callback(logged_ends, positions).items():
            if offset < positions[tp]:
                moved[tp] = Start(offset, StartRule.CALLBACK, lineage=None)
            elif offset > positions[tp]:
                moved[tp] = Start(offset, StartRule.CALLBACK, starts[tp].lineage)
        return moved

    def _committed(
        self, partitions: Partitions, me: Membership, clients: KafkaClients, deadline: Deadline
    ) -> tuple[Commits, Partitions]:
        """The group's commits of these partitions, and the partitions whose commits the coordinator does not return
        now. Checks those of a new checkpoint on the way.
        """
        unchecked = self._new_checkpoint.unchecked
        failures: dict[TopicPartition, RequestFailed] = {}
        commits = _answered(clients.offsets.committed(partitions | unchecked, deadline, me, failures))
        self._new_checkpoint.check(commits, failures)
        unknown = partitions & failures.keys()
        raise_final(failures[tp] for tp in sorted(unknown))
        if unknown:
            self.unresolved.note(unknown, failures[min(unknown)].reason)
        return {tp: commit for tp, commit in commits.items() if tp in partitions}, unknown


def _without(partitions: Partitions, commits: Commits) -> Commits:
    """The commits, without those of ``partitions``."""
    return {tp: commit for tp, commit in commits.items() if tp not in partitions}


def _without_replaced(commits: Commits, logged: LoggedOffsets) -> Commits:
    """The commits, without those that this query replaces by a new lineage whose first commit is not confirmed yet."""
    followed = {}
    for tp, commit in commits.items():
        if commit != logged.replaced.get(tp):
            followed[tp] = commit
    return followed


def _in_new_lineage(starts: Starts, partitions: Partitions, rule: StartRule) -> Starts:
    """The starts of these partitions in a new lineage, because ``rule`` ignores the group's commits."""
    return {tp: starts[tp]._replace(rule=rule, lineage=None) for tp in partitions & starts.keys()}


def _offsets(starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
    return {tp: start.offset for tp, start in starts.items()}


def _answered(answer: Answer | RequestFailed) -> Answer:
    if not isinstance(answer, RequestFailed):
        return answer
    if answer.error is not None:
        raise answer.error
    raise DeadlineExceeded(f"The lookup at the coordinator failed: {answer.reason}.")
