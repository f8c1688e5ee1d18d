"""The classic handshake and the reconciler: revocation, loss and rejoin, without a broker, thread or clock."""

from __future__ import annotations

import pytest

from spark_group_source.errors import GroupError
from spark_group_source.group.classic_state import (
    ClassicMembership,
    HeartbeatSucceeded,
    Join,
    Joined,
    Step,
    SubscriptionChanged,
    Sync,
    Synced,
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
)
from spark_group_source.offsets import TopicPartition

REVOCATION_TIMEOUT = 100.0
A, B, C = (TopicPartition("t", number) for number in range(3))
REBALANCE = RequestFailed(ErrorAction.REJOIN, "Heartbeat failed with 27")


def run(state: ClassicMembership, *events: Event, at: float = 0.0) -> Step:
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, at, REVOCATION_TIMEOUT)
    return state, actions


def stable(*owned: TopicPartition, cooperative: bool = True) -> ClassicMembership:
    joined, _ = run(ClassicMembership(cooperative=cooperative), Joined("m-1", 7), Synced(frozenset(owned)))
    assert joined.phase is Phase.STABLE
    return joined


def test_a_sync_follows_a_join_and_the_assignment_has_that_generation() -> None:
    joined, actions = run(ClassicMembership(), Joined("m-1", 7))
    assert (joined.phase, joined.syncing, actions) == (Phase.JOINING, True, [Sync()])
    owning, actions = run(joined, Synced(frozenset({A, B})))
    assert (dict(owning.owned), actions) == ({A: 7, B: 7}, [Assigned(frozenset({A, B}))])


def test_a_cooperative_rejoin_keeps_owned_partitions_and_their_generations() -> None:
    rejoining, actions = run(stable(A, B), REBALANCE)
    assert (rejoining.phase, actions, set(rejoining.owned)) == (Phase.JOINING, [Join()], {A, B})
    again, actions = run(rejoining, Joined("m-1", 8), Synced(frozenset({A, B, C})))
    assert (dict(again.owned), actions) == ({A: 7, B: 7, C: 8}, [Assigned(frozenset({C}))])


def test_a_cooperative_revocation_without_an_in_flight_batch_rejoins_at_once() -> None:
    after, actions = run(stable(A, B), REBALANCE, Joined("m-1", 8), Synced(frozenset({A})))
    assert actions == [Revoked(frozenset({B})), Join()]
    assert (after.phase, set(after.owned)) == (Phase.JOINING, {A})


def test_a_revocation_waits_for_the_in_flight_batch_and_other_partitions_stay_readable() -> None:
    revoking, actions = run(
        stable(A, B), AwaitedChanged(frozenset({A, B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A}))
    )
    assert (revoking.phase, actions) == (Phase.REVOKING, [])
    assert (set(revoking.owned), set(revoking.readable)) == ({A, B}, {A})
    assert run(revoking, Tick(), at=REVOCATION_TIMEOUT - 1) == (revoking, [])
    assert run(revoking, REBALANCE) == (revoking, [])
    after, actions = run(revoking, AwaitedChanged(frozenset()))
    assert actions == [Revoked(frozenset({B})), Join()]
    assert set(after.owned) == {A}


def test_a_revocation_waits_for_a_pending_commit() -> None:
    revoking, _ = run(
        stable(A, B), AwaitedChanged(frozenset({A, B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A}))
    )
    still, actions = run(revoking, AwaitedChanged(frozenset({B})))
    assert (still.phase, actions) == (Phase.REVOKING, [])
    assert run(still, AwaitedChanged(frozenset()))[1] == [Revoked(frozenset({B})), Join()]


def test_a_revocation_does_not_wait_for_a_batch_of_other_partitions() -> None:
    after, actions = run(
        stable(A, B), AwaitedChanged(frozenset({A})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A}))
    )
    assert actions == [Revoked(frozenset({B})), Join()]
    assert after.awaited == {A}


def test_partitions_of_a_batch_past_the_deadline_are_revoked_late() -> None:
    revoking, _ = run(stable(A, B), AwaitedChanged(frozenset({B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A})))
    after, actions = run(revoking, Tick(), at=REVOCATION_TIMEOUT)
    assert actions == [Revoked(frozenset({B})), Join()]
    assert set(after.owned) == {A}


def test_an_eager_rejoin_revokes_everything_before_the_join() -> None:
    after, actions = run(stable(A, B, cooperative=False), REBALANCE)
    assert actions == [Revoked(frozenset({A, B})), Join()]
    assert not after.owned


def test_an_eager_rejoin_waits_for_the_batch_before_the_join() -> None:
    revoking, actions = run(stable(A, B, cooperative=False), AwaitedChanged(frozenset({A})), REBALANCE)
    assert (revoking.phase, actions, dict(revoking.readable)) == (Phase.REVOKING, [], {})
    _, actions = run(revoking, AwaitedChanged(frozenset()))
    assert actions == [Revoked(frozenset({A, B})), Join()]


@pytest.mark.parametrize(
    ("action", "kept_id"), [(ErrorAction.RESET_GENERATION, "m-1"), (ErrorAction.RESET_MEMBER_ID, "")]
)
@pytest.mark.parametrize("busy", [frozenset(), frozenset({A})])
def test_a_lost_generation_loses_everything_without_waiting(
    action: ErrorAction, kept_id: str, busy: frozenset[TopicPartition]
) -> None:
    after, actions = run(stable(A, B), AwaitedChanged(busy), RequestFailed(action, "why"))
    assert actions == [Lost(frozenset({A, B}), "why"), Join()]
    assert (after.member_id, after.generation, dict(after.owned)) == (kept_id, -1, {})


def test_a_generation_lost_during_a_revocation_is_lost_and_not_revoked() -> None:
    revoking, _ = run(stable(A, B), AwaitedChanged(frozenset({B})), REBALANCE, Joined("m-1", 8), Synced(frozenset({A})))
    after, actions = run(revoking, RequestFailed(ErrorAction.RESET_MEMBER_ID, "why"))
    assert actions == [Lost(frozenset({A, B}), "why"), Join()]
    assert run(after, AwaitedChanged(frozenset()))[1] == []


def test_a_member_joins_with_the_id_from_the_coordinator() -> None:
    after, actions = run(ClassicMembership(), RequestFailed(ErrorAction.MEMBER_ID_REQUIRED, "why", member_id="m-9"))
    assert (after.member_id, actions) == ("m-9", [Join()])


def test_a_heartbeat_without_a_response_keeps_the_membership_and_rediscovers_the_coordinator() -> None:
    before = stable(A)
    assert run(before, RequestFailed(ErrorAction.REDISCOVER, "why")) == (before, [AwaitBackoff(rediscover=True)])


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_the_first_join_is_retried_while_the_coordinator_loads_or_moves(action: ErrorAction) -> None:
    _, actions = run(ClassicMembership(), RequestFailed(action, "why"))
    assert actions == [AwaitBackoff(rediscover=action is ErrorAction.REDISCOVER), Join()]


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_a_sync_without_a_response_leads_to_a_join_with_the_owned_partitions(action: ErrorAction) -> None:
    syncing, _ = run(stable(A), REBALANCE, Joined("m-1", 8))
    after, actions = run(syncing, RequestFailed(action, "why"))
    assert (after.phase, set(after.owned)) == (Phase.JOINING, {A})
    assert actions == [AwaitBackoff(rediscover=action is ErrorAction.REDISCOVER), Join()]


def test_close_does_not_wait_for_the_in_flight_batch() -> None:
    left, actions = run(stable(A), AwaitedChanged(frozenset({A})), Close())
    assert (left.phase, actions) == (Phase.LEFT, [Leave()]), "no rebalance has revoked its partitions"
    assert run(left, REBALANCE) == (left, [])


def test_a_fatal_failure_fails_the_member_with_its_error_and_loses_everything() -> None:
    error = GroupError("no", error_code=30)
    failed, actions = run(stable(A), RequestFailed(ErrorAction.FATAL, "why", error=error))
    assert (failed.phase, failed.error, dict(failed.owned)) == (Phase.FAILED, error, {})
    assert actions == [Lost(frozenset({A}), "why"), Leave()]


def test_a_fenced_static_member_does_not_leave_because_another_one_has_its_place() -> None:
    failed, actions = run(stable(A), RequestFailed(ErrorAction.FATAL, "why", error=GroupError("no", error_code=82)))
    assert (failed.phase, actions) == (Phase.FAILED, [Lost(frozenset({A}), "why")])


def test_a_changed_subscription_starts_a_rejoin_only_when_stable() -> None:
    assert run(stable(A), SubscriptionChanged("8 to 10"))[1] == [Join()]
    rejoining, _ = run(stable(A), REBALANCE)
    assert run(rejoining, SubscriptionChanged("8 to 10")) == (rejoining, [])


SESSION = 45.0


def kept_until(session_ends: float, *owned: TopicPartition) -> ClassicMembership:
    member, _ = run(ClassicMembership(), Joined("m-1", 7), Synced(frozenset(owned), session_ends))
    return member


def test_a_member_whose_session_timed_out_owns_nothing_and_rejoins_with_its_id() -> None:
    member, _ = run(kept_until(SESSION, A, B), AwaitedChanged(frozenset({A})))
    assert run(member, Tick(), at=SESSION - 0.1) == (member, [])
    after, actions = run(member, Tick(), at=SESSION)
    assert actions == [Lost(frozenset({A, B}), SESSION_TIMED_OUT), Join()]
    assert (after.member_id, after.generation, dict(after.owned)) == ("m-1", -1, {})
    assert after.awaited == {A}, "the batch is still running, and a later revocation waits for it"


def test_a_successful_heartbeat_extends_the_session() -> None:
    member, _ = run(kept_until(SESSION, A), HeartbeatSucceeded(7, SESSION + 10))
    assert run(member, Tick(), at=SESSION + 9) == (member, [])
    assert run(member, Tick(), at=SESSION + 10)[1] == [Lost(frozenset({A}), SESSION_TIMED_OUT), Join()]


def test_a_heartbeat_of_an_earlier_generation_does_not_extend_the_session() -> None:
    member = kept_until(SESSION, A)
    assert run(member, HeartbeatSucceeded(6, SESSION + 10)) == (member, [])


@pytest.mark.parametrize("phase", [(REBALANCE,), (REBALANCE, Joined("m-1", 8))], ids=["joining", "syncing"])
def test_a_session_times_out_while_a_join_or_a_sync_is_pending(phase: tuple[Event, ...]) -> None:
    waiting, _ = run(kept_until(SESSION, A), *phase)
    after, actions = run(waiting, Tick(), at=SESSION)
    assert actions == [Lost(frozenset({A}), SESSION_TIMED_OUT), Join()]
    assert run(after, Synced(frozenset({A}), SESSION * 2)) == (after, []), "the join that follows gives new partitions"


def test_a_session_that_times_out_during_a_revocation_loses_everything() -> None:
    revoking, _ = run(
        kept_until(SESSION, A, B),
        AwaitedChanged(frozenset({B})),
        REBALANCE,
        Joined("m-1", 8),
        Synced(frozenset({A}), SESSION),
    )
    assert revoking.phase is Phase.REVOKING
    assert run(revoking, Tick(), at=SESSION)[1] == [Lost(frozenset({A, B}), SESSION_TIMED_OUT), Join()]


def test_a_member_without_partitions_loses_nothing_with_its_session() -> None:
    member = kept_until(SESSION)
    assert run(member, Tick(), at=SESSION * 2) == (member, [])
