"""Watches a group for some time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.description import GroupDescription
from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.sample import Sample
from spark_group_source.offsets import TopicPartition

SETTLED = ("Stable", "Empty", "Dead")
"""States of a group that is not rebalancing."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What one look showed."""

    group: GroupDescription
    sample: Sample

    def owners(self) -> dict[TopicPartition, str]:
        """Member id by partition."""
        return {tp: each.member_id for each in self.group.members for tp in each.partitions}

    def lag(self) -> float:
        """Of all partitions; NaN if the lag of one is unknown."""
        return math.nan if self.sample.unknown() else sum(each.lag for each in self.sample.partitions())


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One that was seen: when it was first noticed, in seconds since 1970, and what came of it."""

    at: float
    what: str


@dataclass
class History:
    """All looks in order, and what those that failed said."""

    moments: list[Moment] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def rebalances(self) -> list[Rebalance]:
        """Those between the first look and the last: times at which the group was not settled, or shares changed."""
        found: list[Rebalance] = []
        settled, began = None, None
        for each in self.moments:
            if each.group.state not in SETTLED:
                began = began or each.sample.at
            else:
                if settled is not None and (began or _changed(settled, each)):
                    found.append(Rebalance(began or each.sample.at, _difference(settled, each)))
                settled, began = each, None
        if began is not None:
            found.append(Rebalance(began, "not over when the watch ended"))
        return found


def watch(
    look: GroupOffsetsProbe, seconds: float, interval: float, say: Callable[[str], None], clock: Clock = monotonic
) -> History:
    """Looks at once, and then every ``interval`` seconds until ``seconds`` are over. Ctrl-C ends it earlier.

    Raises:
        GroupSourceError: the first look failed, or there is no such group. Later failures are noted.
    """
    began = clock()
    history = History([_first(look)])
    try:
        while (left := began + seconds - clock()) > 0:
            time.sleep(min(interval, left))
            try:
                history.moments.append(Moment(look.describe(), look.sample()))
            except GroupSourceError as error:
                history.failures.append(str(error))
                say(str(error))
    except KeyboardInterrupt:
        say("stopped; the report is of what was seen until now")
    return history


def _first(look: GroupOffsetsProbe) -> Moment:
    seen = Moment(look.describe(), look.sample())
    if not seen.group.members and not seen.sample.positions:
        raise GroupSourceError(
            f"The group '{look.group}' has no members and no committed offsets: there is no such group.",
            "Check its name; kafka-consumer-groups --list shows all there are.",
        )
    return seen


def _changed(before: Moment, after: Moment) -> bool:
    return before.owners() != after.owners() or _ids(before) != _ids(after)


def _ids(moment: Moment) -> set[str]:
    return {each.member_id for each in moment.group.members}


def _difference(before: Moment, after: Moment) -> str:
    came, left = len(_ids(after) - _ids(before)), len(_ids(before) - _ids(after))
    old, new = before.owners(), after.owners()
    moved = sum(old.get(tp) != new.get(tp) for tp in old.keys() | new.keys())
    parts = [f"{came} member(s) came"] * bool(came) + [f"{left} left"] * bool(left)
    return ", ".join([*parts, f"{moved} partition(s) have another owner"])
