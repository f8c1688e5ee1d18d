"""A consumer group seen from outside: its partitions as a table, and its lag and rebalances over time as a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from html import escape
from itertools import pairwise

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.description import UNKNOWN, GroupDescription, MemberDescription
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.model import LagReport, Rates, Sample
from spark_group_source.lag.rate_window import RateWindow
from spark_group_source.offsets import TopicPartition
from spark_group_source.spelling import nearest
from spark_group_source.text import names, printable

Table = Sequence[tuple[object, ...]]
"""The rows of a table. The first row has the titles of the columns."""

COLUMNS = (
    *("GROUP", "TOPIC", "PARTITION"),
    *("CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID"),
    "AGE-SECONDS",
)
"""The columns of ``kafka-consumer-groups --describe``, in the same order, so that scripts that pick columns work with
both. The last column is this package's own."""

UNSHOWN = "-"
"""Stands for an unknown value."""

STYLE = "body { font: 15px sans-serif; margin: 2em } td, th { padding: 2px 12px 2px 0; text-align: left }"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The group at one moment."""

    group: GroupDescription
    sample: Sample

    def owners(self) -> dict[TopicPartition, MemberDescription]:
        """The member that owns each partition."""
        owners = {}
        for member in self.group.members:
            for tp in member.partitions:
                owners[tp] = member
        return owners

    def partitions(self, group_id: str) -> Table:
        """A row for each partition that has a commit or an owner; ``-`` stands for an unknown value."""
        owners = self.owners()
        positions, ends = self.sample.positions, self.sample.ends
        lags = {each.tp: each.lag for each in self.sample.partitions()}
        ages = {tp: f"{age:.0f}" for tp, age in self.sample.ages.items()}
        rows: list[tuple[object, ...]] = [COLUMNS]
        for tp in sorted(positions.keys() | owners.keys()):
            figures = (positions.get(tp, UNSHOWN), ends.get(tp, UNSHOWN), lags.get(tp, UNSHOWN))
            member = (UNSHOWN, UNSHOWN, UNSHOWN)
            if tp in owners:
                owner = owners[tp]
                member = (owner.member_id, owner.host, owner.client_id)
            rows.append(
                (printable(group_id), printable(tp.topic), tp.partition, *figures, *member, ages.get(tp, UNSHOWN))
            )
        return rows

    def exists(self) -> bool:
        """Whether the coordinator knows the group: it has a member or a commit."""
        has_members = bool(self.group.members) or self.group.members_hidden
        return has_members or bool(self.sample.positions)


def snapshot(client: GroupLagClient) -> Snapshot:
    """Looks up the group.

    Raises:
        GroupSourceError: the group does not exist.
    """
    seen = Snapshot(client.describe(), client.sample())
    if not seen.exists():
        raise GroupSourceError(
            f"The group '{client.group}' does not exist: it has no members and no committed offsets.",
            _existing_groups(client) + "Its query has not started yet, or the group id is wrong.",
        )
    return seen


def _existing_groups(client: GroupLagClient) -> str:
    """A sentence about the groups that exist, for the error; empty if none is known."""
    groups = client.group_ids() - {client.group}
    if not groups:
        return ""
    meant = nearest(client.group, groups)
    if meant is not None:
        return f"Did you mean '{printable(meant)}'? "
    return f"This cluster has the groups {names(groups)}. "


def watch(
    client: GroupLagClient, seconds: float, interval: float, say: Callable[[str], None], clock: Clock = monotonic
) -> list[Snapshot]:
    """Looks up the group now, and every ``interval`` seconds, for ``seconds`` or until Ctrl-C. ``say`` receives the
    error of a later lookup that fails."""
    began, found = clock(), [snapshot(client)]
    with suppress(KeyboardInterrupt):
        while True:
            left = began + seconds - clock()
            if left <= 0:
                break
            time.sleep(min(interval, left))
            try:
                found.append(snapshot(client))
            except GroupSourceError as error:
                say(str(error))
    return found


def text(table: Table) -> str:
    """The table as text. Each column is as wide as its widest cell."""
    cells = [[str(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        columns = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(columns).rstrip())
    return "\n".join(lines)


_SETTLED = ("Stable", "Empty", "Dead", UNKNOWN)
"""The states of a group that does not rebalance, as far as is known."""


def rebalances(snapshots: Sequence[Snapshot]) -> Table:
    """A row for each change of members or owners, with the time of the first snapshot after the rebalance."""
    rows: list[tuple[object, ...]] = [("UTC", "joined", "left", "partitions with a new owner")]
    for before, after in pairwise(_settled(snapshots)):
        old, new = _member_ids(before), _member_ids(after)
        moved = _moved(before, after)
        if moved > 0 or old != new:
            rows.append((_utc(after.sample.at), len(new - old), len(old - new), moved))
    return rows


def _settled(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    return [each for each in snapshots if each.group.state in _SETTLED]


def _member_ids(seen: Snapshot) -> set[str]:
    return {each.member_id for each in seen.group.members}


def _moved(before: Snapshot, after: Snapshot) -> int:
    """The number of partitions whose owner has changed."""
    was, now = before.owners(), after.owners()
    moved = 0
    for tp in was.keys() | now.keys():
        if _id(was.get(tp)) != _id(now.get(tp)):
            moved += 1
    return moved


def _id(owner: MemberDescription | None) -> str | None:
    if owner is None:
        return None
    return owner.member_id


def page(group: str, snapshots: Sequence[Snapshot]) -> str:
    """The lag, members and rebalances of these snapshots as an HTML page, without scripts or links."""
    last = snapshots[-1]
    head = f"<meta charset='utf-8'><title>{escape(group)}</title><style>{STYLE}</style>"
    head += f"<h1>{escape(_lag_line(group, snapshots))}</h1><p>{escape(_state_line(last.group))}</p>"
    body = _section("Partitions", last.partitions(group))
    body += _section("Members", _members(last.group))
    body += _section("Rebalances", rebalances(snapshots))
    return f"<!doctype html><html lang='en'>{head}{_chart(snapshots)}{body}</html>\n"


def _lag_line(group: str, snapshots: Sequence[Snapshot]) -> str:
    window, rates = RateWindow(), Rates()
    for each in snapshots:
        rates = window.add(each.sample)
    sample = snapshots[-1].sample
    return str(LagReport(group, "", sample.at, sample.partitions(), rates, unknown=sample.unknown()))


def _state_line(group: GroupDescription) -> str:
    assignor = group.assignor or UNSHOWN
    line = f"{group.state}, protocol {group.protocol}, assignor {assignor}, {len(group.members)} member(s)"
    if group.members_hidden:
        line += " shown: grant this principal DESCRIBE on all topics that the group reads"
    return line


def _members(group: GroupDescription) -> Table:
    rows: list[tuple[object, ...]] = [("client", "instance", "protocol", "topics")]
    for member in group.members:
        instance = member.instance_id or UNSHOWN
        rows.append((member.client_id, instance, member.protocol, f"{names(member.topics)} {member.pattern}"))
    return rows


CHART_WIDTH, CHART_HEIGHT = 900, 150
MARGIN = 5
"""The sizes of the chart, in units of its drawing."""


def _chart(snapshots: Sequence[Snapshot]) -> str:
    """The lag over time, from 0 to its maximum."""
    first, last = snapshots[0].sample.at, snapshots[-1].sample.at
    lags = {each.sample.at: each.sample.total() for each in snapshots}
    largest = max(lags.values())
    width, height = float(CHART_WIDTH), float(CHART_HEIGHT)
    if last != first:
        width = CHART_WIDTH / (last - first)
    if largest > 0:
        height = CHART_HEIGHT / largest
    bottom = CHART_HEIGHT + MARGIN
    points = [f"{(at - first) * width:.1f},{bottom - lag * height:.1f}" for at, lag in lags.items()]
    line = f"<polyline points='{' '.join(points)}' fill='none' stroke='#2a6f97' stroke-width='2'/>"
    legend = f"lag, 0 to {largest:,}, {_utc(first)} to {_utc(last)} UTC"
    return f"<svg viewBox='0 0 {CHART_WIDTH} {bottom + MARGIN}'>{line}</svg><p>{legend}</p>"


def _section(title: str, table: Table) -> str:
    rows = ""
    for row in table:
        cells = [f"<td>{escape(str(cell))}</td>" for cell in row]
        rows += f"<tr>{''.join(cells)}</tr>"
    return f"<h2>{title}</h2><table>{rows}</table>"


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
