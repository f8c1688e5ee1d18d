"""kafka.partition.assignment.strategy: accepted values, and errors for others."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from spark_group_source.errors import OptionError
from spark_group_source.options.parsing import parse_options

STRATEGY = "kafka.partition.assignment.strategy"
GOOD = {"kafka.bootstrap.servers": "b1:9092", "kafka.group.id": "g", "subscribe": "t"}
HERE = "tests.unit.group.test_assignors"


class Fails(RoundRobinPartitionAssignor):  # type: ignore[misc]
    """Raises in each method."""

    name = "fails"

    def _raise(self, *_: Any) -> Any:
        raise KeyError("oops")

    metadata = assign = on_assignment = _raise


class Nameless(RoundRobinPartitionAssignor):  # type: ignore[misc]
    name = ""


class NeedsMore(RoundRobinPartitionAssignor):  # type: ignore[misc]
    def __init__(self, more: object) -> None:
        raise AssertionError("never created")


class OnlyCooperative(RoundRobinPartitionAssignor):  # type: ignore[misc]
    name = "only-cooperative"

    def supported_protocols(self) -> list[RebalanceProtocol]:
        return [RebalanceProtocol.COOPERATIVE]


class NoAssignor:
    name = "none"


def parsed(text: str) -> tuple[str, ...]:
    return parse_options(GOOD | {STRATEGY: text}).group.assignors


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("sticky", ("sticky",)),
        (" Range , ROUNDROBIN,, range", ("range", "roundrobin")),
        ("range,cooperative-sticky", ("range", "cooperative-sticky")),
        ("org.apache.kafka.clients.consumer.RangeAssignor,roundrobin", ("range", "roundrobin")),
        ("org.apache.kafka.clients.consumer.CooperativeStickyAssignor", ("cooperative-sticky",)),
        (f"{HERE}:OnlyCooperative, cooperative-sticky", (f"{HERE}:OnlyCooperative", "cooperative-sticky")),
        (f"{HERE}:Fails", (f"{HERE}:Fails",)),
    ],
)
def test_an_assignor_is_a_name_a_java_class_or_a_users_own_class(text: str, names: tuple[str, ...]) -> None:
    assert parsed(text) == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (",", "one or more of range, roundrobin, sticky, cooperative-sticky, or module:Class"),
        ("org.example.OurAssignor", "module:Class"),
        ("no_such_module:Assignor", "No module named"),
        (f"{HERE}:NoAssignor", "subclass of kafka-python's AbstractPartitionAssignor"),
        (f"{HERE}:NeedsMore", "needs no arguments"),
        (f"{HERE}:Nameless", "a name to advertise"),
        ("roundrobin,kafka.coordinator.assignors.roundrobin:RoundRobinPartitionAssignor", "different names"),
        (f"range,{HERE}:OnlyCooperative", "only-cooperative cannot be eager"),
    ],
)
def test_an_unusable_assignor_fails_at_load_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(OptionError) as raised:
        parsed(text)
    assert f"'{STRATEGY}' is {text!r}" in str(raised.value)
    assert says in str(raised.value)
