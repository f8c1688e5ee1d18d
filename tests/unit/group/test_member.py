"""The life cycle of a member, whose protocol returns scripted outcomes: no broker, no thread, and a clock by hand."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.classic.states import HeartbeatSucceeded, Join, Joined, Sync, Synced
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Action, Heartbeat, Phase, RequestFailed, Tick
from spark_group_source.group.protocol import Outcome
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.wire_options import WireOptions
from tests.unit.hand_clock import Hand

A, B = (TopicPartition("t", number) for number in range(2))
BOTH = frozenset({A, B})
WIRE = WireOptions((("x", 1),), retry_backoff=0.0, retry_backoff_max=0.0)
SETTINGS = GroupSettings("g", Subscription(("t",)), WIRE)
JOINS = (Join(), Outcome((Joined("m", 1, -1),))), (Sync(), Outcome((Synced(BOTH),)))
ACCEPTED = Heartbeat(), Outcome((HeartbeatSucceeded(1, 100.0),))


class Life:
    """A member whose thread is the test, and the listener of its query."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.offsets = SimpleNamespace(awaited=frozenset, reserve=lambda _: None)
        self.member = Member(Cluster(WIRE), SETTINGS, self.offsets, hand)
        self.member._thread = Mock(is_alive=lambda: False)
        self.listener = Mock(maintenance_due=lambda _: float("inf"))
        self.member.start({}, self.listener)
        self.sent: list[Action] = []

    def live(self, *script: tuple[Action, Outcome]) -> None:
        """Runs the life cycle: the coordinator answers these requests in this order, and then the query ends."""
        outcomes = iter(script)

        def send(request: Action, me: object, apply: object) -> Outcome:
            self.sent.append(request)
            expected, outcome = next(outcomes)
            assert request == expected
            return outcome

        def wait(seconds: float | None = None) -> bool:
            self.hand.now += seconds or 0.0
            if len(self.sent) == len(script):
                self.member.close()
            return False

        self.member._protocol.send = send  # type: ignore[method-assign]
        self.member._protocol.leave = Mock()  # type: ignore[method-assign]
        self.member._protocol.note_answer = Mock(side_effect=lambda answer, *_: isinstance(answer, Synced))  # type: ignore[method-assign]
        self.member._changed.wait = wait  # type: ignore[method-assign, assignment]
        self.member._run()

    @property
    def notified(self) -> list[Any]:
        """The partitions of which the query was notified, in order, with the method."""
        calls = [call for call in self.listener.method_calls if call[0].startswith("partitions_")]
        return [(name.removeprefix("partitions_"), args[0]) for name, args, _ in calls]


@pytest.fixture
def life(hand: Hand) -> Iterator[Life]:
    life = Life(hand)
    yield life
    life.member.close()


@pytest.mark.parametrize(
    ("action", "then", "notified"),
    [
        (ErrorAction.RETRY, [Heartbeat()], [("assigned", BOTH)]),
        (ErrorAction.REDISCOVER, [Heartbeat()], [("assigned", BOTH)]),
        (ErrorAction.REJOIN, [Join()], [("assigned", BOTH)]),
        (ErrorAction.RESET_GENERATION, [Join()], [("assigned", BOTH), ("lost", BOTH)]),
        (ErrorAction.RESET_MEMBER_ID, [Join()], [("assigned", BOTH), ("lost", BOTH)]),
        (ErrorAction.FATAL, [], [("assigned", BOTH), ("lost", BOTH)]),
    ],
)
def test_the_action_of_an_error_code_says_what_follows_a_rejected_heartbeat(
    life: Life, action: ErrorAction, then: list[Action], notified: list[Any]
) -> None:
    rejected = Heartbeat(), Outcome(failure=RequestFailed(action, "why", error=None))
    life.live(*JOINS, ACCEPTED, rejected, *((request, Outcome()) for request in then))
    assert life.sent == [Join(), Sync(), Heartbeat(), Heartbeat(), *then]
    assert life.notified == notified


def test_heartbeats_are_apart_by_their_interval(life: Life) -> None:
    began = life.hand.now
    life.live(*JOINS, ACCEPTED, ACCEPTED, ACCEPTED)
    assert life.hand.now == pytest.approx(began + 4 * SETTINGS.heartbeat_interval), "the next one is due, as the end is"


def test_an_event_steps_the_state_machine_once_with_what_is_awaited_and_the_time(life: Life) -> None:
    step, events = life.member._protocol.state_machine, []

    def counted(state: Any, event: Any, *times: float) -> Any:
        events.append(type(event).__name__)
        return step(state, event, *times)

    life.member._protocol.state_machine = counted
    me = life.member.snapshot()
    assert events == ["Tick"]
    life.member.post(Tick())
    assert events == ["Tick"] * 2
    life.member.plan(frozenset(), me)
    assert events[2:] == ["Tick", "AwaitedChanged"]
    life.member.post(Joined("m", 1, -1))
    assert events[4:] == ["AwaitedChanged", "Tick", "Joined"]
    life.member.post(Synced(BOTH, 45.0))
    assert events[7:] == ["AwaitedChanged", "Synced", "Tick"], "a success extends the session first"
    assert life.member._state.phase is Phase.STABLE


def test_a_commit_that_is_rejected_loses_what_its_own_generation_assigned_and_no_later_one(life: Life) -> None:
    for event in (Joined("m", 1, -1), Synced(BOTH, 45.0)):
        life.member.post(event)
    former = life.member.snapshot()
    for event in (Joined("m", 2, 1), Synced(BOTH, 45.0)):
        life.member.post(event)
    rejected, deadline = RequestFailed(ErrorAction.RESET_GENERATION, "why"), Deadline.after(0.0, life.hand)
    assert life.member.commit_rejected(former, rejected, deadline) is None
    assert life.member.snapshot().owned.keys() == BOTH
    assert life.member.commit_rejected(life.member.snapshot(), rejected, deadline) is None
    assert life.member.snapshot().owned == {}
