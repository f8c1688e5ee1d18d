"""Where newly assigned partitions start. A batch that Spark replays keeps its own ranges. For the batch after it,
:meth:`StartOffsetResolver.resolve` applies to each partition, in this order:

1. **A recreated topic**: if this lookup finds the topic's new id, the logged end, pinned start and reset are dropped.
2. **A reset**: ``resetOffsetsOnStart`` drops the group's commit. It applies to the first assignment of a new checkpoint
   only. A commit that another process wrote for this reset stays.
3. **The group's commit or the checkpointed end offset**, whichever has the later lineage, or the further one of the
   same lineage (:func:`.rules.resume_at`; the table of cases is under "Lineages" in ``DESIGN.md``).
4. Without either, a **starting offset**:
   a. for partitions that existed when the query first started, and those of topics or partitions that were added to the
      options since: what ``latest`` was then (pinned, or found by ``latest_at_start.py`` if the leader did not answer
      then), or another ``startingOffsets``, looked up now;
   b. for other partitions that were added since: earliest. If that is above 0, ``failOnDataLoss`` applies;
   c. for a recreated topic: earliest.
5. **``startingOffsetsCallback``** may move any of these.

If the checkpoint lacks batches of its own query, ``restoredCheckpoint=repeat`` drops the group's commit as well, and
``fail`` ends the query after rule 5 (``restored_checkpoint.py``).

:func:`.rules.log_starts` logs the offset and its :class:`.rules.StartRule`. Once a partition has a position,
``startingOffsets`` plays no part. The planner finds recreated topics and positions past the end of the log
(``data_loss.py``); the task finds positions before the start of the log. Both then apply ``failOnDataLoss``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import DeadlineExceeded, OptionError, RetriableError, raise_or_warn
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.offsets import (
    BatchOffset,
    OffsetRange,
    Offsets,
    Partitions,
    PinnedOffsets,
    PinnedStart,
    TopicPartition,
)
from spark_group_source.options.offset_specs import (
    Earliest,
    FromCommitted,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    StartSpec,
)
from spark_group_source.options.source_options import SourceOptions, stream_start
from spark_group_source.query.offset_history import LoggedOffsets
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.start_specs import resolve_spec
from spark_group_source.query.starts.callback import starting_offsets_callback
from spark_group_source.query.starts.latest_at_start import LatestAtStart
from spark_group_source.query.starts.other_commits import check_prior_commits, warn_if_read_by_others
from spark_group_source.query.starts.pinned import PinnedStarts
from spark_group_source.query.starts.restored_checkpoint import RestoredCheckpoint
from spark_group_source.query.starts.rules import Commits, Start, StartRule, Starts, log_starts, resume_at
from spark_group_source.query.starts.unresolved import UnresolvedStarts
from spark_group_source.text import names, some
from spark_group_source.wire.offset_lookup import list_offsets

log = logging.getLogger(__name__)


Answer = TypeVar("Answer")


RESOLVE_TIMEOUT = 10.0
"""Maximum seconds for the leaders to return start positions, after the commits. The others are looked up again."""

MAX_CLOCK_SKEW = 60.0
"""Seconds by which a lineage may lie in the future without a warning."""


class StartOffsetResolver:
    """Resolves start positions and records them in the tracker, for the thread that began the lookup.

    ``unresolved`` logs those that are not found yet.

    ``_replayed`` are the ranges that Spark has just read again, in the lineage of that moment (:func:`resume_at`), of
    partitions that have not started since: from there on their commits are this query's own.
    """

    def __init__(self, options: SourceOptions, tracker: OffsetTracker, clock: Clock = monotonic) -> None:
        self.unresolved = UnresolvedStarts(options.group.group_id, clock)
        self._options = options
        self._tracker = tracker
        self._group_id = options.group.group_id
        self._callback = starting_offsets_callback(options.starting_offsets_callback)
        self._latest: dict[TopicPartition, PinnedStart] | None = None
        self._replayed: dict[TopicPartition, OffsetRange] = {}
        self._checkpoint_without_group = False
        self._warned_of_clock = False
        self._restored = RestoredCheckpoint(self._group_id, options.restored_checkpoint)
        self._confirmed, self._began_at = True, 0
        self._unchecked_commits: Partitions | None = None

    def restore(
        self,
        logged: BatchOffset,
        existing: PinnedOffsets,
        clients: KafkaClients,
        *,
        replayed: bool = False,
        confirmed: bool = True,
    ) -> None:
        """Begins where the checkpoint stands. Caller: the query, before the member starts.

        If ``logged`` is empty the checkpoint is new: ``resetOffsetsOnStart`` applies to the first assignment, and
        ``startingOffsets`` to the partitions ``existing`` now. Both are pinned, and the checkpoint keeps the rest of
        them. The same holds for topics and partitions that were added to ``subscribe`` or ``assign`` since, of which
        the checkpoint knows nothing. Partitions that are created later start at earliest, as in Spark's own source: at
        latest the query would miss their first records.

        Args:
            existing: the partitions of now, as :func:`.latest_at_start.starts_of` returns them.
            replayed: Spark has replayed the batch ``logged``, because an earlier process did not complete it.
            confirmed: whether enough brokers have said which partitions exist (:mod:`.wire.stale_metadata`).

        Raises:
            GroupSourceError: a leader permanently rejects the lookup of an end offset.
        """
        reset = self._options.reset_offsets_on_start
        added = existing if logged.is_empty else self._added(logged, existing)
        if logged.is_empty:
            self._unchecked_commits = frozenset() if reset else frozenset(existing)
        latest = self.pin_latest(added, clients, confirmed=confirmed)
        self._confirmed |= not logged.is_empty  # what was added since the first start did not exist then
        # A partition that was created since latest was looked up is one that is created later.
        offsets = {**logged.pinned_starts, **{tp: start for tp, start in latest.items() if tp in added}}
        nothing_assigned_yet = not (logged.ranges or logged.resets)
        pinned = PinnedStarts(offsets, logged.resets if reset else frozenset(), reset and nothing_assigned_yet)
        self._tracker.restore(logged, pinned)
        now = round(time.time() * 1000)
        self._replayed = {read.tp: replace(read, lineage=now) for read in (logged.reads() if replayed else ())}
        self._checkpoint_without_group = bool(logged.ranges) and not logged.group

    def _added(self, logged: BatchOffset, existing: PinnedOffsets) -> PinnedOffsets:
        """Partitions that were added to ``subscribe`` or ``assign`` since; a pattern stays as it was."""
        known = logged.ranges.keys() | logged.pinned_starts.keys() | logged.resets
        subscription, topics = self._options.group.subscription, {tp.topic for tp in known}
        if subscription.partitions:
            return {tp: start for tp, start in existing.items() if tp not in known}
        return {tp: start for tp, start in existing.items() if subscription.topics and tp.topic not in topics}

    def pin_latest(self, existing: PinnedOffsets, clients: KafkaClients, *, confirmed: bool = True) -> PinnedOffsets:
        """The latest offsets of those partitions for which ``startingOffsets`` means latest, looked up once.

        Other values of the option do not change with time. The lookup covers partitions that this query owns only
        later, so that it misses no record in between. Of a partition whose leader does not answer, the result keeps
        what shows later where its log ended. Caller: the query.

        ``confirmed``: as in :meth:`restore`. What a later call finds existed at the first one too, unless that one was
        confirmed.
        """
        spec = _without_commit(stream_start(self._options))
        latest = frozenset(tp for tp in existing if _is_latest(spec, tp))
        if self._latest is None:
            self._began_at = round(time.time() * 1000)
            self._latest = self._pinned(existing, latest, clients)
        elif not self._confirmed:
            self._latest = self._found_late(existing, latest) | self._latest
        self._confirmed = confirmed
        return self._latest

    def _pinned(
        self, existing: PinnedOffsets, latest: Partitions, clients: KafkaClients
    ) -> dict[TopicPartition, PinnedStart]:
        deadline = Deadline.after(RESOLVE_TIMEOUT)
        found = self._look_up(Latest(), StartRule.STARTING_OFFSETS, latest, clients, deadline) if latest else {}
        to_pin = {tp: at if tp in latest else PinnedStart(at.topic_id) for tp, at in existing.items()}
        return {**PinnedStarts(to_pin).pin(found).offsets}

    def _found_late(self, existing: PinnedOffsets, latest: Partitions) -> dict[TopicPartition, PinnedStart]:
        """The starts of these partitions as of the first lookup, which may not have seen them."""
        return {
            tp: PinnedStart(at.topic_id, since=self._began_at if tp in latest else 0) for tp, at in existing.items()
        }

    def forget_latest(self) -> None:
        """Looks the latest offsets up again: another cluster returned them. Caller: the query, before the start."""
        self._latest = None

    @property
    def timeout(self) -> float:
        """Maximum seconds that :meth:`resolve` takes."""
        return RESOLVE_TIMEOUT + self._options.group.offset_fetch_timeout

    def resolve(self, lookup: Owned, me: Membership, clients: KafkaClients, deadline: Deadline) -> None:
        """Records where the partitions start, by the rules above.

        Those without a leader, or whose commit the coordinator does not return now, stay unresolved.

        Raises:
            DataLoss: the options name an offset that is not in the log.
            OptionError: the options name no starting offset, or the group has other commits.
            CheckpointError: the checkpoint lacks batches of its query, and ``restoredCheckpoint`` is ``fail``.
            GroupSourceError: the group or the leaders do not answer, or reject the request.
        """
        partitions, began_at = frozenset(lookup), time.time()
        # First, and as the coordinator knows them: a commit is of this topic or a later one.
        ids = _answered(clients.offsets.topic_ids({tp.topic for tp in partitions}, deadline))
        commits, unknown = self._committed(partitions, me, clients, deadline)
        partitions = self._tracker.assigned_in(ids, partitions - unknown)
        logged = self._tracker.logged(partitions, ids)
        commits = {tp: commit for tp, commit in commits.items() if commit != logged.replaced.get(tp)}
        resets = (partitions & logged.pinned.resets) - {tp for tp, commit in commits.items() if commit.tagged_reset}
        self._warn_of_another_group(commits, logged.ranges)
        self._warn_of_wrong_clock([*commits.values(), *logged.ranges.values()])
        restored = self._restored.find(commits, logged) - resets
        repeats = self._restored.to_repeat(restored)
        warn_if_read_by_others(dict(self._replayed), _without(restored, commits), self._group_id)
        starts = self._resumed(partitions - resets, _without(repeats, commits), logged)
        without_start = partitions - starts.keys()
        starts |= self._starting_offsets(without_start - logged.recreated, logged.pinned, clients, deadline)
        starts |= _in_new_lineage(starts, resets, StartRule.RESET)
        starts |= _in_new_lineage(starts, repeats, StartRule.REPEATED)
        of_new = self._look_up(Earliest(), StartRule.RECREATED, without_start & logged.recreated, clients, deadline)
        starts |= {tp: start._replace(lineage=None) for tp, start in of_new.items()}
        starts = self._moved_by_callback(starts, logged.ranges)
        self._restored.check(restored, _offsets(starts), logged.ranges)
        recorded = self._tracker.record_starts(lookup, starts, commits, ids, began_at)
        self.unresolved.forget(recorded)
        for tp in recorded:
            self._replayed.pop(tp, None)  # one by one: the other thread may be recording other partitions
        log_starts(self._group_id, recorded)
        self._restored.started(restored, _offsets(recorded), logged.ranges, commits)

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
        positions = {tp: start.offset for tp, start in starts.items()}
        for tp, offset in self._callback({tp: read.end for tp, read in logged.items()}, positions).items():
            if offset != positions[tp]:
                lineage = None if offset < positions[tp] else starts[tp].lineage
                starts[tp] = Start(offset, StartRule.CALLBACK, lineage)
        return starts

    def _committed(
        self, partitions: Partitions, me: Membership, clients: KafkaClients, deadline: Deadline
    ) -> tuple[Commits, Partitions]:
        """The group's commits of these partitions, and those of which the coordinator does not return any now.

        With the first assignment of a new checkpoint, this also checks the commits of partitions that others own. The
        query may get these later, and then nothing shows whether a commit is from before.
        """
        unchecked = self._unchecked_commits or frozenset()
        failures: dict[TopicPartition, RequestFailed] = {}
        commits = _answered(clients.offsets.committed(partitions | unchecked, deadline, me, failures))
        if unchecked:
            check_prior_commits(stream_start(self._options), commits, self._group_id)
        self._unchecked_commits = (unchecked & failures.keys()) or None
        unknown = partitions & failures.keys()
        self.unresolved.note(unknown, next((failures[tp].reason for tp in sorted(unknown)), ""))
        return {tp: commit for tp, commit in commits.items() if tp in partitions}, unknown

    def _starting_offsets(
        self, partitions: Partitions, pinned: PinnedStarts, clients: KafkaClients, deadline: Deadline
    ) -> Starts:
        """The starts of partitions without a commit or a checkpointed end offset, as far as leaders answer."""
        existed = partitions & pinned.offsets.keys()
        starts = {
            tp: Start(at.offset, StartRule.STARTING_OFFSETS, epoch=at.epoch)
            for tp, at in pinned.offsets.items()
            if at.offset is not None and tp in existed
        }
        waiting = {tp: at for tp, at in pinned.offsets.items() if tp in existed and at.since}
        starts |= self._latest_at_start(waiting, clients, deadline)
        starts |= self._by_options(existed - starts.keys() - waiting.keys(), clients, deadline)
        return starts | self._of_added(partitions - existed, clients, deadline)

    def _latest_at_start(self, waiting: PinnedOffsets, clients: KafkaClients, deadline: Deadline) -> Starts:
        """The starts of partitions whose leaders did not answer when the query started, as far as they answer now."""

        def look_up(epochs: dict[TopicPartition, int]) -> Offsets:
            lookup = LatestAtStart(clients.cluster, self._options.fetch.read_committed, deadline, epochs)
            return lookup.offsets(waiting)

        return self._starts_at(StartRule.STARTING_OFFSETS, frozenset(waiting), look_up)

    def _by_options(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline) -> Starts:
        if not partitions:
            return {}
        spec = _without_commit(stream_start(self._options))
        if spec is None:
            raise OptionError(
                f"The group '{self._group_id}' has no committed offset of {names(partitions)}, and"
                " 'startingOffsetsFallback' is fail.",
                "Commit offsets (kafka-consumer-groups --reset-offsets), or set the option to earliest or latest.",
            )
        return self._look_up(spec, StartRule.STARTING_OFFSETS, partitions, clients, deadline)

    def _of_added(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline) -> Starts:
        """The earliest offsets of partitions that were added since the query first started.

        A log without its first records is older. If too few brokers have answered at the start to tell that it existed,
        it counts as existing then.
        """
        earliest = self._look_up(Earliest(), StartRule.ADDED, partitions, clients, deadline)
        late = {tp: start.offset for tp, start in earliest.items() if start.offset > 0}
        if late and self._may_have_existed():
            found_late = frozenset(late)
            others = {tp: start for tp, start in earliest.items() if tp not in late}
            return others | self._of_existing(found_late, clients, deadline)
        if late:
            gaps = some([f"{tp} at offset {offset}" for tp, offset in sorted(late.items())])
            raise_or_warn(
                log,
                self._options.fetch.fail_on_data_loss,
                f"Partitions that are new to the group '{self._group_id}' do not begin at offset 0: {gaps}",
                "Earlier records were deleted unread. To continue without them set failOnDataLoss to false, or commit"
                " a start offset (kafka-consumer-groups --reset-offsets).",
                "They are read from there",
            )
        return earliest

    def _may_have_existed(self) -> bool:
        """Whether a partition that is found now may have existed at the start: members look once per metadata age."""
        age = time.time() - self._began_at / 1000
        return not self._confirmed and age < 2 * self._options.wire.metadata_max_age

    def _of_existing(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline) -> Starts:
        """The starts of partitions that existed at the start, unknown to the broker that answered then."""
        log.info("group %s: a broker did not know %s when the query started", self._group_id, names(partitions))
        spec = _without_commit(stream_start(self._options))
        latest = {tp: PinnedStart(since=self._began_at) for tp in partitions if _is_latest(spec, tp)}
        starts = self._latest_at_start(latest, clients, deadline)
        return starts | self._by_options(partitions - latest.keys(), clients, deadline)

    def earliest(self, partitions: Partitions, clients: KafkaClients) -> Starts:
        """The starts of these partitions of recreated topics, as far as leaders answer."""
        return self._look_up(Earliest(), StartRule.RECREATED, partitions, clients, Deadline.after(RESOLVE_TIMEOUT))

    def _look_up(
        self, spec: OffsetSpec, rule: StartRule, partitions: Partitions, clients: KafkaClients, deadline: Deadline
    ) -> Starts:
        """The starts of these partitions by this rule, as far as leaders answer."""

        def look_up(epochs: dict[TopicPartition, int]) -> Offsets:
            def list_them(specs: Offsets) -> Offsets:
                listed = list_offsets(
                    clients.cluster,
                    specs,
                    read_committed=self._options.fetch.read_committed,
                    deadline=deadline,
                    partial=True,  # the others stay unresolved
                )
                epochs.update(listed.epochs)
                return listed.offsets

            return resolve_spec(spec, partitions, list_them, self._options.fetch.fail_on_data_loss)

        return self._starts_at(rule, partitions, look_up)

    def _starts_at(
        self, rule: StartRule, partitions: Partitions, look_up: Callable[[dict[TopicPartition, int]], Offsets]
    ) -> Starts:
        """The starts at the offsets that ``look_up`` returns; it puts the leaders' epochs into its argument."""
        if not partitions:
            return {}
        epochs: dict[TopicPartition, int] = {}
        why: object = "no leader answers"
        try:
            offsets = look_up(epochs)
        except RetriableError as error:
            offsets, why = {}, error
        self.unresolved.note(partitions - offsets.keys(), why)
        return {tp: Start(offset, rule, epoch=epochs[tp]) for tp, offset in offsets.items()}

    def _warn_of_another_group(self, commits: Commits, logged: Mapping[TopicPartition, OffsetRange]) -> None:
        """Warns once if the checkpoint may belong to another group."""
        if self._checkpoint_without_group and logged and not logged.keys() & commits.keys():
            self._checkpoint_without_group = False
            log.warning(
                "group %s: the checkpoint does not name its group, and this group has committed nothing of %s. If the"
                " checkpoint belongs to another group, stop the query and use a new checkpoint location.",
                self._group_id,
                names(logged),
            )

    def _warn_of_wrong_clock(self, positions: Iterable[CommittedOffset | OffsetRange]) -> None:
        """Warns once if a lineage began in the future."""
        ahead = max((each.lineage for each in positions), default=0) / 1000 - time.time()
        if ahead > MAX_CLOCK_SKEW and not self._warned_of_clock:
            self._warned_of_clock = True
            log.warning(
                "group %s: somebody moved the group's offsets at a time that is %.0f s in the future: the clock of this"
                " host or of another one is wrong. Until then a later move may count as the earlier one.",
                self._group_id,
                ahead,
            )


def _without(partitions: Partitions, commits: Commits) -> Commits:
    """The commits of all other partitions."""
    return {tp: commit for tp, commit in commits.items() if tp not in partitions}


def _in_new_lineage(starts: Starts, partitions: Partitions, rule: StartRule) -> Starts:
    """The starts of these partitions by a decision to ignore the group's commits, which begins a lineage."""
    return {tp: starts[tp]._replace(rule=rule, lineage=None) for tp in partitions & starts.keys()}


def _offsets(starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
    return {tp: start.offset for tp, start in starts.items()}


def _answered(answer: Answer | RequestFailed) -> Answer:
    if isinstance(answer, RequestFailed):
        raise answer.error or DeadlineExceeded(f"The lookup at the coordinator failed: {answer.reason}.")
    return answer


def _without_commit(spec: StartSpec) -> OffsetSpec | None:
    """Where partitions without a committed offset start; ``None`` if that is an error."""
    return spec.fallback if isinstance(spec, FromCommitted) else spec


def _is_latest(spec: OffsetSpec | None, tp: TopicPartition) -> bool:
    return isinstance(spec.of(tp) if isinstance(spec, SpecificOffsets) else spec, Latest)
