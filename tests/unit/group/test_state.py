"""The membership's state machine: hand-over, loss and rejoin, without a broker, thread or clock."""

from __future__ import annotations

import pytest

from spark_group_source.errors import GroupError
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import (
    Action,
    Assigned,
    AwaitBackoff,
    BatchCompleted,
    BatchPlanned,
    Close,
    Event,
    HeartbeatSucceeded,
    Join,
    Joined,
    Leave,
    Lost,
    RequestFailed,
    Revoked,
    SubscriptionChanged,
    Sync,
    Synced,
    Tick,
)
from spark_group_source.group.state import SESSION_TIMED_OUT, Membership, Phase, Step, step
from spark_group_source.offsets import TopicPartition

DRAIN = 100.0
A, B, C = (TopicPartition("t", number) for number in range(3))
REBALANCE = RequestFailed(ErrorAction.REJOIN, "Heartbeat was answered with 27")


def run(state: Membership, *events: Event, at: float = 0.0) -> Step:
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, at, DRAIN)
    return state, actions


def stable(*owned: TopicPartition, cooperative: bool = True) -> Membership:
    joined, _ = run(Membership(cooperative=cooperative), Joined("m-1", 7), Synced(frozenset(owned)))
    assert joined.phase is Phase.STABLE
    return joined


def test_a_join_is_followed_by_a_sync_and_the_share_is_owned_since_that_generation() -> None:
    joined, actions = run(Membership(), Joined("m-1", 7))
    assert (joined.phase, actions) == (Phase.SYNCING, [Sync()])
    owning, actions = run(joined, Synced(frozenset({A, B})))
    assert (dict(owning.owned), actions) == ({A: 7, B: 7}, [Assigned(frozenset({A, B}))])


def test_cooperative_rejoin_keeps_what_is_owned_and_since_when() -> None:
    rejoining, actions = run(stable(A, B), REBALANCE)
    assert (rejoining.phase, actions, set(rejoining.owned)) == (Phase.JOINING, [Join()], {A, B})
    again, actions = run(rejoining, Joined("m-1", 8), Synced(frozenset({A, B, C})))
    assert (dict(again.owned), actions) == ({A: 7, B: 7, C: 8}, [Assigned(frozenset({C}))])


def test_cooperative_revoke_with_nothing_in_flight_gives_up_and_joins_again_at_once() -> None:
    after, actions = run(stable(A, B), REBALANCE, Joined("m-1", 8), Synced(frozenset({A})))
    assert actions == [Revoked(frozenset({B})), Join()]
    assert (after.phase, set(after.owned)) == (Phase.JOINING, {A})


def test_revoke_waits_for_batch_in_flight_and_goes_on_reading_the_rest() -> None:
    revoking, actions = run(
        stable(A, B), BatchPlanned(frozenset({A, B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A}))
    )
    assert (revoking.phase, actions) == (Phase.REVOKING, [])
    assert (set(revoking.owned), set(revoking.readable)) == ({A, B}, {A})
    assert run(revoking, Tick(), at=DRAIN - 1) == (revoking, [])
    assert run(revoking, REBALANCE) == (revoking, [])
    after, actions = run(revoking, BatchCompleted())
    assert actions == [Revoked(frozenset({B})), Join()]
    assert set(after.owned) == {A}


def test_revoke_waits_for_a_commit_that_is_still_to_be_made() -> None:
    revoking, _ = run(
        stable(A, B), BatchPlanned(frozenset({A, B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A}))
    )
    still, actions = run(revoking, BatchCompleted(uncommitted=frozenset({B})))
    assert (still.phase, actions) == (Phase.REVOKING, [])
    assert run(still, BatchCompleted())[1] == [Revoked(frozenset({B})), Join()]


def test_revoke_does_not_wait_for_a_batch_that_reads_other_partitions() -> None:
    after, actions = run(
        stable(A, B), BatchPlanned(frozenset({A})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A}))
    )
    assert actions == [Revoked(frozenset({B})), Join()]
    assert after.in_flight == {A}


def test_a_batch_past_the_drain_deadline_is_given_up_as_late() -> None:
    revoking, _ = run(stable(A, B), BatchPlanned(frozenset({B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A})))
    after, actions = run(revoking, Tick(), at=DRAIN)
    assert actions == [Revoked(frozenset({B}), late=frozenset({B})), Join()]
    assert set(after.owned) == {A}


def test_eager_rejoin_gives_up_everything_before_the_join() -> None:
    after, actions = run(stable(A, B, cooperative=False), REBALANCE)
    assert actions == [Revoked(frozenset({A, B})), Join()]
    assert not after.owned


def test_eager_rejoin_waits_for_the_batch_before_the_join() -> None:
    revoking, actions = run(stable(A, B, cooperative=False), BatchPlanned(frozenset({A})), REBALANCE)
    assert (revoking.phase, actions, dict(revoking.readable)) == (Phase.REVOKING, [], {})
    _, actions = run(revoking, BatchCompleted())
    assert actions == [Revoked(frozenset({A, B})), Join()]


@pytest.mark.parametrize(
    ("action", "kept_id"), [(ErrorAction.RESET_GENERATION, "m-1"), (ErrorAction.RESET_MEMBER_ID, "")]
)
@pytest.mark.parametrize("busy", [frozenset(), frozenset({A})])
def test_on_lost_nothing_is_waited_for_and_everything_is_lost(
    action: ErrorAction, kept_id: str, busy: frozenset[TopicPartition]
) -> None:
    after, actions = run(stable(A, B), BatchPlanned(busy), RequestFailed(action, "why"))
    assert actions == [Lost(frozenset({A, B}), "why"), Join()]
    assert (after.member_id, after.generation, dict(after.owned)) == (kept_id, -1, {})


def test_lost_in_mid_drain_is_lost_not_revoked() -> None:
    revoking, _ = run(stable(A, B), BatchPlanned(frozenset({B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A})))
    after, actions = run(revoking, RequestFailed(ErrorAction.RESET_MEMBER_ID, "why"))
    assert actions == [Lost(frozenset({A, B}), "why"), Join()]
    assert run(after, BatchCompleted())[1] == []


def test_the_id_the_coordinator_gives_is_joined_with() -> None:
    after, actions = run(Membership(), RequestFailed(ErrorAction.MEMBER_ID_REQUIRED, "why", member_id="m-9"))
    assert (after.member_id, actions) == ("m-9", [Join()])


def test_a_heartbeat_that_failed_on_the_wire_keeps_membership_and_looks_for_the_coordinator() -> None:
    before = stable(A)
    assert run(before, RequestFailed(ErrorAction.REDISCOVER, "why")) == (before, [AwaitBackoff(rediscover=True)])


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_the_first_join_is_tried_again_while_the_coordinator_loads_or_moves(action: ErrorAction) -> None:
    _, actions = run(Membership(), RequestFailed(action, "why"))
    assert actions == [AwaitBackoff(rediscover=action is ErrorAction.REDISCOVER), Join()]


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_a_sync_that_failed_on_the_wire_is_joined_anew_with_what_is_owned(action: ErrorAction) -> None:
    syncing, _ = run(stable(A), REBALANCE, Joined("m-1", 8))
    after, actions = run(syncing, RequestFailed(action, "why"))
    assert (after.phase, set(after.owned)) == (Phase.JOINING, {A})
    assert actions == [AwaitBackoff(rediscover=action is ErrorAction.REDISCOVER), Join()]


def test_close_does_not_wait_for_the_batch_in_flight() -> None:
    left, actions = run(stable(A), BatchPlanned(frozenset({A})), Close())
    assert (left.phase, actions) == (Phase.LEFT, [Revoked(frozenset({A})), Leave()])
    assert run(left, REBALANCE) == (left, [])


def test_what_cannot_heal_fails_the_member_with_its_error_and_nothing_is_owned() -> None:
    error = GroupError("no", errno=30)
    failed, actions = run(stable(A), RequestFailed(ErrorAction.FATAL, "why", error=error))
    assert (failed.phase, failed.error, dict(failed.owned)) == (Phase.FAILED, error, {})
    assert actions == [Lost(frozenset({A}), "why")]


def test_a_changed_subscription_is_joined_for_only_when_stable() -> None:
    assert run(stable(A), SubscriptionChanged("8 to 10"))[1] == [Join()]
    rejoining, _ = run(stable(A), REBALANCE)
    assert run(rejoining, SubscriptionChanged("8 to 10")) == (rejoining, [])


SESSION = 45.0


def kept_until(session_ends: float, *owned: TopicPartition) -> Membership:
    member, _ = run(Membership(), Joined("m-1", 7), Synced(frozenset(owned), session_ends))
    return member


def test_a_member_without_an_answer_for_a_session_owns_nothing_and_joins_again_with_its_id() -> None:
    member, _ = run(kept_until(SESSION, A, B), BatchPlanned(frozenset({A})))
    assert run(member, Tick(), at=SESSION - 0.1) == (member, [])
    after, actions = run(member, Tick(), at=SESSION)
    assert actions == [Lost(frozenset({A, B}), SESSION_TIMED_OUT), Join()]
    assert (after.member_id, after.generation, dict(after.owned)) == ("m-1", -1, {})
    assert after.in_flight == {A}, "the batch is still running, and a later hand-over waits for it"


def test_an_answer_keeps_the_session_for_as_long_as_it_says() -> None:
    member, _ = run(kept_until(SESSION, A), HeartbeatSucceeded(7, SESSION + 10))
    assert run(member, Tick(), at=SESSION + 9) == (member, [])
    assert run(member, Tick(), at=SESSION + 10)[1] == [Lost(frozenset({A}), SESSION_TIMED_OUT), Join()]


def test_an_answer_to_an_earlier_generation_keeps_nothing() -> None:
    member = kept_until(SESSION, A)
    assert run(member, HeartbeatSucceeded(6, SESSION + 10)) == (member, [])


@pytest.mark.parametrize("phase", [(REBALANCE,), (REBALANCE, Joined("m-1", 8))], ids=["joining", "syncing"])
def test_a_session_ends_while_a_join_or_a_sync_is_waited_for(phase: tuple[Event, ...]) -> None:
    waiting, _ = run(kept_until(SESSION, A), *phase)
    after, actions = run(waiting, Tick(), at=SESSION)
    assert actions == [Lost(frozenset({A}), SESSION_TIMED_OUT), Join()]
    assert run(after, Synced(frozenset({A}), SESSION * 2)) == (after, []), "the join that follows gives new partitions"


def test_a_session_ends_in_mid_drain_and_nothing_is_revoked_in_order() -> None:
    revoking, _ = run(
        kept_until(SESSION, A, B),
        BatchPlanned(frozenset({B})),
        REBALANCE,
        Joined("m-1", 8),
        Synced(frozenset({A}), SESSION),
    )
    assert revoking.phase is Phase.REVOKING
    assert run(revoking, Tick(), at=SESSION)[1] == [Lost(frozenset({A, B}), SESSION_TIMED_OUT), Join()]


def test_who_owns_nothing_has_nothing_to_lose_with_the_session() -> None:
    member = kept_until(SESSION)
    assert run(member, Tick(), at=SESSION * 2) == (member, [])
