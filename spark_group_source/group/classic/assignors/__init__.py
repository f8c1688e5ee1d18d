"""Assignors by the names that ``kafka.partition.assignment.strategy`` takes.

Those of the project assign as Kafka's own client does, and tell the leader about themselves in its form. A user's own
are subclasses of kafka-python's AbstractPartitionAssignor.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol

from spark_group_source.group.classic.assignors.range import Range
from spark_group_source.group.classic.assignors.roundrobin import RoundRobin
from spark_group_source.group.classic.assignors.sticky import CooperativeSticky, Sticky
from spark_group_source.user_code import load

ASSIGNORS: dict[str, type[AbstractPartitionAssignor]] = {
    each.name: each for each in (Range, RoundRobin, Sticky, CooperativeSticky)
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
