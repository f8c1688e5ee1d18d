"""The state machine of KIP-848: assignment, acknowledgement and loss, without a broker or clock."""

from __future__ import annotations

import uuid

import pytest

from spark_group_source.group.consumer_state import (
    ConsumerMembership,
    FindTopics,
    Heartbeat,
    HeartbeatAnswered,
    Report,
    Step,
    Subscribed,
    TopicIdPartition,
    TopicsFound,
    step,
)
from spark_group_source.group.membership import (
    SESSION_TIMED_OUT,
    Action,
    Assigned,
    AwaitBackoff,
    AwaitedChanged,
    Close,
    Event,
    Leave,
    Lost,
    Phase,
    RequestFailed,
    Revoked,
    Tick,
    error_action,
    fatal,
)
from spark_group_source.offsets import TopicPartition

REVOCATION_TIMEOUT = 100.0
SESSION = 45.0
A, B = (TopicPartition("t", number) for number in range(2))
OF_A, OF_B, BOTH = frozenset({A}), frozenset({B}), frozenset({A, B})
T, RECREATED, UNKNOWN = (uuid.UUID(int=number) for number in (1, 2, 3))
NAMES = {T: "t"}
FENCED = RequestFailed(error_action(110), "ConsumerGroupHeartbeat failed with 110 (FENCED_MEMBER_EPOCH)")
NEW = ConsumerMembership(member_id="m", topics=frozenset({"t"}), topic_names=NAMES)


def ids(*partitions: TopicPartition, topic_id: uuid.UUID = T) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(topic_id, tp.partition) for tp in partitions)


def answer(
    member: ConsumerMembership,
    epoch: int,
    *assigned: TopicPartition | frozenset[TopicIdPartition] | None,
    session_ends: float = 1000.0,
) -> HeartbeatAnswered:
    """The answer to the member's next heartbeat; ``None`` leaves the assignment as it is."""
    partitions = [tp for tp in assigned if isinstance(tp, TopicPartition)]
    assignment = ids(*partitions).union(*(each for each in assigned if isinstance(each, frozenset)))
    return HeartbeatAnswered(member.report, epoch, None if None in assigned else assignment, 5.0, session_ends)


def run(state: ConsumerMembership, *events: Event, at: float = 0.0) -> Step:
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, at, REVOCATION_TIMEOUT)
    return state, actions


def stable(*owned: TopicPartition, session_ends: float = 1000.0) -> ConsumerMembership:
    """A member at epoch 7 whose partitions the coordinator knows."""
    member, _ = run(NEW, answer(NEW, 7, *owned, session_ends=session_ends))
    member, actions = run(member, answer(member, 7, None, session_ends=session_ends))
    assert (member.phase, frozenset(member.owned), actions) == (Phase.STABLE, frozenset(owned), [])
    assert member.answered == member.report
    return member


def revoking(*in_flight: TopicPartition) -> ConsumerMembership:
    """A member that owns A and B, and is to revoke B."""
    member, _ = run(stable(A, B), AwaitedChanged(frozenset(in_flight)))
    return run(member, answer(member, 7, A))[0]


def test_the_answer_to_a_join_assigns_partitions_and_the_next_heartbeat_reports_them_at_once() -> None:
    assert (NEW.phase, NEW.answered, NEW.report) == (Phase.JOINING, None, Report(-1, frozenset({"t"})))
    member, actions = run(NEW, answer(NEW, 7, A, B))
    assert actions == [Assigned(BOTH), Heartbeat()]
    assert (member.phase, member.generation, dict(member.owned)) == (Phase.STABLE, 7, {A: 7, B: 7})
    assert (member.report.owned, member.answered) == (ids(A, B), NEW.report)


def test_an_answer_gives_the_epoch_and_partitions_that_other_members_release_later() -> None:
    before = stable(A)
    member, actions = run(before, answer(before, 9, None))
    assert (member.generation, dict(member.owned), actions) == (9, {A: 7}, [])
    member, actions = run(member, answer(member, 10, A, B))
    assert (dict(member.owned), actions) == ({A: 7, B: 10}, [Assigned(OF_B), Heartbeat()])


def test_a_revocation_is_acknowledged_only_after_the_commit_of_the_in_flight_batch() -> None:
    assert revoking(A).phase is Phase.STABLE, "the batch reads other partitions"
    member = revoking(A, B)
    assert (member.phase, frozenset(member.readable), member.report.owned) == (Phase.REVOKING, OF_A, ids(A, B))
    assert run(member, Tick(), at=REVOCATION_TIMEOUT - 1)[1] == []
    member, actions = run(member, AwaitedChanged(OF_B))
    assert (member.phase, actions, member.report.owned) == (Phase.REVOKING, [], ids(A, B))
    for after, actions in (run(member, AwaitedChanged(frozenset())), run(member, Tick(), at=REVOCATION_TIMEOUT)):
        assert (after.phase, actions) == (Phase.STABLE, [Revoked(OF_B), Heartbeat()])
        assert after.report.owned == ids(A)


@pytest.mark.parametrize("assigned", [A, None])
def test_heartbeats_go_on_during_a_revocation_and_do_not_extend_its_timeout(assigned: TopicPartition | None) -> None:
    member = revoking(B)
    again, actions = run(member, answer(member, 7, assigned), at=REVOCATION_TIMEOUT / 2)
    assert (again.phase, again.revoke_by, actions) == (Phase.REVOKING, REVOCATION_TIMEOUT, [])


def test_an_assignment_during_a_revocation_revokes_more_or_keeps_the_partitions() -> None:
    before = revoking(B)
    member, actions = run(before, answer(before, 7))
    assert (member.phase, frozenset(member.revoking), actions) == (Phase.REVOKING, BOTH, [])
    assert run(member, AwaitedChanged(frozenset()))[1] == [Revoked(BOTH), Heartbeat()]
    member, actions = run(before, answer(before, 8, A, B))
    assert (member.phase, frozenset(member.readable), actions) == (Phase.STABLE, BOTH, [])


def test_a_heartbeat_reports_what_changed_while_the_one_before_was_pending() -> None:
    member = revoking(B)
    pending = answer(member, 7, A)
    member, actions = run(member, AwaitedChanged(frozenset()))
    assert actions == [Revoked(OF_B), Heartbeat()]
    member, actions = run(member, pending)
    assert (member.report.owned, actions) == (ids(A), [])
    assert member.answered is not None
    assert member.answered.owned == ids(A, B)


@pytest.mark.parametrize("error_code", [110, 25])
@pytest.mark.parametrize("state", ["idle", "in a batch", "revoking"])
def test_a_fenced_member_loses_everything_and_joins_with_the_same_id(error_code: int, state: str) -> None:
    before = revoking(B) if state == "revoking" else stable(A, B)
    before = run(before, AwaitedChanged(OF_A))[0] if state == "in a batch" else before
    member, actions = run(before, RequestFailed(error_action(error_code), "why"))
    assert actions == [Lost(BOTH, "why"), Heartbeat()]
    assert (member.phase, member.member_id, member.generation, dict(member.owned)) == (Phase.JOINING, "m", -1, {})
    assert member.answered is None, "the join reports everything"
    assert member.awaited == before.awaited
    assert run(member, AwaitedChanged(frozenset()))[1] == []
    assert run(member, answer(before, 8, A, B)) == (member, []), "an answer to a heartbeat from before"
    again, actions = run(member, answer(member, 9, None))
    assert (dict(again.owned), actions) == ({}, []), "the former assignment"
    again, actions = run(member, answer(member, 9, B))
    assert (dict(again.owned), actions) == ({B: 9}, [Assigned(OF_B), Heartbeat()])


def test_a_session_without_an_answer_loses_everything_and_joins_with_the_same_id() -> None:
    member, _ = run(stable(A, session_ends=SESSION), AwaitedChanged(OF_A))
    assert run(member, Tick(), at=SESSION - 0.1) == (member, [])
    lost, actions = run(member, Tick(), at=SESSION)
    assert actions == [Lost(OF_A, SESSION_TIMED_OUT), Heartbeat()]
    assert (lost.phase, lost.member_id, lost.generation, lost.answered) == (Phase.JOINING, "m", -1, None)
    assert lost.awaited == OF_A, "the batch is still running, and a later revocation waits for it"


@pytest.mark.parametrize("error_code", [14, 15, 16, 111, 113])
def test_a_heartbeat_that_failed_is_sent_again_after_a_backoff_and_reports_everything(error_code: int) -> None:
    """111: a killed process still has the instance id."""
    for before in (stable(A), NEW):
        member, actions = run(before, RequestFailed(error_action(error_code), "why"))
        assert actions == [AwaitBackoff(rediscover=error_code in (15, 16)), Heartbeat()]
        assert (member.phase, dict(member.owned), member.answered) == (before.phase, dict(before.owned), None)


@pytest.mark.parametrize(
    ("error_code", "advice"),
    [
        (112, "'kafka.group.remote.assignor'"),
        (82, "instance.id"),
        (35, "'kafka.group.protocol' to classic"),
        (128, "128 (INVALID_REGULAR_EXPRESSION)"),
    ],
)
def test_errors_that_a_retry_cannot_help_end_the_membership_with_advice(error_code: int, advice: str) -> None:
    error = fatal("ConsumerGroupHeartbeat", "g", error_code)
    assert advice in str(error)
    member, actions = run(stable(A), RequestFailed(error_action(error_code), "why", error=error))
    leave = [] if error_code == 82 else [Leave()]  # another member has its place
    assert (member.phase, member.error, actions) == (Phase.FAILED, error, [Lost(OF_A, "why"), *leave])
    assert run(member, Tick(), answer(member, 8, A)) == (member, [])


def test_close_does_not_wait_for_the_in_flight_batch() -> None:
    member, actions = run(stable(A), AwaitedChanged(OF_A), Close())
    assert (member.phase, actions) == (Phase.LEFT, [Leave()]), "no rebalance has revoked its partitions"


def test_partitions_of_a_topic_without_a_name_are_owned_once_it_is_found() -> None:
    before = ConsumerMembership(member_id="m", topics=frozenset({"t"}))
    member, actions = run(before, answer(before, 7, A))
    assert (dict(member.owned), actions) == ({}, [FindTopics()])
    lost, actions = run(member, FENCED, TopicsFound(NAMES))
    assert (lost.phase, dict(lost.owned), actions) == (Phase.JOINING, {}, []), "the lookup ends after a loss"
    member, actions = run(member, TopicsFound({}))
    assert (dict(member.owned), actions) == ({}, []), "the lookup is repeated after the next answer only"
    assert run(member, answer(member, 7, None))[1] == [FindTopics()]
    member, actions = run(member, TopicsFound(NAMES))
    assert (dict(member.owned), actions) == ({A: 7}, [Assigned(OF_A), Heartbeat()])


def test_partitions_that_are_taken_back_before_their_topic_has_a_name_are_acknowledged() -> None:
    member, _ = run(stable(B), answer(stable(B), 8, B, ids(A, topic_id=UNKNOWN)))
    assert member.answered is not None
    member, _ = run(member, answer(member, 8, B))
    assert member.answered is None  # the next heartbeat reports everything
    member, _ = run(member, answer(member, 8, B))
    assert member.answered is not None


def test_a_recreated_topic_is_assigned_after_the_former_one_is_revoked() -> None:
    before, _ = run(stable(A, B), AwaitedChanged(OF_A))
    before, actions = run(before, answer(before, 8, ids(A, topic_id=RECREATED)), TopicsFound({RECREATED: "t"}))
    assert (before.phase, frozenset(before.owned), actions) == (Phase.REVOKING, BOTH, [])
    after, actions = run(before, AwaitedChanged(frozenset()))
    assert (actions, after.report.owned) == ([Revoked(BOTH), Heartbeat()], frozenset())
    after, actions = run(after, answer(after, 8, None))
    assert actions == [Assigned(OF_A), Heartbeat()]
    assert after.report.owned == ids(A, topic_id=RECREATED)


def test_a_changed_subscription_is_reported_at_once() -> None:
    member, actions = run(stable(A), Subscribed(frozenset({"t", "u"})))
    assert (actions, set(member.report.topics)) == ([Heartbeat()], {"t", "u"})
    assert run(member, Subscribed(frozenset({"t", "u"}))) == (member, [])


def test_a_name_is_kept_until_a_lookup_without_it_if_the_topic_is_not_assigned_or_owned() -> None:
    member, _ = run(revoking(B), TopicsFound({UNKNOWN: "u"}))
    assert member.topic_names == NAMES | {UNKNOWN: "u"}
    member, _ = run(member, answer(member, 7), AwaitedChanged(frozenset()))
    member, _ = run(member, answer(member, 7, None))
    assert member.topic_names == NAMES | {UNKNOWN: "u"}, "the coordinator may assign a topic of the subscription later"
    assert dict(run(member, TopicsFound({}))[0].topic_names) == {}


def test_an_assignment_with_an_unknown_topic_still_revokes_and_adds_the_others() -> None:
    before = stable(A)
    member, actions = run(before, answer(before, 8, B, ids(A, topic_id=UNKNOWN)))
    assert (dict(member.owned), actions) == ({B: 8}, [Assigned(OF_B), Revoked(OF_A), Heartbeat(), FindTopics()])
