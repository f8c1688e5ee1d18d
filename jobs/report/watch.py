"""Samples a group for some time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.description import UNKNOWN, GroupDescription
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.model import Sample
from spark_group_source.offsets import TopicPartition

SETTLED = ("Stable", "Empty", "Dead", UNKNOWN)
"""States of a group that is not rebalancing, or hides whether it is."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The group at one moment."""

    group: GroupDescription
    sample: Sample

    def owners(self) -> dict[TopicPartition, str]:
        """Member id by partition."""
        return {tp: each.member_id for each in self.group.members for tp in each.partitions}

    def lag(self) -> float:
        """The lag of all partitions; NaN if the lag of one is unknown."""
        return math.nan if self.sample.unknown() else sum(each.lag for each in self.sample.partitions())


@dataclass(frozen=True, slots=True)
class Rebalance:
    """A rebalance: the time of its first sample in seconds since 1970, and its result."""

    at: float
    what: str


@dataclass
class History:
    """All samples in order, and the messages of the failed ones."""

    snapshots: list[Snapshot] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def rebalances(self) -> list[Rebalance]:
        """The rebalances between the samples: the group was not stable, or the assignment changed."""
        found: list[Rebalance] = []
        settled, began = None, None
        for each in self.snapshots:
            if each.group.state not in SETTLED:
                began = began or each.sample.at
            else:
                if settled is not None and (began or _changed(settled, each)):
                    found.append(Rebalance(began or each.sample.at, _difference(settled, each)))
                settled, began = each, None
        if began is not None:
            found.append(Rebalance(began, "not complete at the end of the report"))
        return found


def watch(
    client: GroupLagClient, seconds: float, interval: float, say: Callable[[str], None], clock: Clock = monotonic
) -> History:
    """Samples the group now, and then every ``interval`` seconds for ``seconds``. Ctrl-C ends it earlier.

    Raises:
        GroupSourceError: the first sample failed, or the group does not exist. The history has later failures.
    """
    began = clock()
    history = History([_first(client)])
    try:
        while (left := began + seconds - clock()) > 0:
            time.sleep(min(interval, left))
            try:
                history.snapshots.append(Snapshot(client.describe(), client.sample()))
            except GroupSourceError as error:
                history.failures.append(str(error))
                say(str(error))
    except KeyboardInterrupt:
        say("stopped; the report has the samples until now")
    return history


def _first(client: GroupLagClient) -> Snapshot:
    seen = Snapshot(client.describe(), client.sample())
    if not (seen.group.members or seen.group.members_hidden or seen.sample.positions):
        raise GroupSourceError(
            f"The group '{client.group}' does not exist: it has no members and no committed offsets.",
            "Check its name; kafka-consumer-groups --list shows all groups.",
        )
    return seen


def _changed(before: Snapshot, after: Snapshot) -> bool:
    return before.owners() != after.owners() or _ids(before) != _ids(after)


def _ids(snapshot: Snapshot) -> set[str]:
    return {each.member_id for each in snapshot.group.members}


def _difference(before: Snapshot, after: Snapshot) -> str:
    came, left = len(_ids(after) - _ids(before)), len(_ids(before) - _ids(after))
    old, new = before.owners(), after.owners()
    moved = sum(old.get(tp) != new.get(tp) for tp in old.keys() | new.keys())
    parts = [f"{came} member(s) joined"] * bool(came) + [f"{left} left"] * bool(left)
    return ", ".join([*parts, f"{moved} partition(s) changed owner"])
