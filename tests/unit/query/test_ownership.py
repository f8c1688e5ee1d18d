"""Positions and commits of two threads: one thread acts while the other waits for an answer."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, GroupError, GroupSourceError, OptionError
from spark_group_source.group.membership import ErrorAction, Membership, Phase, RequestFailed
from spark_group_source.group.offsets import (
    COMMIT_TAG,
    RESET_TAG,
    CommitResult,
    CommittedOffset,
    KafkaClients,
    commit_metadata,
)
from spark_group_source.group.settings import Counters
from spark_group_source.offsets import BatchOffset, OffsetRange, Partitions, PinnedStart, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.offset_tracker import MAX_REJECTIONS, OffsetTracker
from spark_group_source.query.ownership import AssignedPartitions
from spark_group_source.query.starts import OffsetsByTopic
from spark_group_source.wire.cluster import Topic
from tests.unit.hand_clock import Hand

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({A, B})
EXISTING = {A: PinnedStart(), B: PinnedStart()}
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})


class Topics:
    """A cluster whose topics have the id of the test."""

    id = ""

    def topics(self, names: Iterable[str], deadline: Deadline, *, fresh: bool) -> dict[str, Topic]:
        assert fresh, "metadata from before the recreation has the former id"
        return {name: Topic(name, self.id, {}) for name in names}


class NoMember:
    """A membership in which nothing changes."""

    def __init__(self) -> None:
        self.counters = Counters()

    def commits_changed(self) -> None:
        pass

    def commit_rejected(self, me: Membership, failure: RequestFailed, deadline: Deadline) -> None:
        pass


class Group:
    """A coordinator that answers from a dictionary; ``meanwhile`` happens while it is asked."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.refused: RequestFailed | None = None
        self.errors: dict[TopicPartition, int] = {}
        self.waits: list[float] = []

    def committed(self, partitions: Iterable[TopicPartition], deadline: Deadline, me: Membership) -> Any:
        self.waits.append(deadline.remaining())
        found = {tp: self.offsets[tp] for tp in partitions if tp in self.offsets}
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return self.refused or found

    def commit(
        self,
        me: Membership,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        topic_ids: Mapping[str, str],
    ) -> CommitResult:
        self.waits.append(deadline.remaining())
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        if self.refused:
            unanswered = frozenset(offsets) if self.refused.unanswered else frozenset()
            return CommitResult(unanswered=unanswered, failure=self.refused)
        taken = {tp: commit for tp, commit in offsets.items() if tp not in self.errors}
        self.commits.append({tp: commit.offset for tp, commit in taken.items()})
        self.offsets |= taken
        return CommitResult(
            frozenset(taken), {tp: error_code for tp, error_code in self.errors.items() if tp in offsets}
        )


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> dict[TopicPartition, tuple[int, int]]:
    """(Start, end) of each log. Offset n has the time 100 * n. A partition that is removed here has no leader."""
    found = {A: (2, 10), B: (0, 5)}

    def offset(begin: int, end: int, at: int) -> int:
        if at < 0:
            return begin if at == -2 else end
        return max(begin, at // 100) if at // 100 < end else -1

    def offsets(
        cluster: Any, wanted: Mapping[TopicPartition, int], *, epochs: dict[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, int]:
        epochs |= dict.fromkeys(found, 7)
        return {tp: offset(*found[tp], at) for tp, at in wanted.items() if tp in found}

    monkeypatch.setattr("spark_group_source.query.starts.list_offsets", offsets)
    return found


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def clients(group: Group) -> KafkaClients:
    return KafkaClients(Topics(), group)  # type: ignore[arg-type]


def make(
    clients: KafkaClients, logged: Mapping[TopicPartition, int] | None = None, /, **options: str
) -> AssignedPartitions:
    given = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "subscribe": "t", "startingOffsets": "earliest"}
    assigned = AssignedPartitions(parse_options(given | options), OffsetTracker(), NoMember(), clients)  # type: ignore[arg-type]
    ranges = [OffsetRange(*tp, end, end) for tp, end in (logged or {}).items()]
    assigned.resolver.restore(BatchOffset.of(ranges), EXISTING, clients)
    return assigned


def read(assigned: AssignedPartitions, ends: Mapping[TopicPartition, int]) -> None:
    """Plans and completes a batch up to these ends."""
    plan(assigned, ends)
    in_flight = assigned.tracker.in_flight
    assert in_flight is not None
    assigned.tracker.completed(in_flight)


def plan(assigned: AssignedPartitions, ends: Mapping[TopicPartition, int]) -> None:
    """Plans a batch up to these ends, which logs the positions of the other partitions."""
    owned = assigned.tracker.positions(OWNER)
    ranges = [
        OffsetRange(*tp, each.position, ends.get(tp, each.position), lineage=each.lineage) for tp, each in owned.items()
    ]
    assigned.tracker.planned(BatchOffset.of(ranges))


def positions(assigned: AssignedPartitions) -> dict[TopicPartition, int]:
    """The position of each readable partition."""
    return {tp: owned.position for tp, owned in assigned.tracker.positions(OWNER).items()}


def retry_if_due(assigned: AssignedPartitions) -> None:
    """What the member's thread does between its heartbeats."""
    if assigned._clock() >= assigned.retry_due(OWNER):
        assigned.retry_pending(OWNER, Deadline.after(45.0 / 2))


def test_start_positions_of_assigned_partitions_are_committed_at_once(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets[B] = CommittedOffset(4, COMMIT_TAG)
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 2, B: 4}
    assert group.commits == [{A: 2}]


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        ({"startingOffsets": '{"t":{"0":5,"1":-1}}'}, {A: 5, B: 5}),
        ({"startingOffsets": '{"t":{"0":-2,"1":3}}'}, {A: 2, B: 3}),
        ({"startingOffsetsByTimestamp": '{"t":{"0":0,"1":400}}', "startingOffsets": "latest"}, {A: 2, B: 4}),
        ({"startingTimestamp": "300", "startingOffsets": "latest"}, {A: 3, B: 3}),
        ({"startingTimestamp": "700", "startingOffsetsByTimestampStrategy": "latest"}, {A: 7, B: 5}),
    ],
)
def test_starting_offsets_and_times_apply_to_partitions_without_a_commit(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], given: dict[str, str], starts: Any
) -> None:
    assigned = make(clients, **given)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == starts
    assert group.commits == [starts]
    group.offsets = {A: CommittedOffset(9, COMMIT_TAG)}
    assigned = make(clients, **given)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 9, B: starts[B]}
    assigned = make(clients, **given, resetOffsetsOnStart="true")
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == starts


@pytest.mark.parametrize(
    ("fallback", "starts"),
    [
        ({}, {A: 10, B: 5}),
        ({"startingOffsetsFallback": "latest"}, {A: 10, B: 5}),
        ({"startingOffsetsFallback": "earliest"}, {A: 2, B: 0}),
    ],
)
def test_starting_offsets_committed_uses_its_fallback_without_a_commit(
    clients: KafkaClients, logs: dict[TopicPartition, tuple[int, int]], fallback: dict[str, str], starts: Any
) -> None:
    assigned = make(clients, startingOffsets="committed", **fallback)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == starts


def test_a_partition_added_while_the_query_runs_starts_at_earliest_whatever_the_options(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets='{"t":{"0":5}}')
    assigned.resolver.restore(BatchOffset(), {A: PinnedStart()}, clients)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 5, B: 0}


COVERS_ALL = '{"t":{"0":5,"1":3},"*":-2}'


@pytest.mark.parametrize("retried", [False, True])
def test_prior_commits_of_a_partition_that_is_assigned_later_refuse_a_moved_query_at_once(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], retried: bool
) -> None:
    group.offsets = {B: CommittedOffset(4)}
    assigned = make(clients, startingOffsets=COVERS_ALL)
    if retried:
        group.refused = RequestFailed(ErrorAction.RETRY, "why")
        assigned.partitions_assigned(frozenset({A}), OWNER)
        group.refused = None
    with pytest.raises(OptionError, match="t-1 at 4 and not 3"):
        assigned.partitions_assigned(frozenset({A}), OWNER)
    assert not group.commits


def test_later_partitions_keep_their_commits_if_the_query_resets_its_first_assignment(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(4), B: CommittedOffset(4)}
    assigned = make(clients, startingOffsets=COVERS_ALL, resetOffsetsOnStart="true")
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assigned.partitions_assigned(frozenset({B}), OWNER)
    assert positions(assigned) == {A: 5, B: 4}


def test_commits_that_a_member_writes_after_the_first_assignment_do_not_refuse_a_moved_query(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets=COVERS_ALL)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    group.offsets[B] = CommittedOffset(4, COMMIT_TAG)  # another member has read on from 3
    assigned.partitions_assigned(frozenset({B}), OWNER)
    assert positions(assigned) == {A: 5, B: 4}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": '{"t":{"0":1,"1":0}}'}, r"offset 1 for t-0, whose log holds \[2, 10\)"),
        ({"startingOffsets": '{"t":{"0":11,"1":0}}'}, r"offset 11 for t-0, whose log holds \[2, 10\)"),
        ({"startingTimestamp": "700"}, "t-1 has no record at or after the time in option 'startingTimestamp'"),
    ],
)
def test_a_starting_offset_outside_the_log_fails_the_query_and_commits_nothing(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], given: dict[str, str], says: str
) -> None:
    with pytest.raises(GroupSourceError, match=says):
        make(clients, **given).partitions_assigned(BOTH, OWNER)
    assert not group.commits


def test_a_starting_offset_outside_the_log_does_not_matter_if_the_group_has_a_commit(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(9, COMMIT_TAG)}
    assigned = make(clients, startingOffsets='{"t":{"0":1,"1":0}}')
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 9, B: 0}


def test_the_query_starts_at_the_nearest_offset_if_data_loss_is_accepted(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets='{"t":{"0":1,"1":9}}', failOnDataLoss="false")
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 2, B: 5}


def test_a_position_found_while_its_partition_was_lost_is_dropped(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    assigned.partitions_assigned(BOTH, OWNER)
    group.refused = None
    group.offsets = {A: CommittedOffset(3, COMMIT_TAG), B: CommittedOffset(3, COMMIT_TAG)}
    group.meanwhile = lambda: assigned.partitions_lost(frozenset({A}), "the session ended")
    # The query's thread looks up what the member's thread could not find, and the session ends meanwhile.
    assigned.resolve(BOTH, OWNER, clients)
    assert A not in positions(assigned)
    group.offsets[A] = CommittedOffset(9, COMMIT_TAG)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 9, B: 3}
    assert not group.commits


def test_a_partition_lost_before_its_lookup_gets_no_position(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    assigned.partitions_assigned(BOTH, OWNER)
    group.refused = None
    group.offsets = {A: CommittedOffset(3, COMMIT_TAG), B: CommittedOffset(3, COMMIT_TAG)}
    unresolved = assigned.tracker.unresolved(OWNER)
    assigned.partitions_lost(frozenset({A}), "the session ended")
    assigned.resolve(unresolved, OWNER, clients)
    group.offsets[A] = CommittedOffset(9, COMMIT_TAG)  # its next owner has read on
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert positions(assigned) == {A: 9, B: 3}
    assert not group.commits


def test_logged_ends_of_a_recreated_topic_are_forgotten_even_of_partitions_that_others_own(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, {A: 100, B: 100})
    mine = replace(OWNER, owned={A: 3})
    assigned.partitions_assigned(frozenset({A}), mine)
    assigned.restart_topics({"t": "new"}, mine, clients)
    group.offsets[B] = CommittedOffset(4, COMMIT_TAG)  # the other member has read the new topic up to here
    assigned.partitions_assigned(frozenset({B}), OWNER)
    assert positions(assigned) == {A: 2, B: 4}


@pytest.mark.parametrize(
    ("silent", "took", "pause"), [((B,), 5.0, 20.0), ((B,), 14.0, 30.0), ((B,), 0.0, 1.0), ((A, B), 5.0, 1.0)]
)
def test_lookups_of_unresolved_starts_are_rarer_the_longer_they_block_other_partitions(
    clients: KafkaClients,
    group: Group,
    logs: dict[TopicPartition, tuple[int, int]],
    silent: tuple[TopicPartition, ...],
    took: float,
    pause: float,
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    leaderless = {tp: logs.pop(tp) for tp in silent}
    group.meanwhile = lambda: setattr(hand, "now", took)
    assigned.partitions_assigned(BOTH, OWNER)
    logs |= leaderless
    hand.now += pause - 0.5
    assigned.retry_pending(OWNER, clients=clients)
    assert assigned.tracker.unresolved(OWNER) == set(silent)
    hand.now += 0.5
    assigned.retry_pending(OWNER, clients=clients)
    assert not assigned.tracker.unresolved(OWNER)


def test_the_retry_of_a_commit_does_not_wait_for_unresolved_starts(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    logs.pop(B)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    group.meanwhile = lambda: setattr(hand, "now", 5.0)
    assigned.resolve(frozenset({B}), OWNER, clients)
    group.refused = None
    hand.now += 1.0
    assigned.retry_pending(OWNER, clients=clients)
    assert group.offsets[A].offset == 6


@pytest.mark.parametrize("answering", ["one", "none"])
def test_a_recreated_topic_is_committed_at_once_at_earliest_or_at_0_if_no_leader_answers(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], answering: str
) -> None:
    assigned = make(clients, {A: 100, B: 100})
    group.offsets = {A: CommittedOffset(100, COMMIT_TAG), B: CommittedOffset(100, COMMIT_TAG)}
    assigned.partitions_assigned(BOTH, OWNER)
    for tp in (B,) if answering == "one" else (A, B):
        del logs[tp]
    assigned.restart_topics({"t": "new"}, OWNER, clients)
    assert positions(assigned) == {A: 2 if answering == "one" else 0, B: 0}
    assert {tp: each.offset for tp, each in group.offsets.items()} == positions(assigned)
    # Lost, read by another member and assigned again: that member's commit is one in the new topic.
    assigned.partitions_lost(frozenset({A}), "why")
    group.offsets[A] = CommittedOffset(7, COMMIT_TAG)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert positions(assigned)[A] == 7


def test_a_recreated_topic_is_not_read_before_the_group_has_assigned_it(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    """With KIP-848 another member may own the partition in the new topic."""
    former, new = UUID(int=1), UUID(int=2)
    mine = replace(OWNER, topic_ids={"t": former})
    clients.cluster.id = str(former)  # type: ignore[attr-defined]
    assigned = make(clients, failOnDataLoss="false")
    assigned.partitions_assigned(BOTH, mine)
    read(assigned, {A: 9})
    clients.cluster.id = str(new)  # type: ignore[attr-defined]
    group.offsets.clear()
    assigned.restart_topics({"t": str(new)}, mine, clients)
    assigned.resolve(BOTH, mine, clients)
    assert not group.offsets
    assert not positions(assigned)
    assert not assigned.tracker.awaited()
    assigned.partitions_revoked(BOTH)
    assigned.partitions_assigned(BOTH, replace(OWNER, topic_ids={"t": new}))
    assert positions(assigned) == {A: 2, B: 0} == group.commits[-1]


def test_a_recreated_topic_whose_leaders_do_not_answer_does_not_fail_the_query(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)

    def nobody(*_: Any, **__: Any) -> Any:
        raise BrokerUnavailable("No broker.")

    monkeypatch.setattr("spark_group_source.query.starts.list_offsets", nobody)
    assigned.restart_topics({"t": "new"}, OWNER, clients)
    assert positions(assigned) == {A: 0, B: 0}


def test_a_start_is_looked_up_by_one_thread_only(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    seen: list[Any] = []
    group.meanwhile = lambda: seen.append(assigned.tracker.unresolved(OWNER))
    assigned.partitions_assigned(BOTH, OWNER)
    assert seen == [frozenset()]
    assert assigned.tracker.unresolved(OWNER) == frozenset()


def test_a_partition_without_a_start_stays_unresolved_and_the_others_are_read(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    gone = logs.pop(A)
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {B: 0}
    assert assigned.tracker.unresolved(OWNER) == {A}
    logs[A] = gone
    assigned.resolve(assigned.tracker.unresolved(OWNER), OWNER, clients)
    assert positions(assigned) == {A: 2, B: 0}


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_unavailable_commits_leave_all_partitions_unresolved(
    clients: KafkaClients, group: Group, action: ErrorAction
) -> None:
    group.refused = RequestFailed(action, "why")
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    assert assigned.tracker.unresolved(OWNER) == BOTH


def test_a_group_that_may_not_be_read_is_fatal(clients: KafkaClients, group: Group) -> None:
    group.refused = RequestFailed(ErrorAction.FATAL, "why", error=GroupError("no", error_code=30))
    with pytest.raises(GroupSourceError, match="no"):
        make(clients).partitions_assigned(BOTH, OWNER)


@pytest.mark.parametrize(
    "error", [GroupError("no", error_code=29), GroupError("no", error_code=30), AuthenticationFailed("no")]
)
def test_a_commit_that_is_never_allowed_is_fatal(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], error: GroupSourceError
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.refused = RequestFailed(ErrorAction.FATAL, "why", error=error)
    with pytest.raises(type(error), match="no"):
        assigned.committer.commit(OWNER, clients)


def test_only_partitions_owned_in_the_snapshot_are_committed(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6, B: 5})
    assert assigned.committer.commit(replace(OWNER, owned={B: 3}), clients)
    assert group.commits[-1] == {B: 5}


def test_a_partition_revoked_during_its_commit_is_not_recorded_as_committed(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.meanwhile = lambda: assigned.partitions_revoked(frozenset({A}))
    assigned.committer.commit(OWNER, clients)
    # Another owner has read more, and then an operator has rewound the group.
    group.offsets[A] = CommittedOffset(3)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert positions(assigned)[A] == 3
    assert group.commits[-2:] == [{A: 6}, {A: 3}]


def test_a_refused_commit_is_counted_and_stays_pending(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.refused = RequestFailed(ErrorAction.RESET_GENERATION, "22")
    assert not assigned.committer.commit(OWNER, clients)
    assert (assigned.tracker.uncommitted(), assigned.counters.failed_commits) == (frozenset({A}), 1)
    group.refused = None
    assert assigned.committer.commit(OWNER, clients)
    assert not assigned.tracker.uncommitted()


def test_a_partition_that_cannot_be_committed_does_not_delay_its_revocation_for_long(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6, B: 5})
    group.errors = {A: 3}
    for _ in range(MAX_REJECTIONS):
        assert assigned.tracker.uncommitted()
        assert assigned.committer.commit(OWNER, clients)
    assert group.offsets[B].offset == 5
    assert not assigned.tracker.uncommitted()


def test_a_revocation_waits_until_the_start_is_looked_up_but_for_no_leader(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    group.offsets[A] = CommittedOffset(4)
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    assigned.partitions_assigned(BOTH, OWNER)
    assert assigned.tracker.awaited() == BOTH
    group.refused = None
    revoking = replace(OWNER, phase=Phase.REVOKING, revoking=BOTH, revoke_by=5.0)
    group.waits.clear()

    def nobody(*_: Any, **__: Any) -> Any:
        raise BrokerUnavailable("No broker.")

    monkeypatch.setattr("spark_group_source.query.starts.list_offsets", nobody)
    hand.now += assigned.retry_due(revoking)
    assigned.retry_pending(revoking, Deadline.after(45.0 / 2))
    assert group.commits == [{A: 4}], "which needs no leader"
    assert max(group.waits) <= 5.0, "a revocation has a deadline"
    assert (assigned.tracker.awaited(), assigned.tracker.unresolved(OWNER)) == (frozenset(), frozenset({B}))
    assert assigned.retry_due(revoking) == math.inf


def test_a_revocation_waits_no_longer_for_a_commit_to_a_topic_that_was_recreated(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assigned = make(clients)
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    assigned.committer.commit(OWNER, clients)
    group.refused = None
    told: list[Partitions] = []
    monkeypatch.setattr(assigned.committer._member, "commits_changed", lambda: told.append(assigned.tracker.awaited()))
    logs.clear()
    assigned.restart_topics({"t": "new"}, OWNER, clients)
    assert told[-1:] == [frozenset()]


@pytest.mark.parametrize("moved_by", ["rewind", "recreation"])
def test_a_late_commit_does_not_stay_the_last_word_after_its_partition_was_moved(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], moved_by: str
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.refused = RequestFailed(ErrorAction.RETRY, "why", unanswered=True)
    assigned.committer.commit(OWNER, clients)
    group.refused = None
    if moved_by == "rewind":
        assigned.rewind({A: 2}, {A: 0}, assigned.tracker.positions(OWNER), OWNER, clients)
    else:
        assigned.restart_topics({"t": "new"}, OWNER, clients)
    moved = group.offsets[A]
    assert moved.offset == 2
    group.offsets[A] = CommittedOffset(6, COMMIT_TAG)
    hand.now += 1.0
    retry_if_due(assigned)
    assert group.offsets[A] == moved


def test_a_reset_applies_to_the_first_assignment_of_a_new_checkpoint_only(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    assigned = make(clients, resetOffsetsOnStart="true")
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assigned.partitions_assigned(frozenset({B}), OWNER)
    assert positions(assigned) == {A: 2, B: 4}
    assert group.commits == [{A: 2}, {B: 4}], "the commit of another program gets our tag"


def test_a_partition_without_a_leader_is_reset_later(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    assigned = make(clients, resetOffsetsOnStart="true")
    silent = logs.pop(B)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 2}
    logs[B] = silent
    assigned.resolve(frozenset({B}), OWNER, clients)
    assert positions(assigned) == {A: 2, B: 0}


def test_a_query_that_died_before_its_reset_was_logged_does_not_reset_again(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    given = {"resetOffsetsOnStart": "true", "startingOffsets": "latest"}
    make(clients, **given).partitions_assigned(BOTH, OWNER)
    assert {tp: each.offset for tp, each in group.offsets.items()} == {A: 10, B: 5}
    logs[A], logs[B] = (2, 30), (0, 25)
    again = make(clients, **given)
    again.partitions_assigned(BOTH, OWNER)
    assert positions(again) == {A: 10, B: 5}


def test_a_reset_that_was_neither_committed_nor_logged_is_repeated(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    assigned = make(clients, resetOffsetsOnStart="true")
    commits_fail(assigned, group, lambda: assigned.partitions_assigned(BOTH, OWNER))
    assigned.partitions_lost(BOTH, "test")
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 2, B: 0}


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "logged"])
def test_a_partition_that_was_reset_once_resumes_at_the_next_owners_commit(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], committed: bool
) -> None:
    group.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    assigned = make(clients, resetOffsetsOnStart="true")
    if committed:
        assigned.partitions_assigned(BOTH, OWNER)
    else:
        commits_fail(assigned, group, lambda: assigned.partitions_assigned(BOTH, OWNER))
        plan(assigned, {A: 5})
    assigned.partitions_revoked(BOTH)
    later = commit_metadata({"lineage": 2**50})
    group.offsets = {A: CommittedOffset(9, later), B: CommittedOffset(5, later)}
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 9, B: 5}


def test_the_tag_of_a_reset_is_removed_when_a_batch_is_logged_even_after_a_crash(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(10, RESET_TAG), B: CommittedOffset(4, RESET_TAG)}
    assigned = make(clients, {A: 10}, resetOffsetsOnStart="true")
    assigned.partitions_assigned(BOTH, OWNER)
    assert group.offsets == {A: CommittedOffset(10, COMMIT_TAG), B: CommittedOffset(4, RESET_TAG)}
    read(assigned, {})
    assigned.committer.commit(OWNER, clients)
    assert group.offsets == {A: CommittedOffset(10, COMMIT_TAG), B: CommittedOffset(4, COMMIT_TAG)}


def test_a_reset_keeps_to_the_first_assignment_after_a_crash_before_any_start(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(8), B: CommittedOffset(4)}
    assigned = make(clients, resetOffsetsOnStart="true")
    assigned.resolver.restore(BatchOffset({}, "g", EXISTING, frozenset({A})), EXISTING, clients)
    assigned.partitions_assigned(frozenset({B}), OWNER)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert positions(assigned) == {A: 2, B: 4}


def test_a_new_checkpoint_resets_again_once_the_last_one_has_logged_its_reset(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    given = {"resetOffsetsOnStart": "true", "startingOffsets": "latest"}
    first = make(clients, **given)
    first.partitions_assigned(BOTH, OWNER)
    read(first, {})
    first.committer.commit(OWNER, clients)
    assert not any(each.tagged_reset for each in group.offsets.values())
    logs[A], logs[B] = (2, 30), (0, 25)
    again = make(clients, **given)
    again.partitions_assigned(BOTH, OWNER)
    assert positions(again) == {A: 30, B: 25}


def test_latest_is_pinned_when_the_query_starts_and_kept_by_its_checkpoint(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets="latest")
    logs[A], logs[B] = (2, 30), (0, 25)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert positions(assigned) == {A: 10}
    first = assigned.tracker.pinned_starts().without({A})
    assert first.offsets == {B: PinnedStart("", 5, 7)}
    restarted = make(clients, startingOffsets="latest")
    logged = BatchOffset({A: OffsetRange(*A, 10, 10)}, "g", first.offsets)
    restarted.resolver.restore(BatchOffset.from_json(logged.as_json()), EXISTING, clients)
    restarted.partitions_assigned(BOTH, OWNER)
    assert positions(restarted) == {A: 10, B: 5}


@pytest.mark.parametrize("pinned", [PinnedStart("former"), PinnedStart("former", 5, 7)], ids=["unknown", "known"])
def test_a_start_that_was_pinned_in_a_topic_is_none_in_its_successor_nor_is_a_reset(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], pinned: PinnedStart
) -> None:
    clients.cluster.id = "new"  # type: ignore[attr-defined]
    group.offsets = {A: CommittedOffset(4, COMMIT_TAG)}
    assigned = make(clients, startingOffsets="latest", resetOffsetsOnStart="true")
    logged = BatchOffset({}, "g", {A: pinned, B: pinned}, frozenset({A}))
    assigned.resolver.restore(BatchOffset.from_json(logged.as_json()), EXISTING, clients)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 4, B: 0}


def test_the_starts_of_a_new_query_are_pinned_with_the_ids_that_the_topics_had_at_the_lookup(
    clients: KafkaClients, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets="latest")
    assigned.resolver._latest = None  # as before the first call of Spark
    assigned.resolver.pin_latest({A: PinnedStart("former")}, clients)
    assigned.resolver.restore(BatchOffset(), {A: PinnedStart("new"), B: PinnedStart("new")}, clients)
    assert assigned.tracker.pinned_starts().offsets == {A: PinnedStart("former", 10, 7)}


def test_a_partition_created_between_the_lookup_of_latest_and_the_start_is_read_from_its_first_record(
    clients: KafkaClients, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets="latest")
    assigned.resolver._latest = None  # as before the first call of Spark
    assigned.resolver.pin_latest({A: EXISTING[A]}, clients)
    assigned.resolver.restore(BatchOffset(), EXISTING, clients)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 10, B: 0}


def test_a_commit_read_before_its_topic_is_recreated_is_no_position_in_the_successor(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    group.offsets = {A: CommittedOffset(4, COMMIT_TAG)}
    committed = clients.offsets.committed

    def recreated_after(*args: Any) -> Any:
        found = committed(*args)
        clients.cluster.id = "new"  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(clients.offsets, "committed", recreated_after)
    clients.cluster.id = "former"  # type: ignore[attr-defined]
    assigned = make(clients)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert {owned.topic_id for owned in assigned.tracker.positions(OWNER).values()} == {"former"}


def commits_fail(assigned: AssignedPartitions, group: Group, call: Callable[[], None]) -> None:
    """Runs ``call`` while commits are refused."""
    group.meanwhile = lambda: setattr(group, "meanwhile", refuse)

    def refuse() -> None:
        group.refused = RequestFailed(ErrorAction.RETRY, "test")

    call()
    assert assigned.tracker.uncommitted()
    group.refused = None


@pytest.mark.parametrize("at_start", [True, False], ids=["when the query started", "later"])
def test_a_pinned_start_is_kept_if_its_partition_is_lost_before_the_commit(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], at_start: bool
) -> None:
    silent = {} if at_start else dict(logs)
    for tp in silent:
        del logs[tp]
    assigned = make(clients, startingOffsets="latest")
    logs |= silent
    commits_fail(assigned, group, lambda: assigned.partitions_assigned(BOTH, OWNER))
    assigned.partitions_lost(BOTH, "test")
    logs[A], logs[B] = (2, 30), (0, 25)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 10, B: 5}


def test_a_partition_without_a_commit_resumes_at_the_end_that_a_batch_without_rows_logged(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, startingOffsets="latest")
    commits_fail(assigned, group, lambda: assigned.partitions_assigned(BOTH, OWNER))
    plan(assigned, {})
    assigned.partitions_lost(BOTH, "test")
    logs[A], logs[B] = (2, 30), (0, 25)
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 10, B: 5}


def test_a_replayed_batch_that_others_have_read_logs_a_warning_with_its_ranges(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    group.offsets = {A: CommittedOffset(7, COMMIT_TAG), B: CommittedOffset(0, COMMIT_TAG)}
    assigned = make(clients)
    logged = BatchOffset.of([OffsetRange(*A, 3, 9), OffsetRange(*B, 0, 4)], "g")
    assigned.resolver.restore(logged, EXISTING, clients, replayed=True)
    assigned.partitions_assigned(BOTH, OWNER)
    assert "this query has just replayed: t-0 [3, 7). Rows" in caplog.text
    assigned.partitions_lost(BOTH, "why")
    assigned.partitions_assigned(BOTH, OWNER)
    assert caplog.text.count("has just replayed") == 1, "what this query has committed since is its own"
    assert positions(assigned) == {A: 9, B: 4}


def test_a_move_in_the_future_logs_one_warning(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    now = round(time.time() * 1000)
    group.offsets = {tp: CommittedOffset(4, commit_metadata({"lineage": now})) for tp in BOTH}
    assigned = make(clients)
    assigned.partitions_assigned(frozenset({A}), OWNER)
    assert "in the future" not in caplog.text
    group.offsets[B] = CommittedOffset(4, commit_metadata({"lineage": now + 3_600_000}))
    for _ in range(2):
        assigned.partitions_lost(frozenset({B}), "why")
        assigned.partitions_assigned(frozenset({B}), OWNER)
    assert caplog.text.count("in the future") == 1


def test_an_old_checkpoint_logs_a_warning_if_the_group_has_committed_none_of_it(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], caplog: pytest.LogCaptureFixture
) -> None:
    make(clients, {A: 9}).partitions_assigned(BOTH, OWNER)
    assert "the checkpoint does not name its group" in caplog.text


def test_a_commit_waits_at_most_its_timeout_for_another_commit(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, None, **{"offsetCommit.timeoutMs": "10"})
    seen: list[bool] = []
    other = threading.Thread(target=lambda: seen.append(assigned.committer.commit(OWNER, clients)))

    def meanwhile() -> None:
        other.start()
        other.join(90.0)

    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.meanwhile = meanwhile
    assert assigned.committer.commit(OWNER, clients)
    assert seen == [False]
    assert group.offsets[A].offset == 6


@pytest.mark.parametrize("session", [6.0, 45.0])
def test_resolving_on_the_members_thread_leaves_half_a_session_to_heartbeat(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]], session: float
) -> None:
    assigned = make(
        clients, None, **{"kafka.session.timeout.ms": f"{session * 1000:.0f}", "kafka.heartbeat.interval.ms": "1000"}
    )
    assigned.partitions_assigned(BOTH, OWNER, Deadline.after(session / 2))
    assert len(group.waits) == 2
    assert max(group.waits) <= session / 2, "both have the one deadline"


def test_a_start_is_not_committed_behind_a_commit_that_outlasts_its_deadline(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned = make(clients, None, **{"kafka.session.timeout.ms": "30", "kafka.heartbeat.interval.ms": "10"})
    assigned.partitions_assigned(frozenset({A}), OWNER)
    group.commits.clear()
    read(assigned, {A: 6})
    # Without its deadline this would wait forever, because it is on the same thread.
    group.meanwhile = lambda: assigned.partitions_assigned(frozenset({B}), OWNER, Deadline.after(0.015))
    assert assigned.committer.commit(OWNER, clients)
    assert group.commits == [{A: 6}]
    assigned.committer.commit(OWNER, clients)
    assert group.commits == [{A: 6}, {B: 0}]


def test_unresolved_and_uncommitted_starts_are_retried_after_heartbeats(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    assigned.partitions_assigned(BOTH, OWNER)
    retry_if_due(assigned)
    assert assigned.tracker.unresolved(OWNER) == BOTH
    group.refused = None
    group.errors = {}
    tries = len(group.waits)
    retry_if_due(assigned)
    assert len(group.waits) == tries, "not before the retry interval"
    hand.now += 1.0
    retry_if_due(assigned)
    assert group.commits == [{A: 2, B: 0}]
    assert max(group.waits) <= 45.0 / 2
    tries = len(group.waits)
    hand.now += 1.0
    retry_if_due(assigned)
    assert len(group.waits) == tries, "nothing is left to be done"


def test_an_uncommitted_start_is_committed_after_a_heartbeat(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand

    def refuse() -> None:
        group.meanwhile = lambda: setattr(group, "refused", RequestFailed(ErrorAction.RETRY, "why"))

    group.meanwhile = refuse
    assigned.partitions_assigned(BOTH, OWNER)
    assert (assigned.tracker.unresolved(OWNER), group.commits) == (frozenset(), [])
    group.refused = None
    hand.now += 1.0
    retry_if_due(assigned)
    assert group.commits == [{A: 2, B: 0}]


def to_three(stood: OffsetsByTopic, starts: OffsetsByTopic) -> OffsetsByTopic:
    return {"t": {0: 3}}


def test_a_start_that_the_callback_has_moved_back_is_committed(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    group.offsets = {A: CommittedOffset(9, COMMIT_TAG), B: CommittedOffset(4, COMMIT_TAG)}
    assigned = make(clients, startingOffsetsCallback=f"{__name__}:to_three")
    assigned.partitions_assigned(BOTH, OWNER)
    assert positions(assigned) == {A: 3, B: 4}
    assert group.commits == [{A: 3}]


def test_a_failed_commit_is_retried_after_its_interval(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    assigned.partitions_assigned(BOTH, OWNER)
    read(assigned, {A: 6})
    group.refused = RequestFailed(ErrorAction.RETRY, "why")
    assigned.committer.commit(OWNER, clients)
    group.refused = None
    assigned.retry_pending(OWNER, clients=clients)
    assert group.offsets[A].offset == 2
    hand.now += 1.0
    assigned.retry_pending(OWNER, clients=clients)
    assert group.offsets[A].offset == 6


def test_a_slow_try_is_repeated_an_interval_after_its_end(
    clients: KafkaClients, group: Group, logs: dict[TopicPartition, tuple[int, int]]
) -> None:
    assigned, hand = make(clients), Hand()
    assigned._retry_timer._clock = assigned._clock = hand
    leaderless = logs.pop(B)
    assigned.partitions_assigned(BOTH, OWNER)
    group.meanwhile = lambda: setattr(hand, "now", 5.0)
    assigned.retry_pending(OWNER, clients=clients)
    logs[B] = leaderless
    assigned.retry_pending(OWNER, clients=clients)
    assert assigned.tracker.unresolved(OWNER) == {B}
    hand.now += 1.0
    assigned.retry_pending(OWNER, clients=clients)
    assert not assigned.tracker.unresolved(OWNER)
