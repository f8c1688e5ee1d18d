"""What is true in a simulated run, told event by event, which :class:`Contract` judges."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kafka.protocol.consumer import OffsetCommitResponse

from spark_group_source.errors import DataLoss
from spark_group_source.offsets import BatchOffset, OffsetRange
from tests.fake import FakeKafka
from tests.simulation.contract import SLACK, Contract
from tests.simulation.membership import Membership
from tests.simulation.positions import Batch, Key, Partition, Positions, key_of
from tests.simulation.resets import Resets
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.troubles import BOUND, Troubles

if TYPE_CHECKING:
    from tests.simulation.spark import Checkpoint, Query

NO_MEMBER = {25, 110}
"""UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH: by these a query learns from its commit that it has lost its partitions."""

FENCED = {22, 82, 113}
"""ILLEGAL_GENERATION, FENCED_INSTANCE_ID, STALE_MEMBER_EPOCH: by these, that it has perhaps."""


class Truth:
    """The truth about one run. Each method tells it of an event.

    Attributes:
        queries: those that ever started, by name.
        batches: what each query has planned last in its present run.
        started_alone: where each query has logged a start that the group could not get yet.
        latest: the ends of the partitions that existed when a query had its starting offsets: none starts after these.
        targets: the ends when a run began: it reads up to there.
        overdue: when each query last had a batch that took longer than a revocation waits.
        outlived: the checkpoints that queries had when the group was deleted.
        moved_at: when the group's position last went elsewhere than forwards.
        data_may_be_lost: whether records or topics were lost, which ``failOnDataLoss`` tells a query.
        recreated_at: when a topic last was created again.
        checked_at: when each process last asked what the group has committed.
        permitted: the processes of queries that know that the group has accepted a commit.
    """

    def __init__(self, run: Scheduler, kafka: FakeKafka, group: str, told: Any) -> None:
        self.run, self.kafka, self.told = run, kafka, told
        self.queries: dict[str, Query] = {}
        self.batches: dict[str, Batch] = {}
        self.started_alone: dict[tuple[str, Key], int] = {}
        self.latest: dict[str, dict[Key, int]] = {}
        self.targets: dict[str, dict[Key, int]] = {}
        self.overdue: dict[str, float] = {}
        self.data_may_be_lost = False
        self.moved_at = self.recreated_at = -BOUND
        self.outlived: list[Checkpoint] = []
        self.checked_at: dict[str, float] = {}
        self.permitted: set[str] = set()
        self.troubles = Troubles(run, told)
        self.positions = Positions(kafka)
        self.membership = Membership(run, kafka, group, self.queries)
        self.resets = Resets(self.positions)
        self.contract = Contract(self)
        self._removals = 0

    # What the scenario does

    def coordinator_moves(self, seconds: float, what: str) -> None:
        """The coordinator hands the group over in order: for so many seconds it answers with errors, as one fault."""
        self.membership.coordinated_since = self.run.now + seconds
        self.troubles.one_fault(seconds, what)

    def moved(self, topic: str, partition: int, offset: int) -> None:
        """An operator moves the group's position. Where a query may take that for something else, it may ignore it."""
        self.troubles.disturb()
        self.moved_at = self.run.now
        key = self.positions.key(topic, partition)
        at = self.positions.at(key)
        ambiguous = self._is_ambiguous(key, at, offset)
        at.before |= at.done
        at.done = set(range(offset)) | self.positions.lost[key]
        if ambiguous:
            at.done |= at.before
        at.committed, at.by = offset, "operator"

    def _is_ambiguous(self, key: Key, at: Partition, offset: int) -> bool:
        """Whether a move looks like a repeated one, a late commit, or another client's commit of a logged batch."""
        if offset == (at.committed or 0) or at.untagged or self.troubles.held_until + SLACK > self.run.now:
            return True
        if any(query.alive and query.planning for query in self.queries.values()):
            return True
        return self._is_in_logged_batch(key, offset)

    def _is_in_logged_batch(self, key: Key, offset: int) -> bool:
        """Whether a query has planned a batch lately that reads this offset, ends there, or begins behind it."""
        topic = self.positions.topic(key)
        for query in self.queries.values():
            for start, end in query.borders(topic, *key):
                if start - 1 <= offset <= end:
                    return True
        return False

    def forgotten(self) -> None:
        """The group is deleted: its queries continue at their checkpoints, and others as new ones."""
        self.troubles.disturb()
        self.outlived = [query.checkpoint for query in self.queries.values() if query.checkpoint.offsets]
        for _, at in self.positions.items():
            at.forget_commit()

    def lost_commit(self, topic: str, partition: int) -> None:
        """The group's commit is deleted with those in the topic's former life. Nobody notices before the next one."""
        self.troubles.disturb()
        at = self.positions.at(self.positions.key(topic, partition))
        at.unrepaired |= at.committed is not None
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
        key = self.positions.key(topic, partition)
        for ends in self.targets.values():
            if key in ends:
                ends[key] = min(ends[key], end)

    def recreated(self) -> None:
        """A topic has another id now. A query finds that with its next call."""
        self.recreated_at = self.run.now
        longest = max((each.slowest_trigger + each.max_batch_seconds for each in self.queries.values()), default=0.0)
        self.troubles.disturb(longest)

    def expelled(self, query: Query) -> None:
        """The group loses a member."""
        if "assign" in query.options:
            return
        self.troubles.disturb()
        self._lost_partitions(query)
        for _, at in self.positions.items():
            at.by = at.owner = ""

    def _lost_partitions(self, query: Query) -> None:
        """A query is no member any more: what it has not committed is read again."""
        self.batches[query.name].lose(self.run.now)
        for _, at in self.positions.items():
            if query.alive:
                at.given_up.add(query.process.name)
            for batch in at.reads.values():
                if batch.query is query:
                    batch.lose(self.run.now)

    # What the queries do

    def started(self, query: Query, life: str, *, available_now: bool) -> None:
        self.queries[query.name] = query
        if not query.checkpoint.offsets:
            query.pinned = False
        self.resets.started(query)
        if available_now:
            self.targets[query.name] = self._known_ends(query)
        self.batches[query.name] = Batch(query=query, life=life, told_at=0.0)
        self.told(f"{life} starts{' an AvailableNow run' if available_now else ''}")

    def _known_ends(self, query: Query) -> dict[Key, int]:
        """The ends that a run reaches: of what the brokers know that answer."""
        found: dict[Key, int] = {}
        for (topic, number), end in self.positions.ends().items():
            topic_id = self.kafka.ids[topic]
            former = any(view.topics.get(topic, [topic_id])[0] != topic_id for view in self.kafka._frozen.values())
            if query.subscribes(topic, number) and not former and self._all_is_known():
                found[self.positions.key(topic, number)] = end
        return found

    def _all_is_known(self) -> bool:
        """Whether a broker answers that knows all topics and partitions, and others know of it."""
        brokers: dict[int, Any] = self.kafka.brokers
        silent = self.kafka._frozen.keys() | self.kafka.fenced
        return any(each.up and each.hung_until <= self.run.now and node not in silent for node, each in brokers.items())

    def pinned(self, query: Query) -> None:
        """A query knows its starting offsets: those that it does not decide later by what has been so now."""
        if not query.pinned:
            query.pinned = True
            ends = self.positions.ends(open_too=True)
            self.latest[query.name] = {self.positions.key(*tp): end for tp, end in ends.items()}

    def planned(self, query: Query, number: int, offset: str, ranges: list[OffsetRange], *, replayed: bool) -> None:
        """A batch begins. Only what is not replayed counts as read by it."""
        what = ", ".join(map(str, sorted(ranges))) or "nothing"
        self.told(f"{query.name} {'replays' if replayed else 'plans'} batch {number}: {what}")
        self.contract.check_ranges(query, offset, ranges)
        self.note_removals()
        planned_at = max(query.plan_began, query.began)
        batch = Batch(query=query, life=query.process.name, ranges=ranges, planned_at=planned_at)
        self.batches[query.name] = batch
        for read in ranges:
            self.resets.moved(query, key_of(read), self.positions.at(key_of(read)), read.start)
        for logged in BatchOffset.from_json(json.loads(offset)).ranges.values():
            if self.positions.at(key_of(logged)).committed is None:
                self.started_alone.setdefault((query.name, key_of(logged)), logged.start)
        if not replayed and ranges:
            self.contract.check_session(query)
            for read in ranges:
                self.contract.check_repeats(query, read)
                self.positions.at(key_of(read)).reads.update(dict.fromkeys(range(read.start, read.end), batch))

    def stood_still_since(self, query: Query, when: float) -> bool:
        """Whether a query had planned before this time, and stood still after it before the batch."""
        stood_still_until = max(query.process.plan_held_until, query.process.paused_until)
        return query.plan_began <= when <= self.run.now and when < stood_still_until

    def completed(self, query: Query, number: int) -> None:
        """Spark has completed a batch: what exists of its ranges is done."""
        self.told(f"{query.name} completes batch {number}")
        batch = self.batches[query.name]
        batch.done_at = self.run.now
        for read in batch.ranges:
            end = min(read.end, self.positions.log(key_of(read)).end)
            self.positions.at(key_of(read)).done.update(range(read.start, end))

    def told_of_completion(self, query: Query, reported: Batch | None = None) -> None:
        """A query hears that Spark has completed its batch: by a report of it, or by the next call."""
        batch = self.batches[query.name]
        if reported not in (None, batch) or not batch.done:
            return
        batch.told_at = min(batch.told_at, self.run.now)
        if self.is_overdue(batch):
            self.overdue[query.name] = self.run.now

    def is_overdue(self, batch: Batch) -> bool:
        """Whether a batch has taken longer than a revocation waits."""
        return self.run.now - batch.planned_at > batch.query.revocation_timeout

    def was_overdue(self, batch: Batch) -> bool:
        """Whether a query has heard of a batch, this one or a later one, when it was overdue."""
        return self.overdue.get(batch.query.name, -1.0) > batch.planned_at

    # How queries end

    def failed(self, query: Query, error: Exception) -> None:
        """A query ends by an error."""
        self.told(f"{query.name} ends: {error}")
        if isinstance(error, DataLoss):
            self.batches[query.name].lose(self.run.now)
        self.contract.check_error(query, error)

    def left(self, query: Query, began: float) -> None:
        """A query has ended in order, which took from ``began`` until now."""
        if self.membership.is_member(query):
            query.killed_at = self.run.now  # its member stays, as that of a killed one
            self.contract.check_leave(query, began)
        self.contract.check_last_commit(query, began)

    def run_ended(self, query: Query) -> None:
        """An AvailableNow run has ended by itself."""
        self.contract.check_resets(query)
        self.contract.check_target(query)

    def died(self, query: Query, *, killed: bool) -> None:
        """A query's process has ended."""
        if killed:
            self.troubles.disturb()
        self.told(f"{query.name} has ended")

    # What the coordinator does

    def note_removals(self) -> None:
        """The coordinator may have removed members for their silence."""
        self.membership.members()
        for removal in self.kafka.removals[self._removals :]:
            query = self.membership.query(removal.member_id)
            if query is not None and removal.why == "rebalance timeout":
                self.contract.check_revocation(query)
            if removal.why in ("session", "rebalance timeout"):
                self.troubles.disturb()
                if query is not None:
                    self._lost_partitions(query)
        self._removals = len(self.kafka.removals)

    def handled(self, process: Process, node: int, api: str, request: Any, response: Any) -> None:
        """A broker has handled a request."""
        if api in ("SyncGroup", "OffsetCommit"):
            self.membership.joined.add(process.name)
        if api == "OffsetFetch":
            self.checked_at[process.name] = self.run.now
        if api == "OffsetCommit":
            self._committed(process, request, response)
        if api in ("SyncGroup", "ConsumerGroupHeartbeat") and not response.error_code:
            owned = {self.positions.key(*tp) for tp in self.membership.owners(request.member_id)}
            self._owned(request.member_id, owned)
            leaves = api == "ConsumerGroupHeartbeat" and request.member_epoch < 0
            if not leaves:
                self._revoked(process, request.member_id, owned)
            if owned or response.assignment is not None:
                self.resets.assigned(self.queries[query_name(process)], owned, self.run.now)

    def answered(self, process: Process, response: Any) -> None:
        """A process has the answer to a request."""
        if not isinstance(response, OffsetCommitResponse):
            return
        for topic in response.topics:
            if not all(part.error_code for part in topic.partitions):
                self.permitted.add(process.name)

    def _owned(self, member: str, owned: Iterable[Key]) -> None:
        """A member has been told what it owns."""
        for key in owned:
            at = self.positions.at(key)
            if at.owner != member:
                self.contract.check_handover(key, member)
            if at.owner != member or at.revoked:
                at.owner, at.owned_since, at.revoked = member, self.run.now, False

    def _revoked(self, process: Process, member: str, owned: set[Key]) -> None:
        """A member has been told what it does not own any more."""
        for key, at in self.positions.items():
            if at.owner == member and key not in owned:
                at.revoked = True
                at.given_up.add(process.name)

    def _committed(self, process: Process, request: Any, response: Any) -> None:
        query = self.queries.get(query_name(process))
        names = self.kafka.names()
        for topic, answered in zip(request.topics, response.topics, strict=True):
            name = topic.name
            if request.version >= 10:
                name = names.get(topic.topic_id, "")
            if not name and not all(answer.error_code for answer in answered.partitions):
                self.positions.outdated = True
            if query is None or name not in self.kafka.logs:
                continue
            for part, answer in zip(topic.partitions, answered.partitions, strict=True):
                self._answered(query, process, request.member_id, name, part, answer.error_code)

    def _answered(self, query: Query, process: Process, member: str, topic: str, part: Any, error_code: int) -> None:
        """The coordinator has answered the commit of one partition."""
        key = self.positions.key(topic, part.partition_index)
        what = f"{process.name} commits {part.committed_offset} of {topic}-{part.partition_index}"
        if error_code:
            self.told(f"{what}: refused with {error_code}")
            if error_code in NO_MEMBER or (error_code in FENCED and not self.batches[query.name].done):
                self._lost_partitions(query)
            return
        self.told(what)
        if member:
            self.contract.check_committer(what, key, member)
        self._accepted(query, what, key, member or process.name, part)

    def _accepted(self, query: Query, what: str, key: Key, member: str, part: Any) -> None:
        """The group has a commit."""
        at, offset = self.positions.at(key), part.committed_offset
        self.resets.committed(query, key, at, offset)
        alone = self.started_alone.pop((query.name, key), None)
        if at.committed is None:
            self._starts(query, key, offset)
        elif alone is not None:  # its checkpoint does not go back to a start that another query committed before
            self._starts(query, key, alone)
        if offset == at.committed:  # of a reset whose commit has never arrived, no other member knows
            at.done.update(range(offset))
        self.contract.check_commit(what, key, offset)
        falls = at.committed is not None and offset < at.committed
        if falls:
            self.moved_at = self.run.now
            self.contract.check_fall(what, key, member)
        at.untagged = not part.committed_metadata
        at.unrepaired = at.untagged and falls
        if at.untagged and self._is_in_logged_batch(key, offset):
            at.done |= at.before | at.reads.keys()  # a query that read the same goes on behind it
        at.committed, at.by = offset, member

    def _starts(self, query: Query, key: Key, start: int) -> None:
        """The first commit of a partition, or the first after the group's position was deleted.

        With ``latest`` a query may skip the records that were there when it had its starting offsets.
        """
        if query.options["startingOffsets"] == "latest":
            last = self.latest.get(query.name, {}).get(key, 0)
            self.positions.at(key).done.update(range(min(start, last)))


def query_name(process: Process) -> str:
    """The name of the query of a process."""
    return process.name.partition(".")[0]
