"""The state machines of both group protocols: assignment, revocation, loss and rejoin, without a broker or clock."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.group.classic import states as classic_states
from spark_group_source.group.classic.states import (
    MISSED_GENERATION,
    ClassicMembership,
    HeartbeatSucceeded,
    Join,
    Joined,
    SubscriptionChanged,
    Sync,
    Synced,
)
from spark_group_source.group.consumer import states as consumer_states
from spark_group_source.group.consumer.states import (
    ConsumerMembership,
    FindTopics,
    HeartbeatAnswered,
    Report,
    SessionTimeoutFound,
    Subscribed,
    TopicIdPartition,
    TopicsFound,
)
from spark_group_source.group.error_actions import ErrorAction, error_action, fatal
from spark_group_source.group.member import Member
from spark_group_source.group.membership import (
    NO_GENERATION,
    SESSION_TIMED_OUT,
    Action,
    Assigned,
    AwaitBackoff,
    AwaitedChanged,
    Close,
    Event,
    Heartbeat,
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
T, RECREATED, UNKNOWN = (uuid.UUID(int=number) for number in (1, 2, 3))
NAMES = {T: "t"}
FENCED = RequestFailed(error_action(110), "ConsumerGroupHeartbeat failed with 110 (FENCED_MEMBER_EPOCH)")
NEW = ConsumerMembership(member_id="m", topics=frozenset({"t"}), topic_names=NAMES)
AGAIN = {"classic": (Phase.JOINING, Join()), "consumer": (Phase.STABLE, Heartbeat())}
"""By group protocol: the phase of a member that acknowledges a revocation, and its next request."""


def run(state: Any, *events: Event, at: float = 0.0) -> tuple[Any, list[Action]]:
    step: Any = classic_states.step if isinstance(state, ClassicMembership) else consumer_states.step
    actions: list[Action] = []
    for event in events:
        state, actions = step(state, event, at, REVOCATION_TIMEOUT)
    return state, actions


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


def classic(*owned: TopicPartition, cooperative: bool = True, session_ends: float = 1000.0) -> Any:
    """A member of generation 7."""
    new = ClassicMembership(cooperative=cooperative)
    joined, _ = run(new, Joined("m", 7, -1), Synced(frozenset(owned), session_ends))
    assert joined.phase is Phase.STABLE
    return joined


def consumer(*owned: TopicPartition, session_ends: float = 1000.0) -> Any:
    """A member at epoch 7 whose partitions the coordinator knows."""
    member, _ = run(NEW, answer(NEW, 7, *owned, session_ends=session_ends))
    member, actions = run(member, answer(member, 7, None, session_ends=session_ends))
    assert (member.phase, frozenset(member.owned), actions) == (Phase.STABLE, frozenset(owned), [])
    assert member.answered == member.report
    return member


STABLE: dict[str, Any] = {"classic": classic, "consumer": consumer}


def revoking(protocol: str, in_flight: Partitions, session_ends: float = 1000.0) -> tuple[Any, list[Action]]:
    """A member that owned A and B, and is to revoke B while a batch reads these partitions."""
    member, _ = run(STABLE[protocol](A, B), AwaitedChanged(in_flight))
    if protocol == "consumer":
        return run(member, answer(member, 7, A))
    return run(member, REBALANCE, Joined("m", 8, 7), Synced(OF_A, session_ends))


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Both protocols


@pytest.mark.parametrize("in_flight", [frozenset(), OF_A], ids=["no batch", "a batch of other partitions"])
def test_a_revocation_that_nothing_waits_for_ends_at_once(protocol: str, in_flight: Partitions) -> None:
    after, actions = revoking(protocol, in_flight)
    phase, again = AGAIN[protocol]
    assert (after.phase, frozenset(after.owned), actions) == (phase, OF_A, [Revoked(OF_B), again])
    assert after.awaited == in_flight


def test_a_revocation_waits_for_the_in_flight_batch_and_other_partitions_stay_readable(protocol: str) -> None:
    member, actions = revoking(protocol, BOTH)
    assert (member.phase, actions) == (Phase.REVOKING, [])
    assert (frozenset(member.owned), frozenset(member.readable)) == (BOTH, OF_A)
    assert run(member, Tick(), at=REVOCATION_TIMEOUT - 1) == (member, [])
    still, actions = run(member, AwaitedChanged(OF_B))
    assert (still.phase, frozenset(still.owned), actions) == (Phase.REVOKING, BOTH, []), "its commit is pending"
    phase, again = AGAIN[protocol]
    for after, actions in (run(still, AwaitedChanged(frozenset())), run(still, Tick(), at=REVOCATION_TIMEOUT)):
        assert (after.phase, frozenset(after.owned), actions) == (phase, OF_A, [Revoked(OF_B), again])


@pytest.mark.parametrize("action", [ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID])
@pytest.mark.parametrize("state", ["idle", "in a batch", "revoking"])
def test_a_lost_generation_loses_everything_without_waiting(protocol: str, action: ErrorAction, state: str) -> None:
    before = revoking(protocol, OF_B)[0] if state == "revoking" else STABLE[protocol](A, B)
    before = run(before, AwaitedChanged(OF_A))[0] if state == "in a batch" else before
    after, actions = run(before, RequestFailed(action, "why"))
    assert actions == [Lost(BOTH, "why"), AGAIN[protocol][1]]
    kept_id = "" if protocol == "classic" and action is ErrorAction.RESET_MEMBER_ID else "m"
    assert (after.phase, after.member_id, after.generation, dict(after.owned)) == (Phase.JOINING, kept_id, -1, {})
    assert after.awaited == before.awaited
    assert run(after, AwaitedChanged(frozenset()))[1] == []


def test_a_member_whose_session_timed_out_owns_nothing_and_rejoins_with_its_id(protocol: str) -> None:
    member, _ = run(STABLE[protocol](A, B, session_ends=SESSION), AwaitedChanged(OF_A))
    assert run(member, Tick(), at=SESSION - 0.1) == (member, [])
    after, actions = run(member, Tick(), at=SESSION)
    assert actions == [Lost(BOTH, SESSION_TIMED_OUT), AGAIN[protocol][1]]
    assert (after.phase, after.member_id, after.generation, dict(after.owned)) == (Phase.JOINING, "m", -1, {})
    assert after.awaited == OF_A, "the batch is still running, and a later revocation waits for it"
    assert protocol == "classic" or after.answered is None, "the join reports everything"
    without = STABLE[protocol](session_ends=SESSION)
    assert run(without, Tick(), at=SESSION) == (without, []), "it has nothing to lose"


@pytest.mark.parametrize(
    ("error_code", "advice"),
    [
        (30, "READ on the group"),
        (112, "'kafka.group.remote.assignor'"),
        (82, "instance.id"),
        (35, "'kafka.group.protocol' to classic"),
        (128, "128 (INVALID_REGULAR_EXPRESSION)"),
    ],
)
def test_a_fatal_failure_loses_all_and_only_a_fenced_member_stays(protocol: str, error_code: int, advice: str) -> None:
    error = fatal("Heartbeat", "g", error_code)
    assert advice in str(error)
    failed, actions = run(STABLE[protocol](A), RequestFailed(error_action(error_code), "why", error=error))
    assert (failed.phase, failed.error, dict(failed.owned)) == (Phase.FAILED, error, {})
    leave = [] if error_code == 82 else [Leave()]
    assert actions == [Lost(OF_A, "why"), *leave], "another member has the place of a fenced one"
    assert run(failed, Tick(), Close()) == (failed, [])


def test_close_does_not_wait_for_the_in_flight_batch(protocol: str) -> None:
    left, actions = run(STABLE[protocol](A), AwaitedChanged(OF_A), Close())
    assert (left.phase, actions) == (Phase.LEFT, [Leave()]), "no rebalance has revoked its partitions"
    assert run(left, REBALANCE) == (left, [])


# The classic protocol


def test_a_sync_follows_a_join_and_the_assignment_has_that_generation() -> None:
    joined, actions = run(ClassicMembership(), Joined("m", 7, -1))
    assert (joined.phase, joined.syncing, actions) == (Phase.JOINING, True, [Sync()])
    owning, actions = run(joined, Synced(BOTH))
    assert (dict(owning.owned), actions) == ({A: 7, B: 7}, [Assigned(BOTH)])


def test_a_rebalance_during_a_revocation_changes_nothing() -> None:
    member, _ = revoking("classic", BOTH)
    assert run(member, REBALANCE) == (member, [])


def test_an_eager_rejoin_waits_for_the_batch_before_the_join() -> None:
    assert run(classic(A, B, cooperative=False), REBALANCE)[1] == [Revoked(BOTH), Join()]
    waiting, actions = run(classic(A, B, cooperative=False), AwaitedChanged(OF_A), REBALANCE)
    assert (waiting.phase, actions, dict(waiting.readable)) == (Phase.REVOKING, [], {})
    after, actions = run(waiting, AwaitedChanged(frozenset()))
    assert (dict(after.owned), actions) == ({}, [Revoked(BOTH), Join()])


@pytest.mark.parametrize("action", [ErrorAction.RETRY, ErrorAction.REDISCOVER])
def test_a_sync_without_a_response_leads_to_a_join_with_the_owned_partitions(action: ErrorAction) -> None:
    """So does the first join, while the coordinator loads or moves."""
    syncing, _ = run(classic(A), REBALANCE, Joined("m", 8, 7))
    for before, owned in ((syncing, OF_A), (ClassicMembership(), frozenset())):
        after, actions = run(before, RequestFailed(action, "why"))
        assert (after.phase, frozenset(after.owned)) == (Phase.JOINING, owned)
        assert actions == [AwaitBackoff(rediscover=action is ErrorAction.REDISCOVER), Join()]


@pytest.mark.parametrize("in_flight", [frozenset(), BOTH], ids=["no batch", "a batch"])
def test_a_static_member_that_missed_a_generation_has_lost_its_partitions(in_flight: Partitions) -> None:
    """The group keeps it without a join, and others may own what it had. A join follows, which claims nothing."""
    static = replace(classic(A, B), static=True)
    member, _ = run(static, AwaitedChanged(in_flight), REBALANCE)
    after, actions = run(member, Joined("m", 9, 7))
    assert actions == [Lost(BOTH, MISSED_GENERATION), Join()]
    assert (after.generation, dict(after.owned), after.member_id) == (NO_GENERATION, {}, "m")
    again, actions = run(after, Joined("m", 11, NO_GENERATION), Synced(OF_A))
    assert (dict(again.owned), actions) == ({A: 11}, [Assigned(OF_A)])


@pytest.mark.parametrize(("static", "generation"), [(True, 7), (True, 8), (False, 9)])
def test_a_member_that_missed_no_generation_keeps_its_partitions(static: bool, generation: int) -> None:
    """A broker may return the present generation to a repeated join. It removes a dynamic member that joins late."""
    member, _ = run(replace(classic(A, B), static=static), REBALANCE, Joined("m", generation, 7))
    assert (member.syncing, frozenset(member.owned)) == (True, BOTH)


def test_a_changed_subscription_starts_a_rejoin_only_when_stable() -> None:
    assert run(classic(A), SubscriptionChanged("8 to 10"))[1] == [Join()]
    rejoining, _ = run(classic(A), REBALANCE)
    assert run(rejoining, SubscriptionChanged("8 to 10")) == (rejoining, [])


def test_a_successful_heartbeat_of_the_present_generation_extends_the_session() -> None:
    before = classic(A, session_ends=SESSION)
    assert run(before, HeartbeatSucceeded(6, SESSION + 10)) == (before, [])
    member, _ = run(before, HeartbeatSucceeded(7, SESSION + 10))
    assert run(member, Tick(), at=SESSION + 9) == (member, [])
    assert run(member, Tick(), at=SESSION + 10)[1] == [Lost(OF_A, SESSION_TIMED_OUT), Join()]


@pytest.mark.parametrize("pending", ["join", "sync", "revocation"])
def test_a_session_times_out_while_a_join_a_sync_or_a_revocation_is_pending(pending: str) -> None:
    if pending == "revocation":
        waiting, _ = revoking("classic", OF_B, session_ends=SESSION)
    else:
        sync = [Joined("m", 8, 7)] if pending == "sync" else []
        waiting, _ = run(classic(A, B, session_ends=SESSION), REBALANCE, *sync)
    after, actions = run(waiting, Tick(), at=SESSION)
    assert actions == [Lost(BOTH, SESSION_TIMED_OUT), Join()]
    assert run(after, Synced(OF_A, SESSION * 2)) == (after, []), "the join that follows gives new partitions"
    assert run(after, Joined("m", 8, 7)) == (after, []), "it claims what is lost, so nobody else would get that"


def test_a_revocation_waits_for_what_is_awaited_when_it_begins_although_nobody_has_said_so() -> None:
    """A start that was found meanwhile is pending, and its commit waits for that of the other thread."""
    offsets, options = SimpleNamespace(awaited=frozenset), {"kafka.bootstrap.servers": "x:1", "subscribe": "t"}
    settings = parse_options(options | {"kafka.group.id": "g"}).with_client_id("test").group
    member = Member(Cluster(settings.wire), settings, offsets)
    events: list[Event] = [Joined("m", 7, -1), Synced(BOTH), REBALANCE, Joined("m", 8, 7), Synced(OF_A)]
    for event in events:
        if event is REBALANCE:
            offsets.awaited = lambda: OF_B
        member.post(event)
    assert (member._state.phase, member._state.awaited) == (Phase.REVOKING, OF_B)
    member.close()


def test_a_member_that_leaves_without_its_thread_leaves_in_its_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "kafka.group.id": "g"}
    settings = parse_options(options).with_client_id("test").group
    own = Cluster(settings.wire)
    member = Member(own, settings, SimpleNamespace(awaited=frozenset))
    used: list[Cluster] = []
    monkeypatch.setattr(member._protocol, "leave", lambda me, cluster: used.append(cluster))
    member._leave_without_thread()
    member.close()
    assert used[0] is not own
    assert used[0].identity is own.identity


def test_a_member_joins_with_the_id_from_the_coordinator() -> None:
    after, actions = run(ClassicMembership(), RequestFailed(ErrorAction.MEMBER_ID_REQUIRED, "why", member_id="m-9"))
    assert (after.member_id, actions) == ("m-9", [Join()])


def test_a_heartbeat_without_a_response_keeps_the_membership_and_rediscovers_the_coordinator() -> None:
    before = classic(A)
    assert run(before, RequestFailed(ErrorAction.REDISCOVER, "why")) == (before, [AwaitBackoff(rediscover=True)])


def test_a_cooperative_rejoin_keeps_owned_partitions_and_their_generations() -> None:
    rejoining, actions = run(classic(A, B), REBALANCE)
    assert (rejoining.phase, actions, frozenset(rejoining.owned)) == (Phase.JOINING, [Join()], BOTH)
    again, actions = run(rejoining, Joined("m", 8, 7), Synced(frozenset({A, B, C})))
    assert (dict(again.owned), actions) == ({A: 7, B: 7, C: 8}, [Assigned(frozenset({C}))])


# The protocol of KIP-848


def test_the_answer_to_a_join_assigns_partitions_and_the_next_heartbeat_reports_them_at_once() -> None:
    assert (NEW.phase, NEW.answered, NEW.report) == (Phase.JOINING, None, Report(-1, frozenset({"t"})))
    member, actions = run(NEW, answer(NEW, 7, A, B))
    assert actions == [Assigned(BOTH), Heartbeat()]
    assert (member.phase, member.generation, dict(member.owned)) == (Phase.STABLE, 7, {A: 7, B: 7})
    assert (member.report.owned, member.answered) == (ids(A, B), NEW.report)


@pytest.mark.parametrize("assigned", [A, None])
def test_heartbeats_go_on_during_a_revocation_and_do_not_extend_its_timeout(assigned: TopicPartition | None) -> None:
    member = revoking("consumer", OF_B)[0]
    again, actions = run(member, answer(member, 7, assigned), at=REVOCATION_TIMEOUT / 2)
    assert (again.phase, again.revoke_by, actions) == (Phase.REVOKING, REVOCATION_TIMEOUT, [])


def test_an_assignment_during_a_revocation_revokes_more_or_keeps_the_partitions() -> None:
    before = revoking("consumer", OF_B)[0]
    member, actions = run(before, answer(before, 7))
    assert (member.phase, frozenset(member.revoking), actions) == (Phase.REVOKING, BOTH, [])
    assert run(member, AwaitedChanged(frozenset()))[1] == [Revoked(BOTH), Heartbeat()]
    member, actions = run(before, answer(before, 8, A, B))
    assert (member.phase, frozenset(member.readable), actions) == (Phase.STABLE, BOTH, [])


def test_a_heartbeat_reports_what_changed_while_the_one_before_was_pending() -> None:
    member = revoking("consumer", OF_B)[0]
    pending = answer(member, 7, A)
    member, actions = run(member, AwaitedChanged(frozenset()))
    assert actions == [Revoked(OF_B), Heartbeat()]
    member, actions = run(member, pending)
    assert (member.report.owned, actions) == (ids(A), [])
    assert member.answered is not None
    assert member.answered.owned == ids(A, B)


def test_a_fenced_member_reports_everything_and_knows_no_former_assignment() -> None:
    before = consumer(A, B)
    member, _ = run(before, FENCED)
    assert member.answered is None
    assert run(member, answer(before, 8, A, B)) == (member, []), "an answer to a heartbeat from before"
    again, actions = run(member, answer(member, 9, None))
    assert (dict(again.owned), actions) == ({}, []), "the former assignment"
    again, actions = run(member, answer(member, 9, B))
    assert (dict(again.owned), actions) == ({B: 9}, [Assigned(OF_B), Heartbeat()])


@pytest.mark.parametrize("error_code", [14, 15, 16, 111, 113])
def test_a_heartbeat_that_failed_is_sent_again_after_a_backoff_and_reports_everything(error_code: int) -> None:
    """111: a killed process still has the instance id."""
    for before in (consumer(A), NEW):
        member, actions = run(before, RequestFailed(error_action(error_code), "why"))
        assert actions == [AwaitBackoff(rediscover=error_code in (15, 16)), Heartbeat()]
        assert (member.phase, dict(member.owned), member.answered) == (before.phase, dict(before.owned), None)


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
    member, _ = run(consumer(B), answer(consumer(B), 8, B, ids(A, topic_id=UNKNOWN)))
    assert member.answered is not None
    member, _ = run(member, answer(member, 8, B))
    assert member.answered is None  # the next heartbeat reports everything
    member, _ = run(member, answer(member, 8, B))
    assert member.answered is not None


def test_a_recreated_topic_is_assigned_after_the_former_one_is_revoked() -> None:
    before, _ = run(consumer(A, B), AwaitedChanged(OF_A))
    before, actions = run(before, answer(before, 8, ids(A, topic_id=RECREATED)), TopicsFound({RECREATED: "t"}))
    assert (before.phase, frozenset(before.owned), actions) == (Phase.REVOKING, BOTH, [])
    after, actions = run(before, AwaitedChanged(frozenset()))
    assert (actions, after.report.owned) == ([Revoked(BOTH), Heartbeat()], frozenset())
    after, actions = run(after, answer(after, 8, None))
    assert actions == [Assigned(OF_A), Heartbeat()]
    assert after.report.owned == ids(A, topic_id=RECREATED)


def test_a_session_timeout_that_is_found_applies_to_the_present_session_only() -> None:
    member = consumer(A, session_ends=SESSION)
    assert run(member, SessionTimeoutFound(6, 3.0)) == (member, [])
    member, actions = run(member, SessionTimeoutFound(7, 3.0))
    assert (member.session_ends, actions) == (3.0, [])


def test_a_changed_subscription_is_reported_at_once() -> None:
    member, actions = run(consumer(A), Subscribed(frozenset({"t", "u"})))
    assert (actions, set(member.report.topics)) == ([Heartbeat()], {"t", "u"})
    assert run(member, Subscribed(frozenset({"t", "u"}))) == (member, [])


def test_a_name_is_kept_until_a_lookup_without_it_if_the_topic_is_not_assigned_or_owned() -> None:
    member, _ = run(revoking("consumer", OF_B)[0], TopicsFound({UNKNOWN: "u"}))
    assert member.topic_names == NAMES | {UNKNOWN: "u"}
    member, _ = run(member, answer(member, 7), AwaitedChanged(frozenset()))
    member, _ = run(member, answer(member, 7, None))
    assert member.topic_names == NAMES | {UNKNOWN: "u"}, "the coordinator may assign a topic of the subscription later"
    assert dict(run(member, TopicsFound({}))[0].topic_names) == {}


def test_an_assignment_with_an_unknown_topic_still_revokes_and_adds_the_others() -> None:
    before = consumer(A)
    member, actions = run(before, answer(before, 8, B, ids(A, topic_id=UNKNOWN)))
    assert (dict(member.owned), actions) == ({B: 8}, [Assigned(OF_B), Revoked(OF_A), Heartbeat(), FindTopics()])
