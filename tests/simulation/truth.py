"""What a run must not do to a user, checked at each event: the sentences of the contract.

A record must not be skipped, or read again without a cause that the run knows. A commit must not lie beyond what is
done, nor move back. A query must not end or hang without a reason, nor leave a member behind. What has to happen
soon has :data:`~tests.simulation.troubles.BOUND` seconds without trouble. The truth about a partition is which of its
offsets are *done*: see :mod:`tests.simulation.positions`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from spark_group_source.errors import TopicError
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from tests.fake import FakeKafka
from tests.simulation.membership import Membership
from tests.simulation.network import KEEPALIVE, LATE_REQUEST, LATEST, MAX_LATENCY, Broken
from tests.simulation.positions import Key, Partition, Positions, missing, text
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.troubles import BOUND, WINDOW, Troubles

if TYPE_CHECKING:
    from tests.simulation.spark import Query

LONGEST_CALL = 120.0
"""Seconds within which each call of the reader returns, whatever happens."""

COMMITTED_SOONER = -12.0
"""Seconds by which a commit must follow sooner: before a rare trigger asks for it."""

NOTICED = 6.0
"""Seconds within which a living query learns that it has lost its member."""

SLACK = 1.0
"""Seconds by which a thread may be late on a busy machine."""

NO_MEMBER = {25, 110}
"""UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH: by these a query learns from its commit that it has lost its partitions."""

FENCED = {22, 82, 113}
"""ILLEGAL_GENERATION, FENCED_INSTANCE_ID, STALE_MEMBER_EPOCH: by these, that it has perhaps."""

RETRIED = {"OffsetCommit", "OffsetFetch", "ListOffsets"}
"""Requests that an owner sends again before it hands a partition over."""


@dataclass(eq=False, kw_only=True)
class Batch:
    """The batch that a query planned last.

    Attributes:
        done: whether Spark has completed it.
        told_at: since when the query knows that; infinity if it does not.
        lost: whether the query may not count it as read: it lost its member, or another query's report confused it.
    """

    ranges: list[OffsetRange] = field(default_factory=list)
    replayed: bool = False
    planned_at: float = 0.0
    done: bool = False
    told_at: float = 0.0
    lost: bool = False

    @property
    def told(self) -> bool:
        """Whether the query knows that it is completed."""
        return self.told_at < math.inf


class Truth:
    """Checks one run. Each method tells it of an event."""

    def __init__(self, run: Scheduler, kafka: FakeKafka, told: Any) -> None:
        self.run, self.kafka, self.told = run, kafka, told
        self.brokers: list[Any] = list(kafka.brokers.values())
        self.queries: dict[str, Query] = {}
        self.query_of: dict[str, Query] = {}
        """The query of each process."""
        self.troubles = Troubles(run, told)
        self.positions = Positions(kafka)
        self.membership = Membership(run, kafka, self.queries)
        self.batches: dict[str, Batch] = {}
        self.uncommitted: dict[str, dict[Key, set[int]]] = {}
        """What each query has completed, and the group has not."""
        self.planned_ranges: dict[tuple[str, str], list[OffsetRange]] = {}
        self.began: dict[str, float] = {}
        self.latest: dict[str, dict[tuple[str, int], int]] = {}
        """The ends of the partitions that existed when a query had its starting offsets: none starts after these."""
        self.targets: dict[str, dict[tuple[str, int], int]] = {}
        """The ends when a run began: it reads up to there."""
        self.latest_targets: dict[str, dict[tuple[str, int], int]] = {}
        """The ends when the first call of a run had returned: it waits for nothing behind them."""
        self.to_reset: dict[str, set[Key]] = {}
        """Partitions that a query with a new checkpoint has still to move to its starting offsets, of those that it was
        assigned first. There is no entry before that."""
        self.resetting: set[str] = set()
        """Queries with a new checkpoint that move their first assignment."""
        self.assigned_at: dict[str, float] = {}
        """When the coordinator first sent each query an assignment after its start, if only an empty one."""
        self.overdue: dict[str, float] = {}
        """When each query last had a batch that took longer than a revocation waits."""
        self.failures: dict[str, int] = defaultdict(int)
        """How many commits of a query suffered since the last that did not."""
        self.failed_twice: set[str] = set()
        self.former_ids: dict[UUID, str] = {}
        """The topics by all ids that they had."""
        self.outdated: set[str] = set()
        """Topics of which a coordinator with old metadata has a commit in a former life. It is served as any other."""
        self.data_may_be_lost = False
        self.moved_at = self.recreated_at = -BOUND
        self._last_owners: dict[tuple[str, str, int], str] = {}
        """The members that owned each partition of a group last, whatever became of its topic."""
        self._since: dict[tuple[str, str], float] = {}
        """Since when something is so that must not last, by query."""
        self._progress: dict[Key, tuple[int, int | None]] = {}
        self._last_commits: dict[str, float] = {}
        """When the group last accepted a commit of each query."""
        self._removals = 0
        self._clients: dict[str, str] = {}

    # What the scenario does

    def fault(self, what: str) -> None:
        """One message suffers."""
        if "OffsetCommit" in what:
            name = what.partition(".")[0]
            self.failures[name] += 1
            if self.failures[name] > 1:
                self.failed_twice.add(name)
        self.troubles.fault(what)

    def coordinator_moves(self, seconds: float, what: str) -> None:
        """The coordinator hands the group over in order: for so many seconds it answers with errors, as one fault."""
        self.membership.coordinated_since = self.run.now + seconds
        self.failed_twice |= self.queries.keys()  # a query sends several commits in that time
        self.troubles.one_fault(seconds, what)

    def moved(self, group: str, topic: str, partition: int, offset: int) -> None:
        """An operator moves the group's position. Where a query may take that for something else, it may ignore it."""
        self.troubles.disturb()
        self.moved_at = self.run.now
        key = self.positions.key(group, topic, partition)
        at = self.positions.at(key)
        ambiguous = self._is_ambiguous(key, at, topic, offset)
        at.before |= at.done
        at.done = set(range(offset)) | self.positions.lost[key[1:]]
        if ambiguous:
            at.done |= at.before
        at.started, at.committed, at.by = True, offset, "operator"

    def _is_ambiguous(self, key: Key, at: Partition, topic: str, offset: int) -> bool:
        """Whether a move looks like a repeated one, a late commit, or another client's commit of a logged batch."""
        if offset == (at.committed or 0) or at.untagged or self.troubles.held_until + SLACK > self.run.now:
            return True
        for query in self.queries.values():
            if query.alive and query.planning:
                return True
            for start, end in query.borders(topic, *key[1:]):
                if start - 1 <= offset <= end:
                    return True
        return False

    def _is_in_logged_batch(self, key: Key, topic: str, offset: int) -> bool:
        """Whether a query has planned a batch that reads this offset, and the one before, lately."""
        for query in self.queries.values():
            for start, end in query.borders(topic, *key[1:]):
                if start < offset < end:
                    return True
        return False

    def forgotten(self, group: str) -> None:
        """The group is deleted: its queries continue at their checkpoints, and others as new ones."""
        self.troubles.disturb()
        for key, at in self.positions.items():
            if key[0] == group:
                at.forget_commit()
                at.first_starts.clear()

    def lost_commit(self, key: Key) -> None:
        """The group's commit is deleted with those in the topic's former life. Nobody notices before the next one."""
        self.troubles.disturb()
        at = self.positions.at(key)
        at.unrepaired |= at.started
        at.forget_commit()

    def truncated(self, topic: str, partition: int, start: int) -> None:
        """Retention has deleted the records before ``start``."""
        self.data_may_be_lost = True
        self.positions.lose(topic, partition, 0, start)

    def cut_short(self, topic: str, partition: int, end: int, before: int) -> None:
        """An unclean election has removed the records from ``end`` on; other records may take their offsets."""
        self.troubles.disturb()
        self.data_may_be_lost = True
        self.positions.lose(topic, partition, end, before)
        place = text(self.kafka.ids[topic]), partition
        for pending in self.uncommitted.values():
            for key in pending:
                if key[1:] == place:
                    pending[key] = {each for each in pending[key] if each < end}
        for ends in (*self.targets.values(), *self.latest_targets.values()):
            if place in ends:
                ends[place] = min(ends[place], end)

    def recreated(self, topic: str) -> None:
        """A topic has another id now. A query finds that with its next call."""
        self.recreated_at = self.run.now
        longest = max((each.slowest_trigger + each.max_batch_seconds for each in self.queries.values()), default=0.0)
        self.troubles.disturb(longest)
        self.former_ids |= self.kafka.names()

    def expelled(self, query: Query) -> None:
        """The group loses a member."""
        if "assign" in query.options:
            return
        self.troubles.disturb()
        self._lost_partitions(query)
        for _, at in self.positions.items():
            at.by = at.owner = ""

    # What the queries do

    def started(self, query: Query, available_now: bool) -> None:
        self.former_ids |= self.kafka.names()
        self.queries[query.name] = query
        life = f"{query.name}.{query.lives}"
        self.query_of[life] = query
        self.began[query.name] = self.run.now
        if not query.checkpoint.offsets:
            query.pinned = False
            for _, at in self.positions.items():
                at.first_starts.pop(query.name, None)
        self._begin_resets(query)
        if available_now:
            self.targets[query.name] = self._known_ends()
            self.latest_targets.pop(query.name, None)
        self.batches[query.name] = Batch()
        self.failed_twice.discard(query.name)
        self.failures[query.name] = 0
        self.told(f"{life} starts{' an AvailableNow run' if available_now else ''}")

    def _begin_resets(self, query: Query) -> None:
        """A query with a new checkpoint moves what it is assigned first, also after a restart before that is logged."""
        logged = logged_offset(query)
        self.to_reset.pop(query.name, None)
        self.resetting.discard(query.name)
        self.assigned_at.pop(query.name, None)
        if "resetOffsetsOnStart" not in query.options or (logged.ranges and not logged.resets):
            return
        self.resetting.add(query.name)
        group, first = query.options["kafka.group.id"], list(logged.resets)
        if "assign" in query.options and not first:
            first = [TopicPartition(*tp) for tp in self.positions.ends() if subscribes(query, *tp)]
        if first:
            self.to_reset[query.name] = {self.positions.key(group, *tp) for tp in first}

    def _known_ends(self) -> dict[tuple[str, int], int]:
        """The ends that a run reaches: of what the brokers know that answer."""
        if not self._is_known():
            return {}
        former: set[str] = set()
        for view in self.kafka._frozen.values():
            for name, topic_id in self.kafka.ids.items():
                if view.topics.get(name, [topic_id])[0] != topic_id:
                    former.add(text(topic_id))
        return {place: end for place, end in self.positions.ends_by_id().items() if place[0] not in former}

    def pinned(self, query: Query) -> None:
        """A query knows its starting offsets: those that it does not decide later by what has been so now."""
        if not query.pinned:
            query.pinned = True
            self.latest[query.name] = self.positions.ends_by_id(open_too=True)

    def took_target(self, query: Query) -> None:
        """A run has taken the present ends as its target, or earlier ones."""
        behind = query.options["kafka.isolation.level"] == "read_uncommitted"
        self.latest_targets.setdefault(query.name, self.positions.ends_by_id(open_too=behind))

    def check_json(self, query: Query, offset: str) -> None:
        """I11: offsets survive their JSON."""
        if json.dumps(BatchOffset.from_json(json.loads(offset)).as_json()) != offset:
            raise Broken(f"I11: {query.name}: the offset changes on its way through JSON: {offset}")

    def returned(self, query: Query, call: str, seconds: float) -> None:
        """I7: every call returns in time."""
        process = query.life.process if query.life is not None else self.run.outside
        stood_still = max(process.paused_until, process.held_until) > self.run.now - seconds
        if seconds > LONGEST_CALL and not stood_still:
            raise Broken(f"I7: {query.name}: {call} took {seconds:.0f} s")

    def planned(self, query: Query, batch: int, offset: str, ranges: list[OffsetRange], *, replayed: bool) -> None:
        """A batch begins: I1 for one that is replayed, else I3, I6 and I9."""
        what = ", ".join(map(str, sorted(ranges))) or "nothing"
        self.told(f"{query.name} {'replays' if replayed else 'plans'} batch {batch}: {what}")
        before = self.planned_ranges.setdefault((query.name, offset), ranges)
        if sorted(before) != sorted(ranges):
            raise Broken(f"I1: {query.name} replays {what} instead of {', '.join(map(str, sorted(before)))}")
        self._check_removals(query.options["kafka.group.id"])
        if not replayed and ranges:
            self._check_session(query)
        for read in ranges:
            key = key_of(query, read)
            self._note_reset(query, key, read.start)
            if not replayed and self.positions.exists(key):
                self._check_end(query, key, read)
                self._check_repeats(query, key, read)
                if self.troubles.calm:
                    self._check_owner(query, key, read)
        planned_at = self.run.now
        if self._stood_still_since(query, query.plan_began):
            planned_at = max(query.plan_began, self.began[query.name])
        self.batches[query.name] = Batch(ranges=ranges, replayed=replayed, told_at=math.inf, planned_at=planned_at)

    def _stood_still_since(self, query: Query, when: float) -> bool:
        """Whether a query had planned before this time, and stood still after it before the batch."""
        process = self.run.outside if query.life is None else query.life.process
        return query.plan_began <= when <= self.run.now and when < max(process.plan_held_until, process.paused_until)

    def _check_session(self, query: Query) -> None:
        """I3: without an answer for a whole session, all partitions are lost."""
        end = self.membership.session_end(query)
        if self.run.now > end + SLACK and not self._stood_still_since(query, end):
            raise Broken(f"I3: {query.name} plans a batch {self.run.now - end:.1f} s after its session's end")

    def _check_end(self, query: Query, key: Key, read: OffsetRange) -> None:
        """I6: no batch ends beyond the end of a log that never lost records."""
        log = self.positions.log(key)
        beyond = [each for each in self.positions.lost[key[1:]] if each >= log.start]
        if read.end > log.end and read.epoch >= log.epoch and not beyond and read.topic not in self.outdated:
            raise Broken(f"I6: {query.name} plans {read}, which lies beyond the end of the log")

    def _check_owner(self, query: Query, key: Key, read: OffsetRange) -> None:
        """I9: no two live queries plan one partition."""
        if self._may_fail(query):
            return
        for name, batch in self.batches.items():
            rival = self.queries[name]
            if rival is query or not self._must_own(rival, batch):
                continue
            if any(key_of(rival, each) == key for each in batch.ranges):
                raise Broken(f"I9: {query.name} plans {read} while {name} reads the same partition")

    def _must_own(self, query: Query, batch: Batch) -> bool:
        """Whether a query has a batch, and nothing has happened by which it may lose its partitions before the end."""
        if batch.done or batch.replayed or batch.lost or not self._is_running(query):
            return False
        if self._may_fail(query) or self._is_overdue(query):
            return False
        return self.troubles.calm_since(batch.planned_at)

    def _is_running(self, query: Query) -> bool:
        """Whether a query lives, and Spark has not interrupted it."""
        return query.life is not None and query.life.ends_at > self.run.now

    def _may_fail(self, query: Query) -> bool:
        """Whether its options let a query fail if commits fail, or records are lost: its member leaves first."""
        if "onCommitFailure" in query.options:
            return True
        return self.data_may_be_lost and query.options.get("failOnDataLoss") != "false"

    def _is_overdue(self, query: Query) -> bool:
        """Whether a query's batch has taken longer than a revocation waits."""
        return self.run.now - self.batches[query.name].planned_at > query.revocation_timeout

    def _check_repeats(self, query: Query, key: Key, read: OffsetRange) -> None:
        """I3: nothing is read twice without a cause."""
        again: set[int] = set()
        process = query.life and query.life.process.name
        for offset, (reader, when) in self.positions.at(key).read_at.items():
            undisturbed = self.troubles.calm_since(when) or (reader == process and self.troubles.last < when - NOTICED)
            if read.start <= offset < read.end and undisturbed:
                again.add(offset)
        again -= self.positions.log(key).markers | self.positions.lost[key[1:]]
        for name, pending in self.uncommitted.items():
            if key in pending and self._may_not_commit(self.queries[name]):
                again -= pending[key]
        if again:
            raise Broken(f"I3: {query.name} reads {read} and {span(again)} of it twice for no reason")

    def _may_not_commit(self, other: Query) -> bool:
        """Whether a query may have lost a partition before it could commit what it read."""
        batch = self.batches[other.name]
        if self._may_fail(other) or not self._is_running(other):
            return True
        if self.troubles.suffered(self.run.now - BOUND, api="OffsetCommit"):
            return True
        return self.troubles.held_until > self.run.now - BOUND or (self._is_overdue(other) and not batch.told)

    def read(self, query: Query, ranges: Iterable[OffsetRange]) -> bool:
        """A task reads; whether all records are there."""
        complete = True
        for read in ranges:
            log = self.positions.log(key_of(query, read))
            complete &= self.positions.exists(key_of(query, read)) and log.start <= read.start and read.end <= log.end
        return complete or query.options.get("failOnDataLoss") == "false"

    def completed(self, query: Query, batch: int, ranges: list[OffsetRange]) -> None:
        self.told(f"{query.name} completes batch {batch}")
        completed = self.batches[query.name]
        completed.done = True
        pending = self.uncommitted.setdefault(query.name, {})
        late = self._is_overdue(query) or self.troubles.last > completed.planned_at
        for read in ranges:
            key, offsets = key_of(query, read), set(range(read.start, read.end))
            at = self.positions.at(key)
            at.done |= offsets
            if completed.lost:
                continue
            if not completed.replayed and not late:
                at.read_at |= dict.fromkeys(offsets, (f"{query.name}.{query.lives}", completed.planned_at))
            committed = at.committed or 0
            if not completed.replayed or committed >= read.start:  # else the group has gone back meanwhile
                offsets -= self.positions.lost[key[1:]]
                pending.setdefault(key, set()).update(each for each in offsets if each >= committed)

    def told_of_completion(self, query: Query, reported: Batch | None = None) -> None:
        """A query hears that Spark has completed its batch: by a report of it, or by the next call."""
        batch = self.batches[query.name]
        if reported not in (None, batch):
            return
        if not batch.done:
            batch.told_at = math.inf
            return
        batch.told_at = min(batch.told_at, self.run.now)
        if self._is_overdue(query):
            self.overdue[query.name] = self.run.now
            self._forget_reads(query)

    def _forget_reads(self, query: Query) -> None:
        """What a query has completed without a commit may be read again."""
        for key, offsets in self.uncommitted.get(query.name, {}).items():
            at = self.positions.at(key)
            for offset in offsets:
                at.read_at.pop(offset, None)

    def died(self, query: Query, *, killed: bool) -> None:
        """A query's process has ended."""
        if killed:
            self.troubles.disturb()
        self._forget_reads(query)
        self.uncommitted.pop(query.name, None)
        self._since = {key: since for key, since in self._since.items() if key[0] != query.name}
        self.told(f"{query.name} has ended")

    def left(self, query: Query, began: float) -> None:
        """A query has ended in order, which took from ``began`` until now."""
        remains = self.membership.is_member(query)
        if remains:
            query.killed_at = self.run.now  # its member stays, as that of a killed one
        if not self.troubles.calm or self.troubles.held_until > began - BOUND:
            return
        may_stay = bool(query.options.keys() & {"assign", "kafka.group.instance.id"})
        if remains and not may_stay and not self._joins_late(query, began):
            raise Broken(f"I8: {query.name} has ended, and its member is still in the group")
        if not self._knows_all(query, began):
            return
        for key, pending in self.uncommitted.get(query.name, {}).items():
            if pending and self._owned_before(query, key, began):
                raise Broken(f"I2: {query.name} has ended without a commit of {span(pending)} of {key[2]}")

    def _knows_all(self, query: Query, began: float) -> bool:
        """Whether a query that ends knew before that its batch was completed, and still had its partitions then."""
        batch = self.batches[query.name]
        if batch.lost or batch.told_at >= began:
            return False
        return self.overdue.get(query.name, -1.0) < batch.planned_at

    def _joins_late(self, query: Query, began: float) -> bool:
        """Whether a join may arrive after the member has left, or the query does not know its own member."""
        assert query.life is not None
        name = query.life.process.name
        if name not in self.membership.heard and "kafka.group.protocol" not in query.options:
            return True
        if self.troubles.suffered(began - LATEST, api=f"ConsumerGroupHeartbeat: the {LATE_REQUEST}"):
            return True
        return self.membership.joins.get(name, -1.0) > began - MAX_LATENCY

    def _owned_before(self, query: Query, key: Key, began: float) -> bool:
        """Whether a query that ends has owned a partition since before, and no coordinator refuses its commit."""
        at = self.positions.at(key)
        owns = query.client in self._clients.get(at.owner, "")
        if not owns or not self.positions.exists(key) or self.membership.rebalancing(key[0]):
            return False
        return self.began[query.name] <= at.owned_since < began - SLACK * 3

    # How queries end

    def lost_data(self, query: Query, error: Exception) -> None:
        """A query ended because records are lost: only if they are."""
        self.told(f"{query.name} ends: {error}")
        self.batches[query.name].lost = True
        deleted = "does not exist any more" in f"{error}" and not self._gone(query)
        if deleted and self._deletion_is_known():
            return
        if not self.data_may_be_lost or (deleted and self.recreated_at < self.began[query.name]):
            raise Broken(f"I7: {query.name} ends with a loss that did not happen: {error}")

    def _deletion_is_known(self) -> bool:
        """Whether every broker that answers lags behind, or says that it does not know the topic."""
        lagging = self.kafka._frozen
        if lagging and self.troubles.suffered(self.run.now - BOUND, api="Metadata"):
            return True
        return any(self.kafka.brokers.keys() - view.fenced <= lagging.keys() for view in lagging.values())

    def gave_up(self, query: Query, error: Exception, life: str) -> None:
        """A query ended because no broker answered, or its topic does not exist: only at its start, and if it is so."""
        self.told(f"{query.name} ends: {error}")
        if self._was_never_permitted(query, error):
            return
        if life in self.membership.joined:
            needs_leaders = query.life is not None and query.life.available_now  # when its run begins
            heals = self.troubles.calm or not needs_leaders
        else:
            heals = not self._gone(query) and (self.troubles.calm or self._answered_early(query, error))
        if heals:
            raise Broken(f"I7: {query.name} ends by an error that heals: {error}")

    def _answered_early(self, query: Query, error: Exception) -> bool:
        """Whether a query ended by an answer about its topics, and all was well when it began."""
        began = self.began[query.name]
        early = self.recreated_at < began and self.troubles.last < began
        return isinstance(error, TopicError) and early and self._is_known()

    def rejected(self, query: Query, error: Exception) -> None:
        """The group rejects a member for good: a static one, if a new coordinator knows only the former one."""
        moved = self.membership.coordinated_since >= self.began[query.name]
        if not ("FENCED_INSTANCE_ID" in f"{error}" and moved) and not self._was_never_permitted(query, error):
            raise error
        self.told(f"{query.name} ends: {error}")

    def commits_failed(self, query: Query) -> None:
        """A query with ``onCommitFailure=fail`` ended because two commits in a row failed."""
        self.told(f"{query.name} ends, because commits fail")
        if not self.troubles.calm or self.troubles.held_until > self.run.now - BOUND:
            return
        if query.name not in self.failed_twice:
            raise Broken(f"I7: {query.name} ends because of a single commit that failed")

    def _was_never_permitted(self, query: Query, error: Exception) -> bool:
        """Whether a permission is missing that this process may never have had: then the first rejection is final."""
        if "AUTHORIZATION_FAILED" not in f"{error}":
            return False
        return self._last_commits.get(query.name, -1.0) < self.began[query.name]

    def _is_known(self) -> bool:
        """Whether a broker answers that knows all topics and partitions, and others know of it."""
        brokers: dict[int, Any] = self.kafka.brokers
        silent = self.kafka._frozen.keys() | self.kafka.fenced
        return any(each.up and each.hung_until <= self.run.now and node not in silent for node, each in brokers.items())

    def _gone(self, query: Query) -> set[str]:
        """The topics of a query that do not exist now."""
        return subscribed_topics(query) - self.kafka.logs.keys()

    def run_ended(self, query: Query) -> None:
        """I10: an AvailableNow run has ended by itself."""
        if self.moved_at > self.began[query.name]:
            return  # the run may have ended before
        self._check_resets(query)
        group = query.options["kafka.group.id"]
        for topic, number in self.positions.ends():
            key, log = self.positions.key(group, topic, number), self.kafka.logs[topic][number]
            end = self.targets[query.name].get(key[1:])
            if end is None or not subscribes(query, topic, number):
                continue
            at = self.positions.at(key)
            if not at.started and query.options["startingOffsets"] != "earliest":
                continue
            unread = missing(at.done | log.markers, log.start, min(end, log.end))
            if unread:
                raise Broken(f"I10: the run of {query.name} ends, and {span(unread)} of {topic}-{number} are not read")

    def _check_resets(self, query: Query) -> None:
        """I10: a run that resets its first assignment does not end before that."""
        if query.name not in self.resetting or self.troubles.last > self.began[query.name]:
            return
        if self.membership.rebalancing(query.options["kafka.group.id"]):
            return
        alone = not self.membership.members(query.options["kafka.group.id"])
        knew_assignment = self.assigned_at.get(query.name, self.run.now) < self.run.now - SLACK / 2
        others_read = knew_assignment and self._had_other_owner(query)
        if query.name not in self.to_reset and alone and not others_read:
            raise Broken(f"I10: the run of {query.name} ends, and resets nothing")
        for key in self.to_reset.get(query.name, ()):
            at = self.positions.at(key)
            if query.client in self._clients.get(at.owner, "") and at.owned_since < self.run.now - SLACK / 2:
                raise Broken(f"I10: the run of {query.name} ends, and {key[2]} is not reset")

    def _had_other_owner(self, query: Query) -> bool:
        """Whether a member that may have left by now owned a partition of a query after the query's start."""
        group = query.options["kafka.group.id"]
        for topic, number in self.positions.ends():
            at = self.positions.at(self.positions.key(group, topic, number))
            if subscribes(query, topic, number) and at.owner and at.owned_since >= self.began[query.name]:
                return True
        return False

    # What the coordinator does

    def handled(self, process: Process, node: int, api: str, request: Any, response: Any) -> None:
        """A broker has handled a request."""
        if api in ("SyncGroup", "OffsetCommit"):
            self.membership.joined.add(process.name)
        if api == "OffsetCommit":
            self._committed(process, request, response)
        if api in ("SyncGroup", "ConsumerGroupHeartbeat") and not response.error_code:
            self._note_owned(request.group_id, request.member_id)
            query = self.query_of[process.name]
            if response.assignment is not None:
                self.assigned_at.setdefault(query.name, self.run.now)
            owned = self.membership.owners(request.group_id, request.member_id)
            if owned and query.name in self.resetting:
                first = {self.positions.key(request.group_id, *tp) for tp in owned}
                self.to_reset.setdefault(query.name, first)

    def _committed(self, process: Process, request: Any, response: Any) -> None:
        query = self.query_of.get(process.name)
        names = self.kafka.names()
        for topic, answered in zip(request.topics, response.topics, strict=True):
            name = topic.name
            if request.version >= 10:
                name = names.get(topic.topic_id, "")
            if not name and not all(answer.error_code for answer in answered.partitions):
                self.outdated.add(self.former_ids.get(topic.topic_id, ""))
            if query is None or name not in self.kafka.logs:
                continue
            for part, answer in zip(topic.partitions, answered.partitions, strict=True):
                self._answered(query, process, request, name, part, answer.error_code)

    def _answered(self, query: Query, process: Process, request: Any, topic: str, part: Any, error_code: int) -> None:
        what = f"{process.name} commits {part.committed_offset} of {topic}-{part.partition_index}"
        if query.life is not None and query.life.process is process:
            key = self.positions.key(query.options["kafka.group.id"], topic, part.partition_index)
            self.positions.at(key).first_starts.setdefault(query.name, part.committed_offset)
        if error_code:
            self.told(f"{what}: refused with {error_code}")
            if error_code in NO_MEMBER:
                self._lost_partitions(query)
            elif error_code in FENCED and not self.batches[query.name].done:
                self.batches[query.name].lost = True
            return
        self.told(what)
        self._accepted(query, process, request, topic, part)

    def _accepted(self, query: Query, process: Process, request: Any, topic: str, part: Any) -> None:
        """The group has a commit: I2 and I4."""
        offset = part.committed_offset
        key = self.positions.key(query.options["kafka.group.id"], topic, part.partition_index)
        at = self.positions.at(key)
        self._note_reset(query, key, offset)
        if not at.started:
            self._starts(query, key, offset)
        if offset == at.committed:  # of a reset whose commit has never arrived, no other member knows
            at.done.update(range(offset))
        unread = missing(at.done, self.positions.log(key).start, offset)
        if unread and topic not in self.outdated:
            raise Broken(f"I2: {process.name} commits {offset} of {topic}-{key[2]}, and {span(unread)} are not read")
        self._check_committer(process, request, topic, key)
        member = request.member_id or process.name
        falls = at.committed is not None and offset < at.committed
        if falls:
            self._fell(query, member, key, part)
        at.untagged = not part.committed_metadata
        at.unrepaired = at.untagged and falls
        if at.untagged and self._is_in_logged_batch(key, topic, offset):  # a query that read the same goes on behind it
            at.done |= at.before | at.read_at.keys()
        at.started, at.committed, at.by = True, offset, member
        self._note_success(query, key, offset)

    def _note_success(self, query: Query, key: Key, offset: int) -> None:
        """The group has what was read before an offset."""
        self._last_commits[query.name] = self.run.now
        if not self.troubles.suffered(self.run.now - LATEST, api="OffsetCommit"):
            self.failures[query.name] = 0  # and the query knows
        markers = self.positions.log(key).markers
        for pending in self.uncommitted.values():
            if key in pending:
                pending[key] = {each for each in pending[key] if each >= offset} - markers

    def _check_committer(self, process: Process, request: Any, topic: str, key: Key) -> None:
        """I4: only the owner commits."""
        place = topic, key[2]
        owner = self.membership.owners(key[0]).get(place) or self._last_owners.get((key[0], *place))
        if request.member_id and owner != request.member_id:
            raise Broken(f"I4: {process.name} commits {topic}-{key[2]}, which it does not own")

    def _fell(self, query: Query, member: str, key: Key, part: Any) -> None:
        """A commit moves the group back, which the query repairs if it is a late one of its own."""
        at, offset = self.positions.at(key), part.committed_offset
        self.moved_at = self.run.now
        assert at.committed is not None
        if at.by != member or self.positions.lost[key[1:]]:
            return
        late = self.troubles.suffered(self.run.now - BOUND, api="OffsetCommit")
        if self.troubles.calm and not late and self.troubles.held_until < self.run.now - BOUND:
            raise Broken(f"I4: {member} commits {offset} of {key[2]} after {at.committed}")
        if part.committed_metadata:
            self.uncommitted.setdefault(query.name, {}).setdefault(key, set()).update(range(offset, at.committed))

    def _starts(self, query: Query, key: Key, start: int) -> None:
        """I6: the first commit of a partition, or the first after the group's position was deleted.

        With ``latest`` a query may skip the records that were there when it had its starting offsets, and of these only
        those before the offset that it tried to commit first: a later try must not skip more.
        """
        at = self.positions.at(key)
        if query.options["startingOffsets"] == "latest":
            last = self.latest.get(query.name, {}).get(key[1:], 0)
            last = min(last, at.first_starts.get(query.name, last))
            at.done.update(range(min(start, last)))

    def _note_reset(self, query: Query, key: Key, start: int) -> None:
        """A query that resets moves each partition of its first assignment; again if it was expelled meanwhile."""
        if query.name not in self.resetting:
            return
        to_reset = self.to_reset.get(query.name, set())
        if key in to_reset or not logged_offset(query).ranges:
            to_reset.discard(key)
            at = self.positions.at(key)
            at.read_at.clear()
            if at.started:
                at.done.update(range(start))

    def _note_owned(self, group: str, member: str) -> None:
        """I5: a partition is not handed over without a commit. A member has been told what it owns."""
        for topic, number in self.membership.owners(group, member):
            self._last_owners[group, topic, number] = member
            at = self.positions.at(self.positions.key(group, topic, number))
            if at.owner == member:
                continue
            if at.owner and not at.started and self._left_in_order(group, at):
                raise Broken(f"I5: {topic}-{number} goes from {at.owner} to {member} without any commit")
            at.owner, at.owned_since = member, self.run.now

    def _left_in_order(self, group: str, at: Partition) -> bool:
        """Whether nothing kept the owner of a partition from its first commit."""
        owner = self.membership.members(group).get(at.owner, "")
        if not self.troubles.calm or self.troubles.held_until >= at.owned_since or not self.membership.is_alive(owner):
            return False
        since = at.owned_since - BOUND
        if self.troubles.suffered_other(since, RETRIED):
            return False
        looked_up_late = self.troubles.suffered_other(since, {"OffsetCommit"})
        for name, query in self.queries.items():
            hurried = looked_up_late and query.revocation_timeout < WINDOW
            if query.client in owner and (hurried or self.overdue.get(name, -1.0) >= at.owned_since):
                return False
        return True

    # What must not last

    def check_promptness(self, queries: Iterable[Query]) -> None:
        """I2, I5, I8: what must be done soon."""
        for query in queries:
            if query.life is None:
                continue
            self._check_commits(query)
            if "assign" not in query.options and not query.life.stopping.is_set():
                self._check_membership(query)
            self._check_run(query)
        for group in {query.options["kafka.group.id"] for query in self.queries.values()}:
            self._check_removals(group)
            self._check_progress(group)

    def _check_commits(self, query: Query) -> None:
        group, told = query.options["kafka.group.id"], self.batches[query.name].told
        waits = self.membership.waits_for_dead(group)
        committed = self.kafka.group(group).offsets
        for topic, number in self.membership.owned(query):
            key, place = self.positions.key(group, topic, number), f"{topic}-{number}"
            pending = self.uncommitted.get(query.name, {}).get(key, set())
            what = f"I2: {query.name} does not commit {place}"
            self._must_not_last(query, what, bool(pending) and told and not waits, COMMITTED_SOONER)
            led = self.kafka.logs[topic][number].leader is not None
            starts = (topic, number) not in committed and led and not self.positions.at(key).started
            starts &= not self.membership.rebalancing(group) and not waits
            self._must_not_last(query, f"I5: {place} has an owner, and no commit", starts)

    def _check_membership(self, query: Query) -> None:
        assert query.life is not None
        group = query.options["kafka.group.id"]
        waits = self.membership.waits_for_dead(group)
        outside = not self.membership.is_member(query) and query.life.ready and not self._may_fail(query)
        # A lost answer to JoinGroup is noticed when the connection ends.
        self._must_not_last(query, f"I8: {query.name} is not a member", outside and not waits, KEEPALIVE)
        revokes = self.membership.is_revoking(query) and self.batches[query.name].told
        self._must_not_last(
            query, f"I3: a revocation of {query.name} waits for nothing", revokes and not waits, KEEPALIVE
        )

    def _check_run(self, query: Query) -> None:
        assert query.life is not None
        group = query.options["kafka.group.id"]
        ends = query.life.available_now and not query.life.stopping.is_set() and self._target_is_reached(query, group)
        ends = ends and not self._reading() and not self.membership.waits_for_dead(group)
        self._must_not_last(query, f"I10: the run of {query.name} does not end", ends)

    def _target_is_reached(self, query: Query, group: str) -> bool:
        if query.name not in self.latest_targets:
            return False
        offsets = self.kafka.group(group).offsets
        for topic, number in self.positions.ends():
            end = self.latest_targets[query.name].get(self.positions.key(group, topic, number)[1:], 0)
            log = self.kafka.logs[topic][number]
            committed = offsets.get((topic, number), (log.start, ""))[0]
            if committed < log.after_last_record(min(end, log.end)):
                return False
        return True

    def _reading(self) -> bool:
        """Whether a query has a batch, of which a hand-over or a run may wait for the end."""
        for name, query in self.queries.items():
            batch = self.batches[name]
            if query.alive and batch.ranges and not (batch.done and batch.told):
                return True
        return False

    def _check_removals(self, group: str) -> None:
        """I3: a revocation ends before the coordinator removes the member."""
        self._clients |= self.membership.members(group)
        for removal in self.kafka.removals[self._removals :]:
            client = self._clients.get(removal.member_id, "")
            if removal.why == "rebalance timeout" and self.troubles.calm and self._is_joined(client):
                raise Broken(f"I3: {client} is removed, which has not given up its partitions in time")
            if removal.why in ("session", "rebalance timeout"):
                self._lost_member(client)
        self._removals = len(self.kafka.removals)

    def _lost_member(self, client: str) -> None:
        """The group has lost a member."""
        self.troubles.disturb()
        for query in self.queries.values():
            if query.client in client:
                self._lost_partitions(query)

    def _lost_partitions(self, query: Query) -> None:
        """A query is no member any more: what it has not committed is read again."""
        self.batches[query.name].lost = True
        self.uncommitted.pop(query.name, None)

    def _is_joined(self, client: str) -> bool:
        """Whether a client is that of a living process that has been in the group."""
        for query in self.queries.values():
            if query.life is not None and query.client in client and query.life.process.name in self.membership.joined:
                return True
        return False

    def _check_progress(self, group: str) -> None:
        """I7, I9: somebody reads each partition."""
        queries = list(self.queries.values())
        waits = self._reading() or self.membership.waits_for_dead(group) or not all(map(self._reads_on, queries))
        longest = 2 * max(query.slowest_trigger for query in queries)
        for (topic, number), end in self.positions.ends().items():
            starves = not waits and self._stands_still(self.positions.key(group, topic, number), topic, end)
            self._must_not_last(queries[0], f"I7: nobody reads {topic}-{number}", starves, longest)

    def _stands_still(self, key: Key, topic: str, end: int) -> bool:
        """Whether records of a partition are to be read, and nobody has read or committed any of it since."""
        at, log = self.positions.at(key), self.positions.log(key)
        progress = len(at.done), at.committed
        if self._progress.get(key) != progress:
            self._progress[key] = progress
            return False
        if log.leader is None or topic in self.outdated:
            return False
        if not any(subscribes(query, topic, key[2]) for query in self.queries.values()):
            return False
        return end > log.start and end - 1 not in at.done

    def _reads_on(self, query: Query) -> bool:
        """Whether a query lives, and reads what comes."""
        life = query.life
        return life is not None and life.ready and not life.available_now and not life.stopping.is_set()

    def _must_not_last(self, query: Query, what: str, now_so: bool, longer: float = 0.0) -> None:
        key = query.name, what
        if not now_so:
            self._since.pop(key, None)
            return
        since = max(self._since.setdefault(key, self.run.now), self.troubles.last)
        if self.run.now - since > BOUND + longer:
            raise Broken(f"{what}, for {self.run.now - since:.0f} s")

    # When all is quiet

    def unfinished(self, group: str, queries: Iterable[Query]) -> str:
        """I12, I5: what is still to be read and committed, when everything works again."""
        for query in queries:
            for (topic, number), end in self.positions.ends().items():
                if not subscribes(query, topic, number):
                    continue
                at, log = self.positions.at(self.positions.key(group, topic, number)), self.kafka.logs[topic][number]
                unread = missing(at.done, log.start, end)
                if unread and topic not in self.outdated:
                    return f"{span(unread)} of {topic}-{number} are not read"
                committed = self.kafka.group(group).offsets.get((topic, number), (-1, ""))[0]
                if not log.after_last_record(end) <= committed <= end and not at.unrepaired:
                    return f"the committed offset of {topic}-{number} is {committed}, and its end {end}"
        return ""

    @property
    def unrepaired(self) -> bool:
        """Whether a commit may stay behind until the next one: a run waits for it."""
        return any(at.unrepaired for _, at in self.positions.items())


def key_of(query: Query, read: OffsetRange) -> Key:
    return query.options["kafka.group.id"], read.topic_id, read.partition


def logged_offset(query: Query) -> BatchOffset:
    """What a query's checkpoint has logged last."""
    if not query.checkpoint.offsets:
        return BatchOffset()
    return BatchOffset.from_json(query.checkpoint.last)


def subscribed_topics(query: Query) -> set[str]:
    if "assign" in query.options:
        return set(json.loads(query.options["assign"]))
    if "subscribePattern" in query.options:
        return set(query.options["subscribePattern"].split("|"))
    return set(query.options["subscribe"].split(","))


def subscribes(query: Query, topic: str, number: int) -> bool:
    """Whether a query wants to read a partition."""
    if "assign" in query.options:
        return number in json.loads(query.options["assign"]).get(topic, ())
    return topic in subscribed_topics(query)


def span(offsets: Iterable[int]) -> str:
    first, *others = sorted(offsets)
    return f"offsets {first} to {others[-1]}" if others else f"offset {first}"
