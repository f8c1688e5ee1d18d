"""The error of a rejected first join says what the group has, and what to set."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupError
from spark_group_source.group import rejected_join
from spark_group_source.group.description import GroupDescription, MemberDescription
from spark_group_source.group.error_actions import ErrorAction, fatal
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.rejected_join import explain
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.wire.wire_options import WireOptions

MEMBERS = (MemberDescription("m", "aiokafka-1", "10.0.0.1"), MemberDescription("n", "aiokafka-2", "10.0.0.2"))
CLIENTS = "2 member(s): aiokafka-1 at 10.0.0.1, aiokafka-2 at 10.0.0.2."
CONVERTS = "or set 'kafka.group.protocol' to consumer, which can share a group of any assignor"
SETTINGS = GroupSettings("g", Subscription(("t",)), WireOptions(()))
NO_ANSWER = RequestFailed(ErrorAction.REDISCOVER, "no answer")
NOT_ALLOWED = RequestFailed(ErrorAction.FATAL, "denied", error=GroupError("denied", error_code=30))


def explained(
    monkeypatch: pytest.MonkeyPatch, error_code: int, *described: GroupDescription | RequestFailed, new: bool = True
) -> GroupError:
    """The error of a join, where lookups of the group have these results in turn, and the last one from then on."""
    results = list(described)
    monkeypatch.setattr(rejected_join, "describe", lambda *_: results.pop(0) if len(results) > 1 else results[0])
    monkeypatch.setattr(rejected_join, "LOOKUP_BACKOFF", 0.001)
    client: Any = Mock()
    client.supports.return_value = new
    error = fatal("JoinGroup", "g", error_code, broker_message="Because.")
    failure = RequestFailed(ErrorAction.FATAL, str(error), error=error)
    found = explain(failure, client, SETTINGS, Deadline.after(0.05)).error
    assert isinstance(found, GroupError)
    assert found.error_code == error_code
    assert found.happened.startswith(error.happened), "with what the broker says"
    return found


@pytest.mark.parametrize(
    ("error_code", "group", "happened", "action"),
    [
        (
            23,
            GroupDescription("Stable", "roundrobin", MEMBERS),
            f"the assignor 'roundrobin' and has {CLIENTS}",
            "to roundrobin, or",
        ),
        (23, GroupDescription("Stable", "RoundRobinAssigner", MEMBERS), "'RoundRobinAssigner'", CONVERTS),
        (23, GroupDescription("Stable", "RoundRobinAssigner", MEMBERS), CLIENTS, "a class of your own"),
        (
            23,
            GroupDescription("Stable", "uniform", MEMBERS, "consumer"),
            f"KIP-848 and {CLIENTS}",
            "protocol' to consumer",
        ),
        (23, GroupDescription("Stable", "x", MEMBERS, protocol_type="connect"), "type 'connect' and 2", "no consumers"),
        (23, GroupDescription("Dead", "", ()), "a share group or of Kafka Streams", "roundrobin for aiokafka"),
        (23, GroupDescription("Empty", "", ()), "Because.", "roundrobin for aiokafka"),
        (69, GroupDescription("Stable", "range", MEMBERS), CLIENTS, "'kafka.group.protocol' to classic. Set"),
        (69, GroupDescription("Stable", "x", MEMBERS, protocol_type="connect"), "type 'connect'", "no consumers"),
        (81, GroupDescription("Stable", "range", MEMBERS), CLIENTS, "Raise the brokers' group.max.size"),
        (26, NO_ANSWER, "The session timeout of this query is 45000 ms.", "group.max.session.timeout.ms"),
        (24, GroupDescription("Stable", "range", MEMBERS), "Because.", "Set 'kafka.group.id'"),
    ],
)
def test_the_error_says_what_the_group_has_and_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
    error_code: int,
    group: GroupDescription | RequestFailed,
    happened: str,
    action: str,
) -> None:
    error = explained(monkeypatch, error_code, group)
    assert happened in error.happened
    assert action in error.action


def test_the_assignor_is_read_when_the_rebalance_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    rebalancing = GroupDescription("PreparingRebalance", "", MEMBERS)
    error = explained(monkeypatch, 23, NO_ANSWER, rebalancing, GroupDescription("Stable", "range", MEMBERS))
    assert "Set 'kafka.partition.assignment.strategy' to range" in error.action
    endless = explained(monkeypatch, 23, rebalancing)
    assert f"The group is rebalancing and has {CLIENTS}" in endless.happened
    assert "roundrobin for aiokafka" in endless.action


@pytest.mark.parametrize("answer", [NO_ANSWER, NOT_ALLOWED, GroupDescription("Unknown", "", (), "consumer", True)])
def test_without_a_description_the_error_keeps_its_advice(
    monkeypatch: pytest.MonkeyPatch, answer: GroupDescription | RequestFailed
) -> None:
    error = explained(monkeypatch, 23, answer)
    assert error.happened.endswith("Because.")
    assert "Set 'kafka.partition.assignment.strategy' to an assignor that all members have" in error.action


def test_an_answer_that_cannot_be_read_does_not_replace_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_join, "describe", Mock(side_effect=IndexError("no group")))
    error = fatal("JoinGroup", "g", 23)
    failure = RequestFailed(ErrorAction.FATAL, str(error), error=error)
    assert explain(failure, Mock(), SETTINGS, Deadline.after(0.05)) is failure


def test_an_older_broker_is_not_asked_to_convert_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    error = explained(monkeypatch, 23, GroupDescription("Stable", "RoundRobinAssigner", MEMBERS), new=False)
    assert "to consumer" not in error.action
