"""What really happens in a run, and the invariants: one for each sentence of the contract, checked at each event.

The truth about a partition is which of its offsets are *done*: read by a batch that Spark has completed, or skipped by
somebody who may (an operator, retention, a start at the latest offset). A position, planned or committed, is right if
everything before it is done. What was read may be read again only if it is *repeatable*: a batch was open when its
query died or was expelled, or somebody moved the partition back.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from spark_group_source.errors import TopicError
from spark_group_source.group.classic.protocol import JOIN_SLACK
from spark_group_source.offsets import UNKNOWN_EPOCH, BatchOffset, OffsetRange
from spark_group_source.query.truncation import TRUNCATION_INTERVAL
from tests.fake import FakeKafka
from tests.fake.classic_group import COMPLETING, PREPARING
from tests.fake.consumer_group import FakeConsumerMember
from tests.fake.log import FakeLog
from tests.simulation.network import KEEPALIVE, LATE_REQUEST, LATEST, MAX_LATENCY, REFUSED, Broken
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.substitution import START_OF_TIME

if TYPE_CHECKING:
    from tests.simulation.spark import Query

AFTER_PLAN = {"pinned_starts", "planned", "has planned", "partitions", "commit", "complete", "in_flight"}
AFTER_PLAN |= {"reserve", "awaited", "completed"}
"""Places between the last check of a plan and its batch."""

WINDOW = 15.0
"""Seconds in which one fault excuses nothing, and two may: by then a retry has succeeded, or the session has ended."""

CALL_LIMITS = {"initialOffset": 45.0, "latestOffset": 105.0, "partitions": 1.0, "commit": 15.0, "stop": 20.0}
"""Seconds within which each call of the reader returns, whatever happens."""

CALM_LIMIT = 50.0
"""The same, if at most single requests suffer: for a run that waits for other members."""

SOON = 12.0
"""Seconds within which a request is retried, also if one suffers: a timeout, a backoff, a heartbeat, a trigger."""

QUIET = 30.0
"""Seconds after an outage in which members may still be expelled."""

FENCED = {22, 25, 82, 110, 113}
"""ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH, STALE_MEMBER_EPOCH: by these a member
learns from its commit that it is none, or has another epoch."""

LAST = 2_000
"""An offset beyond all that a run reaches."""

Key = tuple[str, str, int]
"""A group, the id of a topic, and a partition."""

_text = lru_cache(str)
"""The text of an id, which is needed more often than there are ids."""


@dataclass
class Partition:
    """The truth about one partition of one topic's life, for one group."""

    done: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    """What was done before operators moved the position, and is again when the group is deleted with their moves."""
    read: set[int] = field(default_factory=set)
    repeatable: set[int] = field(default_factory=set)
    ignorable: dict[str, set[int]] = field(default_factory=dict)
    """What is done only because this query may ignore the last move, unless another one follows it."""
    committed: int | None = None
    started: bool = False
    """Whether the group has a position here: a commit that was accepted, or a decision of an operator."""
    by: str = ""
    """The member that committed last."""
    moved_at: float = -1.0
    """When an operator last moved it."""
    fell: tuple[str, float] | None = None
    """The query whose late commit moved it back, and when, until the next commit."""
    moved_to: set[int] = field(default_factory=set)
    """Where operators' commits were since the last one of a member. Nobody can tell one of them from its repetition."""
    moves: dict[int, float] = field(default_factory=dict)
    """When operators last moved it to each offset."""
    commits: dict[str, float] = field(default_factory=dict)
    """When each query last committed it."""
    beyond_repair: bool = False
    """Whether a late commit moved the position back that had no room for its tag, or the commit was deleted."""
    owner: str = ""
    """The member that owns it, and knows that it does."""
    owned_since: float = 0.0
    cut_at: float = -1.0
    """When an unclean election last removed records."""
    end_before_cut: int = LAST
    kept_by_cut: int = LAST
    """Up to where the last one kept records."""
    decided: dict[str, int] = field(default_factory=dict)
    """Where each query first wanted to start."""
    reset_at: float = -1.0
    """When a query last reset it."""
    reset_by: str = ""
    """A query that has reset it, and has not committed that: no other one knows."""
    untagged: bool = False
    """Whether the last commit had no room for its tag."""
    without_epoch: bool = False
    """Whether the commit has no leader epoch, as an operator's and the next one: no unclean election shows."""


@dataclass(eq=False, kw_only=True)
class Open:
    """The batch that a query has in flight, and what it completed without a commit."""

    ranges: list[OffsetRange] = field(default_factory=list)
    done: bool = False
    replayed: bool = False
    told_at: float = 0.0
    """Since when the query knows that it is completed: infinity if it does not."""
    planned_at: float = 0.0
    lost: bool = False
    """Whether the group removed the query's member meanwhile, or before the query could know."""

    @property
    def told(self) -> bool:
        """Whether the query knows that it is completed."""
        return self.told_at < math.inf

    def offsets(self, key: Key) -> set[int]:
        """The offsets of one partition that the batch reads."""
        mine = (read for read in self.ranges if (read.topic_id, read.partition) == key[1:])
        return {each for read in mine for each in range(read.start, read.end)}


class Truth:
    """Checks one run. Each method tells it of an event."""

    def __init__(self, run: Scheduler, kafka: FakeKafka, told: Any) -> None:
        self.run = run
        self.kafka = kafka
        self.brokers: list[Any] = list(kafka.brokers.values())
        self.partitions: dict[Key, Partition] = {}
        self.cuts: dict[tuple[str, int], tuple[float, int, int]] = {}
        """When an unclean election last removed records of a partition, the lowest offset that ever was removed, and
        that of the last election."""
        self.open: dict[str, Open] = {}
        self.uncommitted: dict[str, dict[Key, set[int]]] = {}
        self.given_up: dict[tuple[str, Key], tuple[int, int]] = {}
        """Between these offsets a move looks like the commit of a client that read what a query replayed, or what it
        read when the group removed its member."""
        self.ends_at_birth: dict[str, dict[tuple[str, int], int]] = {}
        """By the ids of topics and partition numbers: no query starts before these at its latest offsets."""
        self.latest_at_birth: dict[str, dict[tuple[str, int], int]] = {}
        """The ends when a query had its starting offsets: none starts after these, either."""
        self.planned_ranges: dict[tuple[str, str], list[OffsetRange]] = {}
        self.targets: dict[str, dict[tuple[str, int], int]] = {}
        self.latest_targets: dict[str, dict[tuple[str, int], int]] = {}
        """The ends when the first call of a run had returned, which took them."""
        self.owners: dict[tuple[str, str, int], str] = {}
        """The members that owned each partition of a group last, whatever became of its topic."""
        self.former_ids: dict[UUID, str] = {}
        """The topics by all ids that they had."""
        self.outdated: set[str] = set()
        """Topics of which a coordinator with old metadata has a commit in a former life. It is served as any other."""
        self.leaderless: dict[tuple[str, int], float] = {}
        """When a partition has a leader again."""
        self.overdue: dict[str, float] = {}
        """When a query last completed a batch that took longer than a revocation waits."""
        self.failures: dict[str, int] = defaultdict(int)
        """How many commits of a query suffered since the last that did not."""
        self.failed_twice: set[str] = set()
        self.faults: list[tuple[float, str]] = []
        """When a message suffered, and which request it was."""
        self._since: dict[tuple[str, str], float] = {}
        """Since when something is so that must not last, by query."""
        self.began: dict[str, float] = {}
        self.resets: dict[str, set[Key]] = {}
        """Partitions that a query with a new checkpoint may still move to its starting offsets."""
        self.first_assigned: dict[str, set[Key]] = {}
        """What the group assigned to a query first since it had a new checkpoint: that is to be reset."""
        self.assigned_at: dict[str, float] = {}
        """When that was."""
        self.unaware: set[str] = set()
        """Queries whose members were removed, and have not joined again since."""
        self.aware_at: dict[str, float] = {}
        self.fenced_at: dict[str, float] = {}
        """When the coordinator last refused a commit of a query, as of no member."""
        self.heard: dict[str, float] = {}
        """When a process last sent the group a sign of life that was answered."""
        self.joins: dict[str, float] = {}
        """When a process last sent a join."""
        self.unanswered: dict[str, float] = {}
        """When a join of a process was dropped, which waits for its answer as long as a rebalance may take."""
        self._starving: dict[Key, tuple[tuple[int, int | None], int]] = {}
        """How much of a partition was done and committed, and for how many seconds there was no reason why not more."""
        self._removals = 0
        self._clients: dict[str, str] = {}
        self.outage_ends = self.no_answer_until = -QUIET
        """When everything works again, and when every broker answers again."""
        self.denied_at = -QUIET
        """When a permission was last taken."""
        self.sure_of_birth: set[str] = set()
        """Queries that knew what existed when they started: a broker that knew it answered."""
        self.data_may_be_lost = False
        self.moved_at = self.expelled_at = self.hesitates_until = -QUIET
        self.recreated_at = -QUIET
        self.died_at = -QUIET
        self.coordinated_since = -QUIET
        """When a coordinator took the group over: each session begins again."""
        self.queries: dict[str, Query] = {}
        self.client_query: dict[str, Query] = {}
        self.told = told
        self.joined: set[str] = set()
        """Processes that have been in the group."""

    # What the scenario does

    def fault(self, what: str) -> None:
        """One message suffers."""
        self.faults.append((self.run.now, what))
        if "OffsetCommit" in what:
            name = what.partition(".")[0]
            self.failures[name] += 1
            if self.failures[name] > 1:
                self.failed_twice.add(name)
        if "JoinGroup" in what:
            self.outage_ends = max(self.outage_ends, self.run.now)  # the group may go on without the member
        self.told(what)

    def coordinator_moves(self, seconds: float, what: str) -> None:
        """The coordinator hands the group over in order: for so many seconds it answers with errors, as one fault."""
        self.coordinated_since = self.run.now + seconds
        self.faults.append((self.coordinated_since, what))
        self.failed_twice |= self.queries.keys()  # of those that may fail, a query sends several in that time
        self.told(what)

    def outage(self, seconds: float, what: str, *, answers: bool = False) -> None:
        """Something does not work for some seconds. Whether every broker ``answers`` nevertheless."""
        self.outage_ends = max(self.outage_ends, self.run.now + seconds)
        self.no_answer_until = self.no_answer_until if answers else self.outage_ends
        self.told(what)

    def denied(self, seconds: float, what: str) -> None:
        """A permission is missing for some seconds."""
        self.denied_at = self.run.now
        self.outage(seconds, what, answers=True)

    @property
    def recent_faults(self) -> int:
        """How many faults have happened in :data:`WINDOW`, counted up to two."""
        return sum(self.run.now - at <= WINDOW for at, _ in self.faults[-2:])

    @property
    def calm(self) -> bool:
        """Whether nothing but a single fault in :data:`WINDOW` has happened, which every retry must make up for."""
        return self.recent_faults < 2 and self.run.now - max(self.outage_ends, self.recreated_at) > QUIET

    def key(self, group: str, topic: str, partition: int) -> Key:
        return group, _text(self.kafka.ids.get(topic, "")), partition

    def at(self, key: Key) -> Partition:
        if key not in self.partitions:
            cut_at, removed, last = self.cuts.get(key[1:], (-1.0, LAST, LAST))
            self.partitions[key] = Partition(cut_at=cut_at, kept_by_cut=last, repeatable=set(range(removed, LAST)))
        return self.partitions[key]

    def moved(self, group: str, topic: str, partition: int, offset: int) -> None:
        """An operator moves the group's position."""
        self.moved_at = self.run.now
        key = self.key(group, topic, partition)
        at = self.at(key)
        at.moved_at = self.run.now
        at.before |= at.done
        repeated = offset in at.moved_to or (at.untagged and offset == at.committed)
        at.done = set(range(offset)) | (at.before if repeated else set())
        at.ignorable.clear()
        for name, batch in self.open.items() if offset >= (at.committed or 0) else ():
            # A move in mid-batch looks like a client's commit: of a batch without a report, and of what faults left
            # uncommitted before the batch that follows.
            life = self.queries[name].life
            if life is None or name in self.unaware:
                continue
            if batch.done and (batch.replayed or not batch.told or life.process.held_until > self.run.now):
                at.done |= batch.offsets(key)
            at.done |= self.uncommitted.get(name, {}).get(key, set())
        self._may_be_ignored(key, offset)
        for name in self.queries:  # until its own commit arrives, it takes this for the move at which it began
            if at.commits.get(name, -1.0) < at.moves.get(offset, -1.0):
                at.ignorable[name] = at.ignorable.get(name, set()) | (at.before - at.done)
                at.done |= at.ignorable[name]
        at.moves[offset] = self.run.now
        at.started, at.committed, at.by = True, offset, "operator"
        at.moved_to.add(offset)
        at.without_epoch = True
        at.repeatable |= set(range(offset, LAST))

    def _may_be_ignored(self, key: Key, offset: int) -> None:
        """A commit without our tag may look like one of another client, which read the same as this query."""
        for (name, lost), (commit, end) in self.given_up.items():
            if lost == key and self.queries[name].life and commit < offset < end:
                at = self.at(key)
                at.ignorable[name] = (at.before | set(range(offset, end))) - at.done
                at.done |= at.ignorable[name]

    def forgotten(self, group: str) -> None:
        """The group is deleted: its queries continue at their checkpoints, and others as new ones."""
        for (name, _, _), at in self.partitions.items():
            if name == group:
                at.started, at.committed = False, None
                at.moved_to.clear()
                at.decided.clear()
                at.done |= at.before
                at.repeatable |= set(range(LAST))

    def lost_commit(self, key: Key) -> None:
        """The group's commit is deleted with those in the topic's former life. Nobody notices before the next one."""
        at = self.at(key)
        at.beyond_repair |= at.started
        at.started, at.committed = False, None
        at.moved_to.clear()
        at.repeatable |= set(range(LAST))

    def truncated(self, topic: str, partition: int, start: int) -> None:
        """Retention has deleted the records before ``start``."""
        for at in self._of_all_groups(topic, partition):
            at.done |= set(range(start))

    def cut_short(self, topic: str, partition: int, end: int, before: int) -> None:
        """An unclean election has removed the records from ``end`` on; other records may take their offsets."""
        for at in self._of_all_groups(topic, partition):
            at.done = {each for each in at.done if each < end or at.without_epoch}
            at.repeatable |= set(range(end, LAST))
            at.kept_by_cut = end
            at.end_before_cut = before if at.cut_at < 0 else max(before, at.end_before_cut)
            at.cut_at = self.run.now
        for pending in self.uncommitted.values():
            for tp in pending:
                if tp[1:] == (_text(self.kafka.ids[topic]), partition):
                    pending[tp] = {each for each in pending[tp] if each < end}
        key = _text(self.kafka.ids[topic]), partition
        self.cuts[key] = self.run.now, min(end, self.cuts.get(key, (0.0, end, end))[1]), end
        for ends in (*self.ends_at_birth.values(), *self.targets.values(), *self.latest_targets.values()):
            if key in ends:
                ends[key] = min(ends[key], end)

    def _lowest_cut(self, key: Key) -> int:
        """From which offset on unclean elections have ever removed records."""
        return self.cuts.get(key[1:], (0.0, LAST, LAST))[1]

    def _end_before(self, tp: tuple[str, int], timestamp: int) -> int:
        """The end of a log at this time, in milliseconds."""
        log = self.kafka.logs[tp[0]][tp[1]]
        return next((first for first, at in log.times if at >= timestamp), log.end)

    def _log(self, key: Key) -> FakeLog:
        """The log of a partition, empty if it is gone."""
        name = self._names.get(UUID(key[1]), "")
        return self.kafka.logs.get(name, {}).get(key[2]) or FakeLog(None)

    def _of_all_groups(self, topic: str, partition: int) -> list[Partition]:
        now = _text(self.kafka.ids[topic]), partition
        return [at for (_, *key), at in self.partitions.items() if tuple(key) == now]

    def recreated(self, topic: str) -> None:
        """A topic has another id now."""
        self.recreated_at = self.run.now
        waits = [each.slowest_trigger + each.max_batch_seconds for each in self.queries.values()]  # until it is found
        self.outage_ends = max(self.outage_ends, self.run.now + max(waits, default=0.0))
        self.former_ids |= self._names
        self.added(topic)

    def added(self, topic: str) -> None:
        """Partitions are new. Queries that are just starting may take their latest offsets for theirs."""
        for name, query in self.queries.items():
            if not query.checkpoint.offsets and not query.pinned:
                for each in self.kafka.logs[topic]:
                    self.ends_at_birth[name].setdefault((_text(self.kafka.ids[topic]), each), 0)
                    if name in self.resets:
                        self.resets[name].add(self.key(query.options["kafka.group.id"], topic, each))

    # What the queries do

    def started(self, query: Query, available_now: bool) -> None:
        self.former_ids |= self._names
        self.queries[query.name] = query
        life = f"{query.name}.{query.lives}"
        self.client_query[life] = query
        ends = {(_text(self.kafka.ids[topic]), number): end for (topic, number), end in self.ends().items()}
        # Where a leader does not answer, the time tells, and a clock that is behind tells of an earlier end.
        since = round(1000 * (START_OF_TIME + self.run.now - query.skew))
        by_time = {self.key("", *tp)[1:]: self._end_before(tp, since) for tp in self.ends()}
        self.began[query.name] = self.run.now
        if not query.checkpoint.offsets:
            query.pinned = False
            for at in self.partitions.values():
                at.decided.pop(query.name, None)
            before = self.ends_at_birth.get(query.name, {})  # of a life that came to nothing, but for a late commit
            self.ends_at_birth[query.name] = {
                key: min(end, by_time[key], before.get(key, end)) for key, end in ends.items()
            }
        logged = self._logged(query)
        if "resetOffsetsOnStart" in query.options and (logged.resets or not logged.ranges):
            group = query.options["kafka.group.id"]
            self.first_assigned.pop(query.name, None)
            self.assigned_at.pop(query.name, None)
            self.resets[query.name] = {self.key(group, *tp) for tp in self.ends() if self.subscribed(query, *tp)}
            if logged.resets:
                self.first_assigned[query.name] = {self.key(group, *tp) for tp in logged.resets}
        else:  # all are logged, and those whose commit has never arrived move others back now
            resets = self.resets.pop(query.name, set()) & self.first_assigned.get(query.name, set())
            for read in logged.ranges.values():
                key = _key_of(query, read)
                if key in resets:
                    self.at(key).repeatable |= set(range(LAST))
                    self.at(key).done |= set(range(read.start))
        if available_now:
            # A broker that lags may tell the run of a topic's former life.
            lagging = [view.topics for view in self.kafka._frozen.values()]
            late = {
                id_ for name, id_ in self.kafka.ids.items() for known in lagging if known.get(name, [id_])[0] != id_
            }
            known_ends = {key: end for key, end in ends.items() if UUID(key[0]) not in late}
            self.targets[query.name] = known_ends if self._informed() else {}
            self.latest_targets.pop(query.name, None)
        self.open[query.name] = Open()
        self.failed_twice.discard(query.name)
        self.failures[query.name] = 0
        self.unaware.discard(query.name)
        self.aware_at.pop(query.name, None)
        self.given_up = {lost: where for lost, where in self.given_up.items() if lost[0] != query.name}
        self.told(f"{life} starts{' an AvailableNow run' if available_now else ''}")

    def pinned(self, query: Query) -> None:
        """A query knows its starting offsets: those that it does not decide later by what has been so now."""
        if not query.pinned:
            query.pinned = True
            self.latest_at_birth[query.name] = {
                self.key("", *tp)[1:]: at for tp, at in self.ends(open_too=True).items()
            }
            began = self.began[query.name]
            quiet = self.no_answer_until < began and all(at < began for at, _ in self.faults[-1:])
            (self.sure_of_birth.add if quiet and self._informed() else self.sure_of_birth.discard)(query.name)

    def _logged(self, query: Query) -> BatchOffset:
        return BatchOffset.from_json(query.checkpoint.last) if query.checkpoint.offsets else BatchOffset()

    def took_target(self, query: Query) -> None:
        """A run has taken the present ends as its target, or earlier ones."""
        behind = query.options["kafka.isolation.level"] == "read_uncommitted"
        ends = {self.key("", *tp)[1:]: end for tp, end in self.ends(open_too=behind).items()}
        self.latest_targets.setdefault(query.name, ends)

    def ever_had_records(self, topic: str) -> bool:
        return any(log.end for log in self.kafka.logs[topic].values())

    def ends(self, *, open_too: bool = False) -> dict[tuple[str, int], int]:
        return {
            (topic, number): log.end if log.stable is None or open_too else log.stable
            for topic, logs in self.kafka.logs.items()
            for number, log in logs.items()
        }

    def check_json(self, query: Query, text: str) -> None:
        """I11: offsets survive their JSON."""
        if json.dumps(BatchOffset.from_json(json.loads(text)).as_json()) != text:
            raise Broken(f"I11: {query.name}: the offset changes on its way through JSON: {text}")

    def returned(self, query: Query, call: str, seconds: float) -> None:
        """I7: every call returns in time."""
        began = self.run.now - seconds
        waits_for_batches = self._reading(query.options["kafka.group.id"])
        calm = (
            not waits_for_batches
            and began - QUIET > max(self.outage_ends, self.recreated_at)
            and not any(
                began - each.killed_at < self.kafka.session_timeout + each.rebalance_timeout
                for each in self.queries.values()
            )
        )
        limit = min(CALL_LIMITS[call], CALM_LIMIT if calm else math.inf)
        process = query.life.process if query.life is not None else self.run.outside
        if seconds > limit and not process.paused_until and process.held_until < self.run.now - seconds:
            raise Broken(f"I7: {query.name}: {call} took {seconds:.0f} s")

    def planned(self, query: Query, batch: int, text: str, ranges: list[OffsetRange], *, replayed: bool) -> None:
        """A batch begins: I1 for one that is replayed, else I3, I6 and I9."""
        self.told(f"{query.name} {'replays' if replayed else 'plans'} batch {batch}: {_names(ranges)}")
        before = self.planned_ranges.setdefault((query.name, text), ranges)
        if sorted(before) != sorted(ranges):
            raise Broken(f"I1: {query.name} replays {_names(ranges)} instead of {_names(before)}")
        self._check_removals({query.options["kafka.group.id"]})
        lost_at = self.aware_at.get(query.name, LAST), self._session_end(query)
        lost = query.name in self.unaware or any(self._was_held(query, at) for at in lost_at)
        keys = [_key_of(query, read) for read in ranges]
        # Another query has them since then, or they came back.
        lost |= any(self._was_held(query, self.at(key).owned_since) for key in keys)
        # A generation has a static member whose join came too late; that learns of it with its next heartbeat.
        others = any(self.at(key).owner and not self._owns(query, key) for key in keys)
        lost |= others and not self.calm and "kafka.group.instance.id" in query.options
        fenced = self.run.now - self.fenced_at.get(query.name, -QUIET) <= MAX_LATENCY  # the answer is on its way
        for read, key in zip(ranges, keys, strict=True):
            self.at(key).repeatable |= set(range(read.start, read.end)) if lost or replayed or fenced else set()
            self.given_up.pop((query.name, key), None)
            if replayed or lost:
                self.given_up[query.name, key] = read.start - replayed, read.end
            if lost and read.topic in self.kafka.logs:
                done = self.at(key).done if self.at(key).started else set()
                if self.at(key).moved_at < self.assigned_at.get(query.name, 0.0):  # or the reset came before
                    self._reset(query, key, read.start, self.kafka.logs[read.topic][read.partition])
                self.at(key).done |= done  # the next owner may have begun before it
                if not self.at(key).started:
                    self._check_first(query, key, read.topic, read.start)
            if lost or read.topic_id != _text(self.kafka.ids.get(read.topic, "")):
                continue
            if not replayed:
                self._check_session(query)
                beyond = read.end > self.kafka.logs[read.topic][read.partition].end
                elected = read.epoch < self.kafka.logs[read.topic][read.partition].epoch
                # After its end was looked up, for which it needs a leader, or just now.
                cut_at = self.at(key).cut_at
                cut_at = cut_at if cut_at < 0 else max(cut_at, self.leaderless.get((read.topic, read.partition), 0.0))
                recently = cut_at > self.run.now - SOON / 2 or (elected and cut_at < 0)
                if (
                    beyond
                    and not recently
                    and not self._cut_unseen(self.at(key), read.topic, read.partition, read.epoch)
                ):
                    raise Broken(f"I6: {query.name} plans {read}, which lies beyond the end of the log")
                self._check_start(query, key, read)
                self._check_owner(query, key, read)
                self._check_repeats(query, key, read)
        held = query.life is not None and query.life.process.plan_held_until > query.plan_began
        planned_at = max(query.plan_began, self.began[query.name]) if held else self.run.now
        self.open[query.name] = Open(
            ranges=ranges, replayed=replayed, told_at=math.inf, planned_at=planned_at, lost=lost
        )

    def _check_session(self, query: Query) -> None:
        """I3: without an answer for a whole session, all partitions are lost."""
        if self.run.now > (ends := self._session_end(query)):
            raise Broken(f"I3: {query.name} plans a batch {self.run.now - ends:.1f} s after its session's end")

    def _session_end(self, query: Query) -> float:
        if query.life is None or "assign" in query.options:
            return LAST
        return self.heard.get(query.life.process.name, LAST) + self.kafka.session_timeout

    def _reset(self, query: Query, key: Key, start: int, log: FakeLog) -> None:
        """I6: a query that resets moves each partition of its first assignment, once."""
        if self._is_to_reset(query, key):
            self.resets[query.name].discard(key)
            at, born = self.at(key), self.ends_at_birth[query.name].get(key[1:], 0)
            earliest = query.options["startingOffsets"] == "earliest"
            moves = start != at.committed or at.cut_at >= 0
            resets = start <= log.start if earliest else start >= born
            if resets and moves:
                at.before |= at.done
                at.done, at.by, at.reset_by = set(range(start)), "", query.name
                for batch in self.open.values():  # a replay at the same time
                    if batch.replayed and batch.done and batch.planned_at > self.run.now - SOON / 4:
                        at.done |= batch.offsets(key)
            if resets:
                at.reset_at = self.run.now
                at.repeatable |= set(range(start, LAST))
                for name, pending in self.uncommitted.items():
                    if name != query.name:  # of the lineage before
                        pending.pop(key, None)

    def _ignore_reset(self, query: Query, at: Partition) -> None:
        """A query continues where it was before another one's reset, of which it has never heard."""
        if at.reset_by not in ("", query.name):
            at.done |= at.before

    def _is_to_reset(self, query: Query, key: Key) -> bool:
        first = key in self.first_assigned.get(query.name, ()) or "assign" in query.options
        return first and key in self.resets.get(query.name, ())

    def _was_held(self, query: Query, since: float) -> bool:
        """Whether a query planned before this time, and stood still after it before the batch."""
        process = query.life.process if query.life else self.run.outside
        held_until = max(process.plan_held_until, process.paused_until)
        return query.plan_began <= since <= self.run.now and since < held_until

    def _check_start(self, query: Query, key: Key, read: OffsetRange) -> None:
        at, topic, start = self.at(key), read.topic, read.start
        self._reset(query, key, start, self.kafka.logs[topic][key[2]])
        if not at.started:
            self._check_first(query, key, topic, start)
        self._ignore_reset(query, at)
        skipped = _missing(at.done, 0, start)
        saw_cut = read.epoch > UNKNOWN_EPOCH and read.end > at.end_before_cut
        if skipped and (saw_cut or not self._cut_unseen(at, topic, read.partition, read.epoch)):
            raise Broken(f"I3: {query.name} starts {topic}-{key[2]} at {start}, and {_span(skipped)} were never read")

    def _cut_unseen(self, at: Partition, topic: str, number: int, epoch: int) -> bool:
        """Whether a position is older than an unclean election, which the query notices when it plans again, or than
        its topic."""
        return topic in self.outdated or (at.cut_at >= 0 and epoch < self.kafka.logs[topic][number].epoch)

    def _check_first(self, query: Query, key: Key, topic: str, start: int) -> None:
        """I6: where a partition starts without a commit."""
        at = self.at(key)
        log = self.kafka.logs[topic][key[2]]
        first = self.ends_at_birth[query.name].get(key[1:])
        latest = query.options["startingOffsets"] == "latest" and start <= at.decided.get(query.name, start)
        if latest and first is not None and first <= start:
            last = self.latest_at_birth.get(query.name, {}).get(key[1:], LAST)
            at.done |= set(range(min(start, last) if start <= log.end else min(start, last, at.kept_by_cut)))
        elif latest and first is not None and query.name in self.sure_of_birth and max(at.moved_at, at.cut_at) < 0:
            raise Broken(f"I6: {query.name} starts {topic}-{key[2]} at {start}, and its latest offset was {first}")
        elif start <= log.start:
            at.done |= set(range(start))

    def _check_owner(self, query: Query, key: Key, read: OffsetRange) -> None:
        """I9: no two live queries plan one partition."""
        for name, other in self.open.items():
            rival = self.queries[name]
            ends = rival.life is None or rival.life.ends_at <= self.run.now  # then Spark has interrupted its batch
            ends |= self._has_failed(query) or self._has_failed(rival)
            if rival is query or ends or other.done or other.replayed:
                continue
            for theirs in other.ranges:
                if (theirs.topic_id, theirs.partition) == key[1:] and not self._may_lose(rival, other):
                    raise Broken(f"I9: {query.name} plans {read} while {name} reads {theirs}")

    def _owns(self, query: Query, key: Key) -> bool:
        return query.client in self._clients.get(self.at(key).owner, "")

    def _has_failed(self, query: Query) -> bool:
        """Whether a member has failed, and left: its query fails with Spark's next call."""
        members = self.kafka.group(query.options["kafka.group.id"]).members.values()
        is_member = any(query.client in member.client_id for member in members)
        return self._may_fail(query) and not is_member

    def _may_fail(self, query: Query) -> bool:
        """Whether its options let a query fail if commits fail, or records are lost."""
        loses = self.data_may_be_lost and query.options.get("failOnDataLoss") != "false"
        return loses or "onCommitFailure" in query.options

    def _may_lose(self, query: Query, batch: Open) -> bool:
        """Whether a live query may have lost its partitions in mid-batch: by faults, or because the batch is long."""
        return not self.calm or batch.lost or self._is_overdue(query, batch) or self.outage_ends > batch.planned_at

    def _is_overdue(self, query: Query, batch: Open) -> bool:
        """Whether a batch has taken longer than a revocation waits."""
        return self.run.now - batch.planned_at > query.revocation_timeout

    def _check_repeats(self, query: Query, key: Key, read: OffsetRange) -> None:
        """I3: nothing is read twice without a reason."""
        at = self.at(key)
        self._excuse(query, key)
        records = set(range(read.start, read.end)) - self._log(key).markers
        again = sorted(each for each in records if each in at.read and each not in at.repeatable)
        if again:
            raise Broken(f"I3: {query.name} reads {read} and {_span(again)} of it twice for no reason")

    def _excuse(self, query: Query, key: Key) -> None:
        """Whatever another query completed without a commit may be repeated if faults kept it from committing."""
        for name, open_ in self.uncommitted.items():
            batch = self.open[name]
            other = self.queries[name]
            timeout = other.revocation_timeout
            unreported = not batch.told and self._is_overdue(other, batch)
            unreported |= other.life is not None and batch.told_at > other.life.ends_at - MAX_LATENCY
            # A short revocation has no time for a batch, a commit without an answer and another one.
            short = timeout < WINDOW / 2 and any(
                "OffsetCommit" in what and when > self.run.now - WINDOW for when, what in self.faults[-2:]
            )
            failed = self._has_failed(other)
            if (offsets := open_.get(key)) and (name == query.name or unreported or short or failed or not self.calm):
                self.at(key).repeatable |= offsets

    def read(self, query: Query, ranges: Iterable[OffsetRange]) -> bool:
        """A task reads; whether all records are there."""
        complete = True
        for read in ranges:
            log = self.kafka.logs.get(read.topic, {}).get(read.partition)
            same = read.topic_id == _text(self.kafka.ids.get(read.topic, ""))
            complete &= same and log is not None and log.start <= read.start and read.end <= log.end
        return complete or query.options.get("failOnDataLoss") == "false"

    def completed(self, query: Query, batch: int, ranges: list[OffsetRange]) -> None:
        self.told(f"{query.name} completes batch {batch}")
        pending = self.uncommitted.setdefault(query.name, {})
        open_ = self.open[query.name]
        late = self._is_overdue(query, open_) or self.outage_ends > open_.planned_at
        for read in ranges:
            key = _key_of(query, read)
            offsets = set(range(read.start, read.end))
            at = self.at(key)
            at.done |= offsets
            at.ignorable = {name: ignored - offsets for name, ignored in at.ignorable.items()}
            at.read |= offsets
            at.repeatable |= offsets if late else set()
            given_up_late = late and not self._owns(query, key)
            if (
                given_up_late or not open_.told
            ):  # the query learns of it when it plans again, perhaps without the partition
                self.given_up.setdefault((query.name, key), (read.start, read.end))
            end = LAST
            if read.topic in self.kafka.logs and self._cut_unseen(at, read.topic, read.partition, read.epoch):
                end = self._lowest_cut(key)  # what was removed since must not be committed
            if open_.lost:
                at.repeatable |= offsets
                continue
            if open_.replayed and ((at.committed or 0) < read.start or at.reset_at > open_.planned_at):
                continue  # the group has gone back meanwhile
            pending.setdefault(key, set()).update(each for each in offsets if (at.committed or 0) <= each < end)
        self.open[query.name].done = True

    def died(self, query: Query) -> None:
        """A query's process has ended: what it had open may be repeated."""
        self._since = {key: since for key, since in self._since.items() if key[0] != query.name}
        self._give_up(query, [] if self.open[query.name].done else self.open[query.name].ranges)
        self.died_at = self.run.now
        self.told(f"{query.name} has ended")

    def _give_up(self, query: Query, ranges: Iterable[OffsetRange]) -> None:
        """The query forgets what it completed without a commit, and that may be repeated, as may these ranges."""
        self._may_be_repeated(query, ranges)
        self.uncommitted.pop(query.name, None)

    def _may_be_repeated(self, query: Query, ranges: Iterable[OffsetRange]) -> None:
        """These ranges, and all that a query completed without a commit, may be repeated."""
        self._ranges_may_be_repeated(query, ranges)
        for key, offsets in self.uncommitted.get(query.name, {}).items():
            self.at(key).repeatable |= offsets

    def _ranges_may_be_repeated(self, query: Query, ranges: Iterable[OffsetRange]) -> None:
        for read in ranges:
            key = _key_of(query, read)
            self.at(key).repeatable |= set(range(read.start, read.end))

    def hesitates(self, process: Process, place: str, seconds: float) -> None:
        """A thread does not go on for some seconds."""
        process.held_until = self.hesitates_until = self.run.now + seconds
        if place in AFTER_PLAN:
            process.plan_held_until = max(process.plan_held_until, process.held_until)

    def held(self, process: Process, place: str, seconds: float) -> None:
        """The same by a strike: up to one second no promise suffers."""
        self.hesitates(process, place, seconds)
        tell = self.told if seconds <= 1.0 else partial(self.outage, seconds)
        tell(f"a thread of {process.name} is held for {seconds} s")

    def expelled(self, query: Query) -> None:
        """The group loses a member: what it had open may be repeated."""
        if "assign" in query.options:
            return
        self.expelled_at = self.run.now
        batch = self.open[query.name]
        for read in batch.ranges:
            key = _key_of(query, read)
            self.given_up.setdefault((query.name, key), (read.start, read.end))
        if query.life and query.life.process.plan_held_until > self.run.now:  # it may have a batch that nobody sees yet
            for key in [key for key in self.partitions if key[0] == query.options["kafka.group.id"]]:
                self.given_up.setdefault((query.name, key), (self.at(key).committed or 0, LAST))
        if query.name in self.resets and not self._logged(query).ranges:  # it may not know that it has reset them
            self.resets[query.name] |= self.first_assigned.get(query.name, set())
        batch.lost = True
        self.unaware.add(query.name)
        self._give_up(query, batch.ranges)
        for at in self.partitions.values():
            at.by = at.owner = ""

    def left(self, query: Query, began: float) -> None:
        """A query has ended in order, which took from ``began`` until now."""
        group = query.options["kafka.group.id"]
        suffered = sum(when >= began - SOON / 2 for when, _ in self.faults[-2:])  # what suffers once is sent again
        life = query.life
        if any(query.client in each.client_id for each in self.kafka.group(group).members.values()):
            query.killed_at = self.run.now  # its member stays, as that of a killed one
        self._check_late_commits(query, group, began)
        named = life is not None and (life.process.name in self.heard or "kafka.group.protocol" in query.options)
        if not self.calm or life is None or life.process.held_until > began or not named:
            return
        mine = [each for each in self.kafka.group(group).members.values() if query.client in each.client_id]
        # A join of this protocol may arrive after the member has left.
        late = any(
            f"ConsumerGroupHeartbeat: the {LATE_REQUEST}" in what and when > began - LATEST
            for when, what in self.faults[-2:]
        )
        late |= self.joins.get(life.process.name, -1.0) > began - MAX_LATENCY
        if mine and suffered < 2 and not (late or query.options.keys() & {"assign", "kafka.group.instance.id"}):
            raise Broken(f"I8: {query.name} has ended, and its member is still in the group")
        told = self.open[query.name].told_at < began  # a call that has just begun may be interrupted at once
        for key, pending in self.uncommitted.get(query.name, {}).items():
            since = self.at(key).owned_since  # a static member may get its partitions one after the other
            owned = self._owns(query, key) and self.began[query.name] <= since < began - SOON / 4
            now = self._exists(key) and not self.rebalancing(group)  # or the coordinator may refuse the commit
            now &= life.process.held_until < began - SOON / 2  # or a lookup that it delayed is tried again later
            now &= self.overdue.get(query.name, -1.0) < self.open[query.name].planned_at  # or it is given up
            if pending and owned and now and suffered < 2 and told and not self.open[query.name].lost:
                raise Broken(f"I2: {query.name} has ended without a commit of {_span(sorted(pending))} of {key[2]}")

    def _check_late_commits(self, query: Query, group: str, began: float) -> None:
        """I2: a query that ends in order repairs what a late commit of its own has moved back, if that is all."""
        troubled = max([self.outage_ends, *(when for when, _ in self.faults[-1:])])
        for key, at in self.partitions.items():
            name, fell_at = at.fell or ("", math.inf)
            quiet = self._exists(key) and troubled <= fell_at <= began and self.hesitates_until < fell_at
            if name == query.name and quiet and self._owns(query, key) and not self.rebalancing(group):
                raise Broken(f"I2: {query.name} has ended after a late commit of {at.committed} of {key[2]}")

    def lost_data(self, query: Query, error: Exception) -> None:
        """A query ended because records are lost: only if they are."""
        self.told(f"{query.name} ends: {error}")
        self.open[query.name].lost = True  # the member may have failed first
        deleted = "does not exist any more" in f"{error}" and not self._gone(query)
        lagging = self.kafka._frozen
        if deleted and any(self.kafka.brokers.keys() - view.fenced <= lagging.keys() for view in lagging.values()):
            return  # a broker lags behind that knows of no other one
        recent = [what for when, what in self.faults[-2:] if when > self.run.now - SOON]
        if deleted and lagging and any("Metadata" in what and REFUSED in what for what in recent):
            return  # one lags behind, and the other one has answered that it does not know the topic
        if not self.data_may_be_lost or (deleted and self.recreated_at < self.began[query.name]):
            raise Broken(f"I7: {query.name} ends with a loss that did not happen: {error}")

    def gave_up(self, query: Query, error: Exception, life: str) -> None:
        """A query ended because no broker answered, or its topic does not exist: only at its start, and if it is so."""
        self.told(f"{query.name} ends: {error}")
        gone, began = self._gone(query), self.began[query.name]
        if self._never_permitted(query, error):
            return
        early = isinstance(error, TopicError) and self.run.now - began < SOON and self.recreated_at < began
        early &= self.outage_ends < began and self._informed()
        run = query.life is not None and query.life.available_now  # needs every leader when it begins
        if ((self.calm or early) and not gone) or (life in self.joined and (self.calm or not run)):
            raise Broken(f"I7: {query.name} ends by an error that heals: {error}")

    def _never_permitted(self, query: Query, error: Exception) -> bool:
        """Whether a permission is missing that this process may never have had: then the first rejection is final."""
        commits = (at.commits.get(query.name, -1.0) for at in self.partitions.values())
        worked = any(at >= self.began[query.name] for at in commits)
        return "TOPIC_AUTHORIZATION_FAILED" in f"{error}" and not worked

    def _informed(self) -> bool:
        """Whether a broker answers that knows all topics and partitions, and others know of it."""
        brokers: dict[int, Any] = self.kafka.brokers
        silent = self.kafka._frozen.keys() | self.kafka.fenced
        return any(each.up and each.hung_until <= self.run.now and node not in silent for node, each in brokers.items())

    def rejected(self, query: Query, error: Exception) -> None:
        """The group rejects a member for good: a static one, if a new coordinator knows only the former one."""
        fenced = "FENCED_INSTANCE_ID" in f"{error}" and self.coordinated_since >= self.began[query.name]
        if not fenced and not self._never_permitted(query, error):
            raise error
        self.told(f"{query.name} ends: {error}")

    def commits_failed(self, query: Query) -> None:
        """A query with ``onCommitFailure=fail`` ended because two commits in a row failed."""
        self.told(f"{query.name} ends, because commits fail")
        since = max(self.expelled_at, self.hesitates_until, self.outage_ends)
        before = min(self.run.now - WINDOW - query.slowest_trigger, self.open[query.name].planned_at)
        if self.calm and query.name not in self.failed_twice and since < before:
            raise Broken(f"I7: {query.name} ends because of a single commit that failed")

    def _gone(self, query: Query) -> set[str]:
        given = query.options
        topics = json.loads(given["assign"]) if "assign" in given else given["subscribe"].split(",")
        return set(topics) - self.kafka.logs.keys()

    def run_ended(self, query: Query) -> None:
        """I10: an AvailableNow run has ended by itself."""
        group = query.options["kafka.group.id"]
        if self.run.now - self.moved_at < SOON:
            return  # the run may have ended before
        # With members that remain, or left just now, it may be that this one never got a partition.
        alone = not self.members(group) and self.run.now - self.died_at > SOON
        unassigned = query.name not in self.first_assigned and alone
        for topic, number in self.ends():
            key, log = self.key(group, topic, number), self.kafka.logs[topic][number]
            calm = self.calm and not self.rebalancing(group) and self.expelled_at < self.began[query.name]
            known = self.at(key).owned_since < self.run.now - SOON / 24
            to_reset = known and self._is_to_reset(query, key) and self._owns(query, key)
            if calm and (to_reset or (unassigned and key in self.resets.get(query.name, ()))):
                raise Broken(f"I10: the run of {query.name} ends, and {topic}-{number} is not reset")
            end = self.targets[query.name].get(key[1:])
            if end is None or not self.subscribed(query, topic, number):
                continue
            at = self.at(key)
            self._ignore_reset(query, at)
            missing = _missing(at.done | log.markers, log.start, min(end, log.end))
            if at.cut_at >= 0 and (at.committed or 0) >= end:
                continue  # the group's commit is beyond the target, although its records are not those
            if missing and (at.started or query.options["startingOffsets"] == "earliest"):
                raise Broken(
                    f"I10: the run of {query.name} ends, and {_span(missing)} of {topic}-{number} are not read"
                )

    def subscribed(self, query: Query, topic: str, number: int) -> bool:
        if "assign" in query.options:
            return number in json.loads(query.options["assign"]).get(topic, ())
        return topic in query.options["subscribe"].split(",")

    # What the coordinator does

    def handled(self, process: Process, node: int, api: str, request: Any, response: Any) -> None:
        """A broker has handled a request."""
        if api in ("SyncGroup", "OffsetCommit"):
            self.joined.add(process.name)
        rejoins = api == "JoinGroup" and request.member_id in {"", *self.kafka.group(request.group_id).members}
        if rejoins or getattr(request, "member_epoch", 1) == 0:
            name = self.client_query[process.name].name
            expired = self.run.now - self.heard.get(process.name, LAST) > self.kafka.session_timeout
            if (name in self.unaware and self.run.now > self.expelled_at) or expired:  # not answered just before
                self.unaware.discard(name)
                self.aware_at[name] = self.run.now
        if api == "OffsetCommit":
            self._committed(process, request, response)
        if api in ("SyncGroup", "ConsumerGroupHeartbeat") and not response.error_code:
            self._note_owned(request.group_id, request.member_id)
            owned = {self.key(request.group_id, *tp) for tp in self._owners(request.group_id, request.member_id)}
            if owned:
                self.first_assigned.setdefault(self.client_query[process.name].name, owned)
                self.assigned_at.setdefault(self.client_query[process.name].name, self.run.now)

    def _committed(self, process: Process, request: Any, response: Any) -> None:
        query = self.client_query.get(process.name)
        for topic, answered in zip(request.topics, response.topics, strict=True):
            name = self._names.get(topic.topic_id, "") if request.version >= 10 else topic.name
            if not name and not all(answer.error_code for answer in answered.partitions):
                self.outdated.add(self.former_ids.get(topic.topic_id, ""))
            for part, answer in zip(topic.partitions, answered.partitions, strict=True):
                if query is None or name not in self.kafka.logs:
                    continue
                text = f"{process.name} commits {part.committed_offset} of {name}-{part.partition_index}"
                self.told(text if not answer.error_code else f"{text}: refused with {answer.error_code}")
                at = self.at(self.key(query.options["kafka.group.id"], name, part.partition_index))
                if answer.error_code in FENCED:
                    self._fenced(query)
                if query.life and query.life.process is process:
                    at.decided.setdefault(query.name, part.committed_offset)
                if not answer.error_code:
                    self._accepted(query, process, request, name, part)

    def _fenced(self, query: Query) -> None:
        """The coordinator refuses a commit as of no member. Spark may already have the next batch."""
        self.fenced_at[query.name] = self.run.now
        batch = self.open[query.name]
        if not self.calm:
            self._may_be_repeated(query, batch.ranges)
        elif not batch.done:
            self._ranges_may_be_repeated(query, batch.ranges)

    def _exists(self, key: Key) -> bool:
        """Whether the topic exists now: no commit can name a former one."""
        return key[1] in map(_text, self.kafka.ids.values())

    def _accepted(self, query: Query, process: Process, request: Any, topic: str, part: Any) -> None:
        number, offset = part.partition_index, part.committed_offset
        group = query.options["kafka.group.id"]
        key = self.key(group, topic, number)
        at = self.at(key)
        self._reset(query, key, offset, self.kafka.logs[topic][number])
        if not at.started:
            self._check_first(query, key, topic, offset)
        # A late request of a query that is gone, or whose offset was overtaken, changes nothing that is done.
        self._ignore_reset(query, at)
        if offset == at.committed:  # of a reset whose commit has never arrived, no other member knows
            at.done |= set(range(offset))
        unread = _missing(at.done, 0, offset)
        if unread and not self._cut_unseen(at, topic, number, part.committed_leader_epoch):
            raise Broken(f"I2: {process.name} commits {offset} of {topic}-{number}, and {_span(unread)} are not read")
        if all(REFUSED in what for when, what in self.faults[-2:] if when > self.run.now - LATEST):
            self.failures[query.name] = 0  # and the query knows
        member = request.member_id or process.name
        owner = self._owners(group).get((topic, number)) or self.owners.get((group, topic, number))
        if request.member_id and owner != request.member_id:
            raise Broken(f"I4: {process.name} commits {topic}-{number}, which it does not own")
        fallen = set(range(offset, at.committed or 0)) - at.repeatable
        hesitated = self.hesitates_until > self.run.now - SOON  # before it sent an earlier one
        if at.by == member and fallen and self.calm and not hesitated:
            raise Broken(f"I4: {process.name} commits {offset} of {topic}-{number} after {at.committed}")
        # A former coordinator may still answer with the offset before.
        settled = 0 if self.kafka.former_coordinators else min(offset, self._lowest_cut(key))
        at.repeatable = (at.repeatable | fallen) - set(range(settled))  # again only for a new reason
        # A commit without room for its tag cannot be told from an operator's, so nothing repairs what it moves back.
        at.beyond_repair = offset < (at.committed or 0) and not part.committed_metadata
        if offset < (at.committed or 0):
            self.moved_at = self.run.now
        late = fallen and at.by == member and part.committed_metadata and at.cut_at < 0
        at.fell = (query.name, self.run.now) if late else None
        at.started, at.committed, at.by, at.reset_by = True, offset, member, ""
        at.commits[query.name] = self.run.now
        if offset in at.moved_to and part.committed_metadata:  # it follows the move
            for name in at.ignorable.keys() - {query.name}:
                at.done -= at.ignorable.pop(name) - set(range(self.kafka.logs[topic][number].start))
        at.moved_to &= {offset}  # its answer may be lost
        at.untagged = not part.committed_metadata
        at.without_epoch &= part.committed_leader_epoch == UNKNOWN_EPOCH
        if at.untagged:
            self._may_be_ignored(key, offset)
        for pending in self.uncommitted.values():
            if key in pending:
                pending[key] = {each for each in pending[key] if each >= offset} - self._log(key).markers

    def _note_owned(self, group: str, member: str) -> None:
        """I5: a partition is not handed over without a commit. A member has been told what it owns."""
        for topic, number in self._owners(group, member):
            self.owners[group, topic, number] = member
            at = self.at(self.key(group, topic, number))
            if at.owner == member:
                continue
            since = min(at.owned_since - SOON, self.run.now - WINDOW)
            recent = [what for when, what in self.faults[-2:] if when >= since]
            over = max(self.outage_ends, self.recreated_at, self.leaderless.get((topic, number), 0.0))
            untroubled = self.calm and over < at.owned_since and len(recent) < 2
            retried = ["OffsetCommit"]
            if self._revocation_timeout(at.owner) > WINDOW:  # a shorter one has no time for two lookups of a start
                retried += "ListOffsets", "OffsetFetch"
            untroubled &= all(any(api in what for api in retried) for what in recent)
            untroubled &= self.hesitates_until < at.owned_since
            if at.owner and not at.started and untroubled and self._left_in_order(group, at):
                raise Broken(f"I5: {topic}-{number} goes from {at.owner} to {member} without any commit")
            at.owner, at.owned_since = member, self.run.now

    def _revocation_timeout(self, member: str) -> float:
        """How long a revocation of this member waits, in seconds."""
        client = self._clients.get(member, "")
        return min((each.revocation_timeout for each in self.queries.values() if each.client in client), default=0.0)

    def _left_in_order(self, group: str, at: Partition) -> bool:
        """Whether the owner lives, and had no batch that took longer than a revocation waits."""
        member = self.kafka.group(group).members.get(at.owner)
        overdue = [
            when for name, when in self.overdue.items() if member and self.queries[name].client in member.client_id
        ]
        return (
            member is not None and self._is_alive(member.client_id) and all(when < at.owned_since for when in overdue)
        )

    @property
    def _names(self) -> dict[UUID, str]:
        """The topics by their ids."""
        return {topic_id: name for name, topic_id in self.kafka.ids.items()}

    def _owners(self, group: str, only: str | None = None) -> dict[tuple[str, int], str]:
        """Who owns each partition, or each of one member, as the coordinator has assigned them."""
        state = self.kafka.group(group)
        names = self._names
        owners: dict[tuple[str, int], str] = {}
        for member in state.consumer.members.values():
            for topic_id, number in member.assigned | member.revoking if only in (None, member.id) else ():
                if topic_id in names:
                    owners[names[topic_id], number] = member.id
        for classic in state.classic.members.values():
            if only in (None, classic.id):
                owners |= dict.fromkeys(_decoded(classic.assignment), classic.id)
        return owners

    def check_promptness(self, queries: Iterable[Query]) -> None:
        """I2, I5, I8: what must be done soon, if nothing but one fault is in the way."""
        now = self.run.now
        for query in queries:
            life = query.life
            # A static member that was killed keeps its partitions from the next one until its session ends.
            takes_over = "kafka.group.instance.id" in query.options and self._may_be_member(query)
            if not self.calm or life is None or takes_over or life.process.paused_until > now - SOON:
                self._since = {key: since for key, since in self._since.items() if key[0] != query.name}
                continue
            group, owned = query.options["kafka.group.id"], self._owned(query)
            classic = not query.options.keys() & {"assign", "kafka.group.protocol"}
            if classic and life.process.name not in self.joined:
                owned = set()  # the group may wait for a member that was killed before it answers this one's join
            open_, state = self.open[query.name], self.kafka.group(group)
            for topic, number in owned:
                key, place = self.key(group, topic, number), f"{topic}-{number}"
                pending = self.uncommitted.get(query.name, {}).get(key)
                what = f"I2: {query.name} does not commit {_span(sorted(pending or {0}))} of {place}"
                # A lookup, or a commit that meets a rebalance, is sent again after this interval, and may suffer then.
                retried = SOON + float(query.options["offsetCommit.retryIntervalMs"]) / 1000.0
                # Nothing is sent again during a join, which may wait for a member that was killed.
                joins = classic and self.rebalancing(group) and self._has_dead_members(group)
                self._must_not_last(query, what, bool(pending and open_.told and not joins), retried)
                no_commit = (topic, number) not in state.offsets and self.kafka.logs[topic][number].leader is not None
                no_commit &= not (self.at(key).started or self.rebalancing(group))
                # A lookup without an answer is sent again after four times as long as it took.
                self._must_not_last(query, f"I5: {place} has an owner, and no commit", no_commit, retried + SOON)
            if "assign" in query.options or life.stopping.is_set():
                continue
            mine = [each for each in state.members.values() if query.client in each.client_id]
            # A lost answer to JoinGroup is noticed when the connection ends.
            patience = SOON if "kafka.group.protocol" in query.options else SOON + KEEPALIVE
            knows = life.process.name in self.heard or patience > SOON
            not_failed = life.ready and not self._may_fail(query) and not self.waits_for_join(query)
            self._must_not_last(
                query, f"I8: {query.name} is not a member", not (mine and knows) and not_failed, patience
            )
            revokes = any(
                each.revoking
                if isinstance(each, FakeConsumerMember)
                else each.join is None and state.classic.state == PREPARING
                for each in mine
            )
            self._must_not_last(
                query,
                f"I3: a revocation of {query.name} waits for nothing",
                revokes and open_.told,
                patience + (SOON if self.hesitates_until > now - 2 * SOON else 0.0),
            )

            reached = life.available_now and not self._reading(group) and self._target_reached(query, group)
            reached &= not self._has_dead_members(group)  # which may own what is new since
            # A log that is cut again is looked at again after a while only.
            patience = SOON + 2 * TRUNCATION_INTERVAL if self.cuts else SOON
            self._must_not_last(query, f"I10: the run of {query.name} does not end", reached, patience)
        self._check_removals({query.options["kafka.group.id"] for query in self.queries.values()})
        self._check_progress(list(queries))

    def _target_reached(self, query: Query, group: str) -> bool:
        offsets = self.kafka.group(group).offsets
        if query.name not in self.latest_targets:
            return False
        for topic, number in self.ends():
            end = self.latest_targets[query.name].get(self.key(group, topic, number)[1:], 0)
            log = self.kafka.logs[topic][number]
            if offsets.get((topic, number), (log.start, ""))[0] < log.after_last_record(min(end, log.end)):
                return False
        return True

    def _reading(self, group: str) -> bool:
        """Whether a query has a batch, of which a hand-over or a run may wait for the end."""
        return any(
            query.alive and self.open[name].ranges and not (self.open[name].done and self.open[name].told)
            for name, query in self.queries.items()
        )

    def _check_removals(self, groups: Iterable[str]) -> None:
        """I3: a revocation ends before the coordinator removes the member."""
        for group in groups:
            self._clients |= self.members(group)
        for removal in self.kafka.removals[self._removals :]:
            client = self._clients.get(removal.member_id, "")
            if removal.why == "rebalance timeout" and self._is_alive(client, self.joined) and self.calm:
                raise Broken(f"I3: {client} is removed, which has not given up its partitions in time")
            timed_out = client and removal.why in ("session", "rebalance timeout")
            for query in [each for each in self.queries.values() if timed_out and each.client in client]:
                self._may_be_repeated(query, self.open[query.name].ranges)
                if removal.why == "rebalance timeout":
                    self.unaware.add(query.name)
        self._removals = len(self.kafka.removals)

    def _check_progress(self, queries: list[Query]) -> None:
        """I7, I9: somebody reads each partition."""
        patience = 2 * SOON + 2 * max(query.slowest_trigger for query in queries)
        for (topic, number), end in self.ends().items():
            group = queries[0].options["kafka.group.id"]
            key = self.key(group, topic, number)
            at, log = self.at(key), self.kafka.logs[topic][number]
            now = len(at.done), at.committed
            done, seconds = self._starving.get(key, (now, 0))
            if end <= log.start or end - 1 in at.done or now != done or log.leader is None:
                self._starving[key] = now, 0
                continue
            waits = not self.calm or self._reading(group) or topic in self.outdated or self._has_dead_members(group)
            for query in queries:
                waits_for_joins = query.rebalance_timeout if self.rebalancing(group) else 0.0
                killed = self._may_be_member(query, waits_for_joins) or self.waits_for_join(query)
                life = query.life
                waits |= killed or life is None or life.available_now or life.stopping.is_set() or not life.ready
                waits |= self.run.now - self.began.get(query.name, 0.0) < SOON
            self._starving[key] = done, seconds + (not waits)
            if seconds > patience and any(self.subscribed(query, topic, number) for query in queries):
                raise Broken(f"I7: nobody reads {topic}-{number} for {seconds} s")

    def _has_dead_members(self, group: str) -> bool:
        """Whether the coordinator has not noticed yet that a member was killed."""
        return any(not self._is_alive(member.client_id) for member in self.kafka.group(group).members.values())

    def _is_alive(self, client: str, among: Container[str] | None = None) -> bool:
        """Whether a client is that of a living process, and of one ``among`` these."""
        alive = (query.life.process.name for query in self.queries.values() if query.life)
        return any(f"-{name}-" in client for name in alive if among is None or name in among)

    def _may_be_member(self, query: Query, longer: float = 0.0) -> bool:
        """Whether the session of a process that was killed may last, which begins again at a new coordinator."""
        killed_at = max(query.killed_at, self.coordinated_since if query.killed_at > 0 else 0.0)
        return self.run.now - killed_at < self.kafka.session_timeout + longer

    def waits_for_join(self, query: Query) -> bool:
        """Whether the query waits for the answer to a join that a broker has dropped."""
        name = query.life.process.name if query.life else ""
        return self.run.now - self.unanswered.get(name, -math.inf) < query.rebalance_timeout + JOIN_SLACK + SOON

    @property
    def beyond_repair(self) -> bool:
        """Whether a commit may stay behind until the next one: a run waits for it."""
        return any(at.beyond_repair for at in self.partitions.values())

    def rebalancing(self, group: str) -> bool:
        """Whether partitions are being handed over."""
        state = self.kafka.group(group)
        return state.classic.state in (PREPARING, COMPLETING) or any(
            each.revoking for each in state.consumer.members.values()
        )

    def _must_not_last(self, query: Query, what: str, now_so: bool, seconds: float) -> None:
        key = query.name, what
        if not now_so:
            self._since.pop(key, None)
        elif self.run.now - self._since.setdefault(key, self.run.now) > seconds:
            raise Broken(f"{what}, for {seconds:.0f} s")

    def _owned(self, query: Query) -> set[tuple[str, int]]:
        """The partitions that a query's member owns, as the coordinator has assigned them."""
        group = query.options["kafka.group.id"]
        clients = self.members(group)
        return {
            (topic, number)
            for (topic, number), member in self._owners(group).items()
            if topic in self.kafka.ids and query.client in clients.get(member, "")
        }

    def told_of_completion(self, query: Query, reported: Open | None = None) -> None:
        """A query hears that Spark has completed its batch: by a report of it, or by the next call."""
        batch = self.open[query.name]
        if reported not in (None, batch):
            return
        batch.told_at = min(batch.told_at, self.run.now) if batch.done else math.inf
        if batch.done and self._is_overdue(query, batch):
            self.overdue[query.name] = self.run.now
            for key, offsets in self.uncommitted.get(query.name, {}).items():
                self.at(key).repeatable |= offsets
                if self.at(key).untagged:
                    offsets.clear()  # the query takes its own commit for another program's, and begins there again

    # When all is quiet

    def unfinished(self, group: str, queries: Iterable[Query]) -> str:
        """I12, I5: what is still to be read and committed, when everything works again."""
        for query in queries:
            for (topic, number), end in self.ends().items():
                if not self.subscribed(query, topic, number):
                    continue
                at, log = self.at(self.key(group, topic, number)), self.kafka.logs[topic][number]
                missing = _missing(at.done, log.start, end)
                if missing and topic not in self.outdated:
                    return f"{_span(missing)} of {topic}-{number} are not read"
                held = self.kafka.group(group).offsets.get((topic, number))
                stands = held is not None and log.after_last_record(end) <= held[0] <= end
                if not stands and not at.beyond_repair:
                    return f"the committed offset of {topic}-{number} is {held and held[0]}, and its end {end}"
        return ""

    def members(self, group: str) -> dict[str, str]:
        """The client id of each member."""
        self.kafka.group(group).advance(self.run.now)
        return {each.id: each.client_id for each in self.kafka.group(group).members.values()}


@cache
def _decoded(assignment: bytes) -> tuple[tuple[str, int], ...]:
    if not assignment:
        return ()
    decoded = ConsumerProtocolAssignment.decode(assignment)
    return tuple((topic.topic, number) for topic in decoded.assigned_partitions for number in topic.partitions)


def _missing(done: set[int], start: int, end: int) -> list[int]:
    return [] if done.issuperset(range(start, end)) else [each for each in range(start, end) if each not in done]


def _key_of(query: Query, read: OffsetRange) -> Key:
    return query.options["kafka.group.id"], read.topic_id, read.partition


def _names(ranges: Iterable[OffsetRange]) -> str:
    return ", ".join(map(str, sorted(ranges))) or "nothing"


def _span(offsets: list[int]) -> str:
    return f"offsets {offsets[0]} to {offsets[-1]}" if len(offsets) > 1 else f"offset {offsets[0]}"
