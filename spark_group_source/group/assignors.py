"""Assignors by the names that ``kafka.partition.assignment.strategy`` takes.

They are kafka-python's. What two of them tell the leader about themselves is put into the form of Kafka's own client,
so that a leader of another client sees what this member had: kafka-python writes a version before the user data of
``sticky``, which nobody else reads, and none for ``cooperative-sticky``.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

from spark_group_source.user_code import load

_V0, _V1 = b"\0\0", b"\0\1"


class Sticky(StickyPartitionAssignor):  # type: ignore[misc]
    """Eager: everything is given up before each rebalance, and mostly given back."""

    def metadata(self, topics: Collection[str]) -> Any:
        """The subscription with the last share and its generation."""
        told = super().metadata(topics)
        if told.user_data:
            told.user_data = bytes(told.user_data.encode(version=1)).removeprefix(_V1)
        return told

    @classmethod
    def parse_member_metadata(cls, metadata: Any) -> Any:
        """What a member had, as any client writes it; nothing where it cannot be read."""
        metadata.user_data = _decoded(bytes(metadata.user_data or b""))
        return super().parse_member_metadata(metadata)


class CooperativeSticky(CooperativeStickyAssignor):  # type: ignore[misc]
    """Members keep their partitions across a rebalance, and only those that move are given up."""

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """As Kafka's own: eager too, for members that offer it beside an eager assignor."""
        return [RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER]

    def metadata(self, topics: Collection[str]) -> Any:
        """The subscription with its generation for leaders that read it here only (Kafka's client before 3.4)."""
        told = super().metadata(topics)
        told.user_data = self.generation.to_bytes(4, "big", signed=True)
        return told


ASSIGNORS: dict[str, type[AbstractPartitionAssignor]] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": Sticky,
    "cooperative-sticky": CooperativeSticky,
}
"""Assignors by the name that members advertise."""

_JAVA = {
    f"org.apache.kafka.clients.consumer.{name}assignor": name.replace("cooperative", "cooperative-")
    for name in ("range", "roundrobin", "sticky", "cooperativesticky")
}


def parse_assignors(text: str) -> tuple[str, ...]:
    """Names and ``module:Class`` paths out of a list, checked: each can be made, and they can be offered together.

    Raises:
        ValueError: one is not known or cannot be had; the message goes on from "It must be".
    """
    listed = [part.strip() for part in text.split(",") if part.strip()]
    names = tuple(dict.fromkeys(each if ":" in each else _JAVA.get(each.lower(), each.lower()) for each in listed))
    if not names or any(":" not in name and name not in ASSIGNORS for name in names):
        raise ValueError(f"one or more of {', '.join(ASSIGNORS)}, or module:Class, separated by commas")
    made = [make(name) for name in names]
    if len({each.name for each in made}) < len(made):
        raise ValueError(f"assignors with different names, and these are {', '.join(each.name for each in made)}")
    if not is_cooperative(made):
        only = [each.name for each in made if RebalanceProtocol.EAGER not in each.supported_protocols()]
        if only:
            raise ValueError(f"either all eager or all cooperative, and {', '.join(only)} cannot be eager")
    return names


def make(name: str) -> AbstractPartitionAssignor:
    """A new assignor, which remembers nothing.

    Raises:
        ValueError: the class of a ``module:Class`` is no assignor.
    """
    if ":" not in name:
        return ASSIGNORS[name]()
    found = load(name, "Class")
    if not (isinstance(found, type) and issubclass(found, AbstractPartitionAssignor)):
        raise ValueError(f"a subclass of kafka-python's AbstractPartitionAssignor, and {name} is not")
    try:
        made = found()
    except Exception as error:
        raise ValueError(f"a class that can be made without arguments, and {name} gives: {error!r}") from None
    if not (isinstance(made.name, str) and made.name):
        raise ValueError(f"a class with a name to advertise, and that of {name} is {made.name!r}")
    return made


def is_cooperative(assignors: Collection[AbstractPartitionAssignor]) -> bool:
    """Whether members keep their partitions across a rebalance: if all that are offered can, as in Kafka's client."""
    return all(RebalanceProtocol.COOPERATIVE in each.supported_protocols() for each in assignors)


def _decoded(user_data: bytes) -> StickyAssignorUserData | None:
    # kafka-python puts the version first; a list of as many topics as that would be in Kafka's form cannot be.
    for written in (user_data,) if user_data.startswith(_V1) else (_V1 + user_data, _V0 + user_data):
        with suppress(Exception):
            found = StickyAssignorUserData.decode(written)
            if found.previous_assignment is not None:
                return found
    return None
