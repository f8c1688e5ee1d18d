"""The classic handshake: revocation, loss and rejoin, without a broker, thread or clock."""

from __future__ import annotations

from types import SimpleNamespace

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
from spark_group_source.group.member import Member
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
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.wire.cluster import Cluster

REVOCATION_TIMEOUT = 100.0
SESSION = 45.0
A, B, C = (TopicPartition("t", number) for number in range(3))
OF_A, OF_B, BOTH = frozenset({A}), frozenset({B}), frozenset({A, B})
REBALANCE = RequestFailed(ErrorAction.REJOIN, "Heartbeat failed with 27")


def run(state: ClassicMembership, *events: Event, at: float = 0.0) -> Step:
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, at, REVOCATION_TIMEOUT)
    return state, actions


def stable(*owned: TopicPartition, cooperative: bool = True, session_ends: float = 1000.0) -> ClassicMembership:
    new = ClassicMembership(cooperative=cooperative)
    joined, _ = run(new, Joined("m-1", 7, -1), Synced(frozenset(owned), session_ends))
    assert joined.phase is Phase.STABLE
    return joined


def revoking(in_flight: Partitions, session_ends: float = 1000.0) -> Step:
    """A member that owned A and B, and is to revoke B while a batch reads these partitions."""
    loses_b = REBALANCE, Joined("m-1", 8, 7), Synced(OF_A, session_ends)
    return run(stable(A, B), AwaitedChanged(in_flight), *loses_b)


def test_a_sync_follows_a_join_and_the_assignment_has_that_generation() -> None:
    joined, actions = run(ClassicMembership(), Joined("m-1", 7, -1))
    assert (joined.phase, joined.syncing, actions) == (Phase.JOINING, True, [Sync()])
    owning, actions = run(joined, Synced(BOTH))
    assert (dict(owning.owned), actions) == ({A: 7, B: 7}, [Assigned(BOTH)])


@pytest.mark.parametrize("in_flight", [frozenset(), OF_A], ids=["no batch", "a batch of other partitions"])
def test_a_cooperative_revocation_that_nothing_waits_for_rejoins_at_once(in_flight: Partitions) -> None:
    after, actions = revoking(in_flight)
    assert (after.phase, frozenset(after.owned), actions) == (Phase.JOINING, OF_A, [Revoked(OF_B), Join()])
    assert after.awaited == in_flight


def test_a_revocation_waits_for_the_in_flight_batch_and_other_partitions_stay_readable() -> None:
    member, actions = revoking(BOTH)
    assert (member.phase, actions) == (Phase.REVOKING, [])
    assert (frozenset(member.owned), frozenset(member.readable)) == (BOTH, OF_A)
    assert run(member, Tick(), at=REVOCATION_TIMEOUT - 1) == (member, [])
    assert run(member, REBALANCE) == (member, [])
    still, actions = run(member, AwaitedChanged(OF_B))
    assert (still.phase, actions) == (Phase.REVOKING, []), "its commit is pending"
    for after, actions in (run(still, AwaitedChanged(frozenset())), run(still, Tick(), at=REVOCATION_TIMEOUT)):
        assert (frozenset(after.owned), actions) == (OF_A, [Revoked(OF_B), Join()])


def test_an_eager_rejoin_waits_for_the_batch_before_the_join() -> None:
    assert run(stable(A, B, cooperative=False), REBALANCE)[1] == [Revoked(BOTH), Join()]
    waiting, actions = run(stable(A, B, cooperative=False), AwaitedChanged(OF_A), REBALANCE)
    assert (waiting.phase, actions, dict(waiting.readable)) == (Phase.REVOKING, [], {})
    after, actions = run(waiting, AwaitedChanged(frozenset()))
    assert (dict(after.owned), actions) == ({}, [Revoked(BOTH), Join()])


@pytest.mark.parametrize(
    ("action", "kept_id"), [(ErrorAction.RESET_GENERATION, "m-1"), (ErrorAction.RESET_MEMBER_ID, "")]
)
@pytest.mark.parametrize("state", ["idle", "in a batch", "revoking"])
def test_a_lost_generation_loses_everything_without_waiting(action: ErrorAction, kept_id: str, state: str) -> None:
    before = revoking(OF_B)[0] if state == "revoking" else stable(A, B)
    before = run(before, AwaitedChanged(OF_A))[0] if state == "in a batch" else before
    after, actions = run(before, RequestFailed(action, "why"))
    assert actions == [Lost(BOTH, "why"), Join()]
    assert (after.member_id, after.generation, dict(after.owned)) == (kept_id, -1, {})
    assert run(after, AwaitedChanged(frozenset()))[1] == []


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_a_sync_without_a_response_leads_to_a_join_with_the_owned_partitions(action: ErrorAction) -> None:
    """So does the first join, while the coordinator loads or moves."""
    syncing, _ = run(stable(A), REBALANCE, Joined("m-1", 8, 7))
    for before, owned in ((syncing, OF_A), (ClassicMembership(), frozenset())):
        after, actions = run(before, RequestFailed(action, "why"))
        assert (after.phase, frozenset(after.owned)) == (Phase.JOINING, owned)
        assert actions == [AwaitBackoff(rediscover=action is ErrorAction.REDISCOVER), Join()]


def test_close_does_not_wait_for_the_in_flight_batch() -> None:
    left, actions = run(stable(A), AwaitedChanged(OF_A), Close())
    assert (left.phase, actions) == (Phase.LEFT, [Leave()]), "no rebalance has revoked its partitions"
    assert run(left, REBALANCE) == (left, [])


@pytest.mark.parametrize(("error_code", "leaves"), [(30, [Leave()]), (82, [])])
def test_a_fatal_failure_loses_everything_and_only_a_fenced_member_stays(error_code: int, leaves: list[Action]) -> None:
    error = GroupError("no", error_code=error_code)
    failed, actions = run(stable(A), RequestFailed(ErrorAction.FATAL, "why", error=error))
    assert (failed.phase, failed.error, dict(failed.owned)) == (Phase.FAILED, error, {})
    assert actions == [Lost(OF_A, "why"), *leaves], "another member has the place of a fenced one"


def test_a_changed_subscription_starts_a_rejoin_only_when_stable() -> None:
    assert run(stable(A), SubscriptionChanged("8 to 10"))[1] == [Join()]
    rejoining, _ = run(stable(A), REBALANCE)
    assert run(rejoining, SubscriptionChanged("8 to 10")) == (rejoining, [])


def test_a_member_whose_session_timed_out_owns_nothing_and_rejoins_with_its_id() -> None:
    member, _ = run(stable(A, B, session_ends=SESSION), AwaitedChanged(OF_A))
    assert run(member, Tick(), at=SESSION - 0.1) == (member, [])
    after, actions = run(member, Tick(), at=SESSION)
    assert actions == [Lost(BOTH, SESSION_TIMED_OUT), Join()]
    assert (after.member_id, after.generation, dict(after.owned)) == ("m-1", -1, {})
    assert after.awaited == OF_A, "the batch is still running, and a later revocation waits for it"
    without, _ = run(stable(session_ends=SESSION), Tick(), at=SESSION)
    assert without == stable(session_ends=SESSION), "it has nothing to lose"


def test_a_successful_heartbeat_of_the_present_generation_extends_the_session() -> None:
    before = stable(A, session_ends=SESSION)
    assert run(before, HeartbeatSucceeded(6, SESSION + 10)) == (before, [])
    member, _ = run(before, HeartbeatSucceeded(7, SESSION + 10))
    assert run(member, Tick(), at=SESSION + 9) == (member, [])
    assert run(member, Tick(), at=SESSION + 10)[1] == [Lost(OF_A, SESSION_TIMED_OUT), Join()]


@pytest.mark.parametrize("pending", ["join", "sync", "revocation"])
def test_a_session_times_out_while_a_join_a_sync_or_a_revocation_is_pending(pending: str) -> None:
    if pending == "revocation":
        waiting, _ = revoking(OF_B, session_ends=SESSION)
    else:
        sync = [Joined("m-1", 8, 7)] if pending == "sync" else []
        waiting, _ = run(stable(A, B, session_ends=SESSION), REBALANCE, *sync)
    after, actions = run(waiting, Tick(), at=SESSION)
    assert actions == [Lost(BOTH, SESSION_TIMED_OUT), Join()]
    assert run(after, Synced(OF_A, SESSION * 2)) == (after, []), "the join that follows gives new partitions"
    assert run(after, Joined("m-1", 8, 7)) == (after, []), "it claims what is lost, so nobody else would get that"


def test_a_revocation_waits_for_what_is_awaited_when_it_begins_although_nobody_has_said_so() -> None:
    """A start that was found meanwhile is pending, and its commit waits for that of the other thread."""
    offsets, options = SimpleNamespace(awaited=frozenset), {"kafka.bootstrap.servers": "x:1", "subscribe": "t"}
    settings = parse_options(options | {"kafka.group.id": "g"}).with_client_id("test").group
    member = Member(Cluster(settings.wire), settings, offsets)
    events: list[Event] = [Joined("m-1", 7, -1), Synced(BOTH), REBALANCE, Joined("m-1", 8, 7), Synced(OF_A)]
    for event in events:
        if event is REBALANCE:
            offsets.awaited = lambda: OF_B
        member.post(event)
    assert (member.membership.phase, member.membership.awaited) == (Phase.REVOKING, OF_B)
    member.close()


def test_a_member_joins_with_the_id_from_the_coordinator() -> None:
    after, actions = run(ClassicMembership(), RequestFailed(ErrorAction.MEMBER_ID_REQUIRED, "why", member_id="m-9"))
    assert (after.member_id, actions) == ("m-9", [Join()])


def test_a_heartbeat_without_a_response_keeps_the_membership_and_rediscovers_the_coordinator() -> None:
    before = stable(A)
    assert run(before, RequestFailed(ErrorAction.REDISCOVER, "why")) == (before, [AwaitBackoff(rediscover=True)])


def test_a_cooperative_rejoin_keeps_owned_partitions_and_their_generations() -> None:
    rejoining, actions = run(stable(A, B), REBALANCE)
    assert (rejoining.phase, actions, frozenset(rejoining.owned)) == (Phase.JOINING, [Join()], BOTH)
    again, actions = run(rejoining, Joined("m-1", 8, 7), Synced(frozenset({A, B, C})))
    assert (dict(again.owned), actions) == ({A: 7, B: 7, C: 8}, [Assigned(frozenset({C}))])
