"""The ten sentences of the contract, as rules for a simulated run. A rule that is broken raises :class:`Broken`.

A rule is judged only where no cause that the run knows explains what it sees: see :mod:`tests.simulation.troubles`.
What has to happen soon has :data:`BOUND` seconds without trouble.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from spark_group_source.clock import JITTER
from spark_group_source.errors import DataLoss
from spark_group_source.offsets import BatchOffset, OffsetRange
from spark_group_source.query.ownership import RESOLVE_BACKOFF_MAX
from tests.simulation.endings import Endings
from tests.simulation.network import LATE_ARRIVES, LATE_REQUEST, LATEST, MAX_LATENCY, Broken
from tests.simulation.positions import Batch, Key, Partition, key_of
from tests.simulation.troubles import BOUND, WINDOW

if TYPE_CHECKING:
    from tests.simulation.spark import Query
    from tests.simulation.truth import Truth

LONGEST_CALL = 120.0
"""Seconds within which each call of the reader returns, whatever happens."""

STARTED_LATER = RESOLVE_BACKOFF_MAX * (1 + JITTER)
"""Seconds by which a first commit may follow later: a lookup of starts that took long, and delayed other partitions,
is repeated only after such a time."""

COMMITTED_SOONER = -12.0
"""Seconds by which a commit must follow sooner: before a rare trigger asks for it."""

SLACK = 1.0
"""Seconds by which a thread may be late on a busy machine."""

SETTLED = 3.0
"""Seconds within which a new owner has done what it does first."""

RETRIED = {"OffsetCommit", "OffsetFetch", "ListOffsets"}
"""Requests that an owner sends again before it hands a partition over."""


class Contract:
    """The rules for one run, in the order of the sentences. What is true, they ask :class:`Truth`."""

    def __init__(self, truth: Truth) -> None:
        self.truth, self.run = truth, truth.run
        self.troubles, self.positions, self.membership = truth.troubles, truth.positions, truth.membership
        self.endings = Endings(truth)
        self._planned: dict[tuple[str, str], list[OffsetRange]] = {}
        self._since: dict[tuple[str, str, Any], float] = {}

    # 1. Replay is exact.

    def check_json(self, query: Query, offset: str) -> None:
        """Offsets survive their JSON."""
        if json.dumps(BatchOffset.from_json(json.loads(offset)).as_json()) != offset:
            raise Broken(f"I1: {query.name}: the offset changes on its way through JSON: {offset}")

    def check_ranges(self, query: Query, offset: str, ranges: list[OffsetRange]) -> None:
        """A replayed batch has the ranges of its first plan."""
        before = self._planned.setdefault((query.name, offset), ranges)
        if sorted(before) != sorted(ranges):
            raise Broken(f"I1: {query.name} replays {sorted(ranges)} instead of {sorted(before)}")

    # 2. Only completed work is committed, and all of it.

    def check_commit(self, what: str, key: Key, offset: int) -> None:
        """A commit covers only what is done."""
        unread = self.positions.unread(key, offset)
        if unread:
            raise Broken(f"I2: {what}, and {span(unread)} are not read")

    def check_owed(self, query: Query, key: Key, *, waits: bool) -> None:
        """What a query knows to be completed is committed soon."""
        owes = bool(self.positions.owed(key, query.process.name)) and self.truth.batches[query.name].told
        what = f"I2: {query.name} does not commit {self.positions.place(key)}"
        self._must_not_last(query, what, owes and not waits, COMMITTED_SOONER)

    def check_last_commit(self, query: Query, began: float) -> None:
        """A query that ends, which took from ``began`` until now, commits first what it knew to be completed."""
        batch = self.truth.batches[query.name]
        if not self.troubles.orderly(began) or batch.lost or batch.told_at >= began or self.truth.was_overdue(batch):
            return
        checked_at = self.truth.checked_at.get(batch.life, -1.0)
        if checked_at >= began and self.troubles.suffered(checked_at, api=f"OffsetCommit: the {LATE_ARRIVES}"):
            return  # a late commit came between the last check and the leave, from which on the group rejects it
        for key, at in self.positions.items():
            owed = self.positions.owed(key, batch.life)
            if owed and self._owned_before(query, at, began) and self.positions.topic(key):
                raise Broken(f"I2: {query.name} has ended without a commit of {span(owed)} of {key[1]}")

    def _owned_before(self, query: Query, at: Partition, began: float) -> bool:
        """Whether a query that ends has owned a partition since before, and no coordinator refuses its commit."""
        if self.membership.query(at.owner) is not query or self.membership.rebalancing():
            return False
        return query.began <= at.owned_since < began - SETTLED

    # 3. A hand-over loses nothing, and repeats nothing without a cause. 9. Two queries never read the same.

    def check_repeats(self, query: Query, read: OffsetRange) -> None:
        """No offset is in two batches, unless something happened since the first one was planned."""
        key = key_of(read)
        again: list[int] = []
        for offset in sorted(set(range(read.start, read.end)) - self.positions.without_records(key)):
            earlier = self.positions.at(key).reads.get(offset)
            if earlier is None or self._is_older_than_group(query, earlier):
                continue
            if not self._may_be_repeated(earlier, key, offset):
                again.append(offset)
        if again and self.positions.topic(key):
            raise Broken(f"I3: {query.name} reads {read} and {span(again)} of it twice for no reason")

    def _is_older_than_group(self, query: Query, earlier: Batch) -> bool:
        """Whether a query continues at a checkpoint from before the group was deleted, and another one has read as a
        new query. The checkpoint may have a later lineage than the new query's commits, which begin with 0."""
        outlived = any(query.checkpoint is each for each in self.truth.outlived)
        return outlived and earlier.query is not query

    def _may_be_repeated(self, earlier: Batch, key: Key, offset: int) -> bool:
        was_lost = earlier.lost and earlier.lost_at <= earlier.done_at
        if was_lost or not self.troubles.calm_since(earlier.planned_at):
            return True
        return not self.positions.at(key).is_committed(offset) and self._may_not_commit(earlier)

    def _may_not_commit(self, batch: Batch) -> bool:
        """Whether a query may have lost a partition before it could commit what it read."""
        query = batch.query
        if self.endings.may_fail(query) or not batch.is_running(self.run.now) or not self.troubles.commits_arrive:
            return True
        present = self.truth.batches[query.name]
        return self.truth.was_overdue(batch) or (self.truth.is_overdue(present) and not present.told)

    def check_session(self, query: Query) -> None:
        """Nothing is planned when no heartbeat was answered for a session: then all partitions are lost."""
        end = self.membership.session_end(query)
        if self.run.now > end + SLACK and not self.truth.stood_still_since(query, end):
            raise Broken(f"I3: {query.name} plans a batch {self.run.now - end:.1f} s after its session's end")

    def check_revocation(self, query: Query) -> None:
        """A revocation ends before the coordinator removes the member for it."""
        joined = query.life is not None and query.process.name in self.membership.joined
        if self.troubles.calm and joined:
            raise Broken(f"I3: {query.name} is removed, which has not given up its partitions in time")

    # 4. Only the owner commits, and never backwards.

    def check_committer(self, what: str, key: Key, member: str) -> None:
        """Nobody but the owner commits."""
        owner = self.membership.owners().get((self.positions.topic(key), key[1])) or self.positions.at(key).owner
        if owner and owner != member:
            raise Broken(f"I4: {what}, which it does not own")

    def check_fall(self, what: str, key: Key, member: str) -> None:
        """No owner commits less than before. A commit that arrives late does, which its sender repairs."""
        at = self.positions.at(key)
        if at.by == member and self.troubles.commits_arrive and not self.positions.lost[key]:
            raise Broken(f"I4: {what} after {at.committed}")

    # 5. Every owned partition has a commit at once.

    def check_first_commit(self, query: Query, key: Key, *, waits: bool) -> None:
        """A partition has a commit soon after it has an owner."""
        is_missing = self.positions.at(key).committed is None and self.positions.log(key).leader is not None
        waits = waits or self.membership.rebalancing()
        what = f"I5: {self.positions.place(key)} has an owner, and no commit"
        self._must_not_last(query, what, is_missing and not waits, STARTED_LATER)

    def check_handover(self, key: Key, member: str) -> None:
        """No partition goes to another owner without any commit."""
        at = self.positions.at(key)
        if at.owner and at.committed is None and self._left_in_order(at):
            raise Broken(f"I5: {self.positions.place(key)} goes from {at.owner} to {member} without any commit")

    def _left_in_order(self, at: Partition) -> bool:
        """Whether nothing kept the owner of a partition from its first commit."""
        query = self.membership.query(at.owner)
        if query is None or not query.alive or at.owner not in self.membership.members():
            return False
        if not self.troubles.calm or self.troubles.held_until >= at.owned_since:
            return False
        retried = RETRIED
        if query.revocation_timeout < WINDOW:
            retried = {"OffsetCommit"}
        if self.troubles.suffered_other(at.owned_since - BOUND, retried):
            return False
        return self.truth.overdue.get(query.name, -1.0) < at.owned_since

    # 6. Fixed rules say where a partition starts. Who starts elsewhere commits what is not done, and breaks sentence 2.

    # 7. Trouble of the group never kills or wedges a query.

    def check_error(self, query: Query, error: Exception) -> None:
        """Only what is so and does not heal ends a query. The replay of a batch (1) only a loss of its records."""
        replays = query.life is not None and query.life.replaying and not isinstance(error, DataLoss)
        sentence = "I7"
        if replays:
            sentence = "I1"
        if replays or not self.endings.may_end(query, error):
            raise Broken(f"{sentence}: {query.name} ends by what is not so, or heals: {error}") from error

    def check_call(self, query: Query, call: str, seconds: float) -> None:
        """Every call returns in time."""
        stood_still = max(query.process.paused_until, query.process.held_until) > self.run.now - seconds
        if seconds > LONGEST_CALL and not stood_still:
            raise Broken(f"I7: {query.name}: {call} took {seconds:.0f} s")

    def check_progress(self) -> None:
        """Somebody reads each partition, if all queries run and none has a batch that others wait for."""
        queries = list(self.truth.queries.values())
        is_reading = any(batch.query.alive and batch.reading for batch in self.truth.batches.values())
        waits = is_reading or self.membership.waits_for_dead() or not all(map(reads_on, queries))
        longest = 2 * max(query.slowest_trigger for query in queries)
        for (topic, number), end in self.positions.ends().items():
            key = self.positions.key(topic, number)
            at, led = self.positions.at(key), self.positions.log(key).leader is not None
            starves = led and not waits and bool(self.positions.unread(key, end, end - 1))
            what, state = f"I7: nobody reads {topic}-{number}", (len(at.done), at.committed)
            self._must_not_last(queries[0], what, starves and self._is_subscribed(topic, number), longest, state)

    def _is_subscribed(self, topic: str, number: int) -> bool:
        return any(query.subscribes(topic, number) for query in self.truth.queries.values())

    # 8. Each running query has one member, which leaves promptly. ``Scenario`` counts them at the end.

    def check_leave(self, query: Query, began: float) -> None:
        """No member is left of a query that has ended, which took from ``began`` until now."""
        if self.troubles.orderly(began) and not self._may_remain(query, began):
            raise Broken(f"I8: {query.name} has ended, and its member is still in the group")

    def _may_remain(self, query: Query, began: float) -> bool:
        """Whether a member is static, its join may arrive after it has left, or the query does not know it."""
        if query.options.keys() & {"assign", "kafka.group.instance.id"}:
            return True
        name = query.process.name
        if name not in self.membership.heard and "kafka.group.protocol" not in query.options:
            return True
        if self.troubles.suffered(began - LATEST, api=f"ConsumerGroupHeartbeat: the {LATE_REQUEST}"):
            return True
        return self.membership.joins.get(name, -1.0) > began - MAX_LATENCY

    # 10. AvailableNow is complete.

    def check_target(self, query: Query) -> None:
        """A run does not end before all up to its target is read, unless an operator has moved the group meanwhile."""
        if self.truth.moved_at > query.began:
            return
        for key, end in self.truth.targets[query.name].items():
            log = self.positions.log(key)
            if self.positions.at(key).committed is None and query.options["startingOffsets"] != "earliest":
                continue
            unread = set(self.positions.unread(key, min(end, log.end))) - log.markers
            if unread:
                place = self.positions.place(key)
                raise Broken(f"I10: the run of {query.name} ends, and {span(unread)} of {place} are not read")

    def check_resets(self, query: Query) -> None:
        """A run does not end before it has reset its first assignment."""
        resets = self.truth.resets
        if query.name not in resets.resetting or self.truth.moved_at > query.began:
            return
        if self.troubles.last > query.began or self.membership.rebalancing():
            return
        if query.name not in resets.left and not self.membership.members() and not self._others_read(query):
            raise Broken(f"I10: the run of {query.name} ends, and resets nothing")
        for key in resets.owed(query):
            if self._owned_before(query, self.positions.at(key), self.run.now):
                raise Broken(f"I10: the run of {query.name} ends, and {key[1]} is not reset")

    def _others_read(self, query: Query) -> bool:
        """Whether a query knew that it is assigned nothing, since others have owned its partitions after its start."""
        if self.truth.resets.assigned_at.get(query.name, self.run.now) >= self.run.now - MAX_LATENCY:
            return False
        for key, at in self.positions.items():
            owned = bool(at.owner) and at.owned_since >= query.began
            if owned and query.subscribes(self.positions.topic(key), key[1]):
                return True
        return False

    # What must not last

    def check_soon(self) -> None:
        """Checks all that must be so soon."""
        waits = self.membership.waits_for_dead()
        for query in self.truth.queries.values():
            if query.life is not None:
                for tp in sorted(self.membership.owned(query)):
                    self.check_owed(query, self.positions.key(*tp), waits=waits)
                    self.check_first_commit(query, self.positions.key(*tp), waits=waits)
        if self.truth.queries:
            self.check_progress()

    def _must_not_last(self, query: Query, what: str, now_so: bool, longer: float = 0.0, state: Any = None) -> None:
        """Checks what must not last so much longer than the bound, in the same run of a query and the same state."""
        key = query.process.name if query.life is not None else query.name, what, state
        if not now_so:
            self._since.pop(key, None)
            return
        since = max(self._since.setdefault(key, self.run.now), self.troubles.last)
        if self.run.now - since > BOUND + longer:
            raise Broken(f"{what}, for {self.run.now - since:.0f} s")

    def unfinished(self) -> str:
        """What is still to be done when everything works again: I10 of runs, I12 of all that is to be read."""
        for query in self.truth.queries.values():
            if query.life is None:
                return f"I12: {query.name} does not run"
            if query.life.available_now and not self.positions.unrepaired:
                return f"I10: the run of {query.name} has not ended"
        for (topic, number), end in self.positions.ends().items():
            key = self.positions.key(topic, number)
            unread, log = self.positions.unread(key, end), self.positions.log(key)
            if not self._is_subscribed(topic, number):
                continue
            if unread:
                return f"I12: {span(unread)} of {topic}-{number} are not read"
            committed = self.membership.group.offsets.get((topic, number), (-1, ""))[0]
            if not log.after_last_record(end) <= committed <= end and not self.positions.at(key).unrepaired:
                return f"I12: the committed offset of {topic}-{number} is {committed}, and its end {end}"
        return ""


def reads_on(query: Query) -> bool:
    """Whether a query lives, and reads what comes."""
    life = query.life
    return life is not None and life.ready and not life.available_now and not life.stopping.is_set()


def span(offsets: Iterable[int]) -> str:
    first, *others = sorted(offsets)
    return f"offsets {first} to {others[-1]}" if others else f"offset {first}"
