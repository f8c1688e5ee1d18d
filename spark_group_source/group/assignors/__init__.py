"""Assignors by the names that ``kafka.partition.assignment.strategy`` accepts.

``range`` and ``roundrobin`` assign exactly as in Kafka's Java client. The sticky assignors send the same user data as
that client. They keep the assignments of that client, and it keeps theirs. A user's own assignor is a subclass of
kafka-python's AbstractPartitionAssignor.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol

from spark_group_source.group.assignors.range import Range, RoundRobin
from spark_group_source.group.assignors.sticky import CooperativeSticky, Sticky
from spark_group_source.user_code import load

ASSIGNORS: dict[str, type[AbstractPartitionAssignor]] = {
    assignor.name: assignor for assignor in (Range, RoundRobin, Sticky, CooperativeSticky)
}
"""Assignors by the name that members advertise."""

_JAVA = {
    f"org.apache.kafka.clients.consumer.{name}assignor": name.replace("cooperative", "cooperative-")
    for name in ("range", "roundrobin", "sticky", "cooperativesticky")
}


def parse_assignors(text: str) -> tuple[str, ...]:
    """Parses a list of names and ``module:Class`` paths; creates each assignor once, to check it.

    Raises:
        ValueError: an assignor is unknown or cannot be created; the message continues "It must be".
    """
    names = _listed_names(text)
    if not _are_known(names):
        raise ValueError(f"one or more of {', '.join(ASSIGNORS)}, or module:Class, separated by commas")
    assignors = [create_assignor(name) for name in names]
    _check_names_differ(assignors)
    if not is_cooperative(assignors):
        _check_eager(assignors)
    return tuple(names)


def _listed_names(text: str) -> list[str]:
    """The names in a list, without duplicates."""
    names: dict[str, None] = {}
    for listed in text.split(","):
        name = _name_of(listed.strip())
        if name:
            names[name] = None
    return list(names)


def _name_of(listed: str) -> str:
    """The name that members advertise for a listed name, which may be in any case or that of a Java class. A
    ``module:Class`` stays as it is."""
    if ":" in listed:
        return listed
    name = listed.lower()
    return _JAVA.get(name, name)


def _are_known(names: Collection[str]) -> bool:
    """Whether there are names, and each is known or a ``module:Class``."""
    for name in names:
        is_path = ":" in name
        if not is_path and name not in ASSIGNORS:
            return False
    return bool(names)


def _check_names_differ(assignors: Collection[AbstractPartitionAssignor]) -> None:
    advertised = [assignor.name for assignor in assignors]
    if len(set(advertised)) < len(advertised):
        raise ValueError(f"assignors with different names, and these are {', '.join(advertised)}")


def _check_eager(assignors: Collection[AbstractPartitionAssignor]) -> None:
    not_eager = []
    for assignor in assignors:
        if RebalanceProtocol.EAGER not in assignor.supported_protocols():
            not_eager.append(assignor.name)
    if not_eager:
        raise ValueError(f"either all eager or all cooperative, and {', '.join(not_eager)} cannot be eager")


def create_assignor(name: str) -> AbstractPartitionAssignor:
    """Creates an assignor without an assignment to remember.

    Raises:
        ValueError: the class of a ``module:Class`` is no assignor.
    """
    if ":" not in name:
        return ASSIGNORS[name]()
    loaded = load(name, "Class")
    if not isinstance(loaded, type) or not issubclass(loaded, AbstractPartitionAssignor):
        raise ValueError(f"a subclass of kafka-python's AbstractPartitionAssignor, and {name} is not")
    try:
        assignor = loaded()
    except Exception as error:
        raise ValueError(f"a class whose constructor needs no arguments, and {name} raised {error!r}") from None
    if not isinstance(assignor.name, str) or not assignor.name:
        raise ValueError(f"a class with a name to advertise, and the name of {name} is {assignor.name!r}")
    return assignor


def is_cooperative(assignors: Collection[AbstractPartitionAssignor]) -> bool:
    """Whether members keep their partitions in a rebalance: if all assignors can, as in Kafka's client."""
    return all(RebalanceProtocol.COOPERATIVE in assignor.supported_protocols() for assignor in assignors)
