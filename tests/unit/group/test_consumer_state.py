"""The handshake of KIP-848 and the reconciler: assignment, acknowledgement and loss, without a broker or clock."""

from __future__ import annotations

import uuid

import pytest

from spark_group_source.errors import GroupError
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
    ErrorAction,
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
A, B, C = (TopicPartition("t", number) for number in range(3))
T, RECREATED, UNKNOWN = (uuid.UUID(int=number) for number in (1, 2, 3))
NAMES = {T: "t"}
FENCED = RequestFailed(error_action(110), "ConsumerGroupHeartbeat failed with 110 (FENCED_MEMBER_EPOCH)")


def ids(*partitions: TopicPartition, topic_id: uuid.UUID = T) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(topic_id, tp.partition) for tp in partitions)


def new() -> ConsumerMembership:
    return ConsumerMembership(member_id="m", topics=frozenset({"t"}), topic_names=NAMES)


def answer(
    member: ConsumerMembership,
    epoch: int,
    *assigned: TopicPartition,
    changed: bool = True,
    session_ends: float = 1000.0,
    sent: Report | None = None,
) -> HeartbeatAnswered:
    """The answer to the member's next heartbeat."""
    return HeartbeatAnswered(sent or member.report, epoch, ids(*assigned) if changed else None, 5.0, session_ends)


def run(state: ConsumerMembership, *events: Event, at: float = 0.0) -> Step:
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, at, REVOCATION_TIMEOUT)
    return state, actions


def stable(*owned: TopicPartition, session_ends: float = 1000.0) -> ConsumerMembership:
    """A member at epoch 7 whose partitions the coordinator knows."""
    member, _ = run(new(), answer(new(), 7, *owned, session_ends=session_ends))
    member, actions = run(member, answer(member, 7, changed=False, session_ends=session_ends))
    assert (member.phase, set(member.owned), actions) == (Phase.STABLE, set(owned), [])
    assert member.answered == member.report
    return member


def revoking(*in_flight: TopicPartition) -> ConsumerMembership:
    """A member that owns A and B, and is to revoke B."""
    member, _ = run(stable(A, B), AwaitedChanged(frozenset(in_flight)))
    return run(member, answer(member, 7, A))[0]


def test_a_new_member_joins_with_its_own_id_and_reports_everything() -> None:
    member = new()
    assert (member.phase, member.member_id, member.answered) == (Phase.JOINING, "m", None)
    assert member.report == Report(-1, frozenset({"t"}))


def test_the_answer_to_a_join_assigns_partitions_and_the_next_heartbeat_reports_them_at_once() -> None:
    member, actions = run(new(), answer(new(), 7, A, B))
    assert actions == [Assigned(frozenset({A, B})), Heartbeat()]
    assert (member.phase, member.generation, dict(member.owned)) == (Phase.STABLE, 7, {A: 7, B: 7})
    assert (member.report.owned, member.answered) == (ids(A, B), new().report)


def test_a_member_with_an_empty_assignment_is_stable_and_waits_for_the_next_heartbeat() -> None:
    member, actions = run(new(), answer(new(), 7))
    assert (member.phase, member.generation, actions) == (Phase.STABLE, 7, [])


def test_an_answer_gives_the_epoch() -> None:
    before = stable(A)
    member, actions = run(before, HeartbeatAnswered(before.report, 9, None, 2.5, 1000.0))
    assert (member.generation, dict(member.owned), actions) == (9, {A: 7}, [])


def test_partitions_that_other_members_release_later_are_added() -> None:
    before = stable(A)
    member, actions = run(before, answer(before, 8, A, B))
    assert (dict(member.owned), actions) == ({A: 7, B: 8}, [Assigned(frozenset({B})), Heartbeat()])


def test_a_revocation_without_an_in_flight_batch_is_acknowledged_at_once() -> None:
    before = stable(A, B)
    member, actions = run(before, answer(before, 7, A))
    assert actions == [Revoked(frozenset({B})), Heartbeat()]
    assert (member.phase, member.report.owned) == (Phase.STABLE, ids(A))


def test_a_revocation_is_acknowledged_only_after_the_commit_of_the_in_flight_batch() -> None:
    member = revoking(A, B)
    assert (member.phase, set(member.readable), member.report.owned) == (Phase.REVOKING, {A}, ids(A, B))
    assert run(member, Tick(), at=REVOCATION_TIMEOUT - 1)[1] == []
    member, actions = run(member, AwaitedChanged(frozenset({B})))
    assert (member.phase, actions, member.report.owned) == (Phase.REVOKING, [], ids(A, B))
    member, actions = run(member, AwaitedChanged(frozenset()))
    assert (member.phase, actions) == (Phase.STABLE, [Revoked(frozenset({B})), Heartbeat()])
    assert member.report.owned == ids(A)


def test_a_revocation_does_not_wait_for_a_batch_of_other_partitions() -> None:
    assert revoking(A).phase is Phase.STABLE


def test_a_revocation_past_its_timeout_is_late_and_acknowledged() -> None:
    member, actions = run(revoking(B), Tick(), at=REVOCATION_TIMEOUT)
    assert actions == [Revoked(frozenset({B})), Heartbeat()]
    assert member.report.owned == ids(A)


@pytest.mark.parametrize("changed", [True, False])
def test_heartbeats_go_on_during_a_revocation_and_do_not_extend_its_timeout(changed: bool) -> None:
    member = revoking(B)
    again, actions = run(member, answer(member, 7, A, changed=changed), at=REVOCATION_TIMEOUT / 2)
    assert (again.phase, again.revoke_by, actions) == (Phase.REVOKING, REVOCATION_TIMEOUT, [])


def test_a_smaller_assignment_during_a_revocation_revokes_the_other_partitions_too() -> None:
    member = revoking(B)
    member, actions = run(member, answer(member, 7))
    assert (member.phase, set(member.revoking), actions) == (Phase.REVOKING, {A, B}, [])
    assert run(member, AwaitedChanged(frozenset()))[1] == [Revoked(frozenset({A, B})), Heartbeat()]


def test_partitions_that_are_assigned_again_during_a_revocation_stay() -> None:
    member = revoking(B)
    member, actions = run(member, answer(member, 8, A, B))
    assert (member.phase, set(member.readable), actions) == (Phase.STABLE, {A, B}, [])


def test_a_heartbeat_reports_what_changed_while_the_one_before_was_pending() -> None:
    member = revoking(B)
    pending = answer(member, 7, A)
    member, actions = run(member, AwaitedChanged(frozenset()))
    assert actions == [Revoked(frozenset({B})), Heartbeat()]
    member, actions = run(member, pending)
    assert (member.report.owned, actions) == (ids(A), [])
    assert member.answered is not None
    assert member.answered.owned == ids(A, B)


@pytest.mark.parametrize("error_code", [110, 25])
@pytest.mark.parametrize("busy", [frozenset(), frozenset({A})])
def test_a_fenced_or_unknown_member_loses_everything_and_joins_with_the_same_id(
    error_code: int, busy: frozenset[TopicPartition]
) -> None:
    member, actions = run(stable(A, B), AwaitedChanged(busy), RequestFailed(error_action(error_code), "why"))
    assert actions == [Lost(frozenset({A, B}), "why"), Heartbeat()]
    assert (member.phase, member.member_id, member.report) == (Phase.JOINING, "m", Report(-1, frozenset({"t"})))
    assert member.answered is None, "the join reports everything"
    assert member.awaited == busy
    member, actions = run(member, answer(member, 9, B))
    assert (dict(member.owned), actions) == ({B: 9}, [Assigned(frozenset({B})), Heartbeat()])


def test_a_member_that_is_fenced_during_a_revocation_loses_everything() -> None:
    member, actions = run(revoking(B), FENCED)
    assert actions == [Lost(frozenset({A, B}), FENCED.reason), Heartbeat()]
    assert run(member, AwaitedChanged(frozenset()))[1] == []


def test_a_fenced_member_does_not_take_its_former_assignment_again() -> None:
    member, _ = run(stable(A), FENCED)
    member, actions = run(member, answer(member, 9, changed=False))
    assert (dict(member.owned), actions) == ({}, [])


def test_an_answer_to_a_heartbeat_from_before_a_loss_changes_nothing() -> None:
    before = stable(A)
    lost, _ = run(before, FENCED)
    assert run(lost, answer(before, 8, A, B)) == (lost, [])


def test_a_session_without_an_answer_loses_everything_and_joins_with_the_same_id() -> None:
    member, _ = run(stable(A, session_ends=SESSION), AwaitedChanged(frozenset({A})))
    assert run(member, Tick(), at=SESSION - 0.1) == (member, [])
    lost, actions = run(member, Tick(), at=SESSION)
    assert actions == [Lost(frozenset({A}), SESSION_TIMED_OUT), Heartbeat()]
    assert (lost.phase, lost.member_id, lost.generation, lost.answered) == (Phase.JOINING, "m", -1, None)
    assert lost.awaited == {A}, "the batch is still running, and a later revocation waits for it"


def test_an_answer_extends_the_session() -> None:
    member = stable(A, session_ends=SESSION)
    member, _ = run(member, answer(member, 7, changed=False, session_ends=SESSION + 10))
    assert run(member, Tick(), at=SESSION + 9) == (member, [])
    assert run(member, Tick(), at=SESSION + 10)[1] == [Lost(frozenset({A}), SESSION_TIMED_OUT), Heartbeat()]


@pytest.mark.parametrize("error_code", [14, 15, 16, 111, 113])
def test_a_heartbeat_that_failed_is_sent_again_after_a_backoff_and_reports_everything(error_code: int) -> None:
    before = stable(A)
    member, actions = run(before, RequestFailed(error_action(error_code), "why"))
    assert actions == [AwaitBackoff(rediscover=error_code in (15, 16)), Heartbeat()]
    assert (member.phase, dict(member.owned), member.answered) == (Phase.STABLE, dict(before.owned), None)


def test_a_member_waits_for_its_instance_id_which_its_killed_process_still_has() -> None:
    member, actions = run(new(), RequestFailed(error_action(111), "why"))
    assert (member.phase, actions) == (Phase.JOINING, [AwaitBackoff(), Heartbeat()])


@pytest.mark.parametrize(
    ("error_code", "advice"),
    [(112, "'kafka.group.remote.assignor'"), (82, "instance.id"), (35, "'kafka.group.protocol' to classic")],
)
def test_errors_that_a_retry_cannot_help_end_the_membership_with_advice(error_code: int, advice: str) -> None:
    error = fatal("ConsumerGroupHeartbeat", "g", error_code)
    assert advice in str(error)
    member, actions = run(stable(A), RequestFailed(error_action(error_code), "why", error=error))
    leave = [] if error_code == 82 else [Leave()]  # another member has its place
    assert (member.phase, member.error, actions) == (Phase.FAILED, error, [Lost(frozenset({A}), "why"), *leave])
    assert run(member, Tick(), answer(member, 8, A)) == (member, [])


def test_the_name_of_a_newer_error_code_is_known() -> None:
    assert "128 (INVALID_REGULAR_EXPRESSION)" in str(fatal("ConsumerGroupHeartbeat", "g", 128))


def test_close_does_not_wait_for_the_in_flight_batch() -> None:
    member, actions = run(stable(A), AwaitedChanged(frozenset({A})), Close())
    assert (member.phase, actions) == (Phase.LEFT, [Leave()]), "no rebalance has revoked its partitions"


def test_a_changed_subscription_is_reported_at_once() -> None:
    member, actions = run(stable(A), Subscribed(frozenset({"t", "u"})))
    assert (actions, set(member.report.topics)) == ([Heartbeat()], {"t", "u"})
    assert run(member, Subscribed(frozenset({"t", "u"}))) == (member, [])


def test_partitions_of_a_topic_without_a_name_are_owned_once_it_is_found() -> None:
    before = ConsumerMembership(member_id="m", topics=frozenset({"t"}))
    member, actions = run(before, answer(before, 7, A))
    assert (dict(member.owned), actions) == ({}, [FindTopics()])
    member, actions = run(member, TopicsFound({}))
    assert (dict(member.owned), actions) == ({}, []), "the lookup is repeated after the next answer only"
    assert run(member, answer(member, 7, changed=False))[1] == [FindTopics()]
    member, actions = run(member, TopicsFound(NAMES))
    assert (dict(member.owned), actions) == ({A: 7}, [Assigned(frozenset({A})), Heartbeat()])


def test_a_lookup_that_ends_after_a_loss_assigns_nothing() -> None:
    before = ConsumerMembership(member_id="m")
    member, _ = run(before, answer(before, 7, A), FENCED)
    member, actions = run(member, TopicsFound(NAMES))
    assert (member.phase, dict(member.owned), actions) == (Phase.JOINING, {}, [])


def test_an_assignment_with_an_unknown_topic_still_revokes_and_adds_the_others() -> None:
    before = stable(A)
    assignment = ids(B) | ids(A, topic_id=UNKNOWN)
    member, actions = run(before, HeartbeatAnswered(before.report, 8, assignment, 5.0, 1000.0))
    revoked = [Assigned(frozenset({B})), Revoked(frozenset({A})), Heartbeat(), FindTopics()]
    assert (dict(member.owned), actions) == ({B: 8}, revoked)


def test_a_name_is_kept_until_a_lookup_without_it_if_the_topic_is_not_assigned_or_owned() -> None:
    member, _ = run(revoking(B), TopicsFound({UNKNOWN: "u"}))
    assert member.topic_names == NAMES | {UNKNOWN: "u"}
    member, _ = run(member, answer(member, 7), AwaitedChanged(frozenset()))
    member, _ = run(member, answer(member, 7, changed=False))
    assert member.topic_names == NAMES | {UNKNOWN: "u"}, "the coordinator may assign a topic of the subscription later"
    assert dict(run(member, TopicsFound({}))[0].topic_names) == {}


def test_partitions_that_are_taken_back_before_their_topic_has_a_name_are_acknowledged() -> None:
    unknown = ids(A, topic_id=UNKNOWN)
    member, _ = run(stable(B), HeartbeatAnswered(stable(B).report, 8, unknown | ids(B), 5.0, 1000.0))
    assert member.answered is not None
    member, _ = run(member, answer(member, 8, B))
    assert member.answered is None  # the next heartbeat reports everything
    member, _ = run(member, answer(member, 8, B))
    assert member.answered is not None


def test_a_recreated_topic_is_assigned_after_the_former_one_is_revoked() -> None:
    before, _ = run(stable(A, B), AwaitedChanged(frozenset({A})))
    before = run(before, HeartbeatAnswered(before.report, 8, ids(A, topic_id=RECREATED), 5.0, 1000.0))[0]
    before, actions = run(before, TopicsFound({RECREATED: "t"}))
    assert (before.phase, set(before.owned), actions) == (Phase.REVOKING, {A, B}, [])
    after, actions = run(before, AwaitedChanged(frozenset()))
    assert (actions, after.report.owned) == ([Revoked(frozenset({A, B})), Heartbeat()], frozenset())
    after, actions = run(after, answer(after, 8, changed=False))
    assert actions == [Assigned(frozenset({A})), Heartbeat()]
    assert after.report.owned == ids(A, topic_id=RECREATED)


def test_an_error_without_a_row_is_fatal() -> None:
    assert error_action(42) is ErrorAction.FATAL
    error = GroupError("no", error_code=42)
    assert run(stable(), RequestFailed(ErrorAction.FATAL, "why", error=error))[0].error is error
