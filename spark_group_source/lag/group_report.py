"""A consumer group seen from outside: its partitions as a table, and a page with what happened to it for some time."""

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
from spark_group_source.text import names, printable

Table = Sequence[tuple[object, ...]]
"""The first row has the titles."""

COLUMNS = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
"""Those of ``kafka-consumer-groups --describe``."""

STYLE = "body { font: 15px sans-serif; margin: 2em } td, th { padding: 2px 12px 2px 0; text-align: left }"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The group at one moment."""

    group: GroupDescription
    sample: Sample

    def owners(self) -> dict[TopicPartition, MemberDescription]:
        """The member that owns each partition."""
        return {tp: each for each in self.group.members for tp in each.partitions}

    def partitions(self) -> Table:
        """A row for each partition that has a commit or an owner; ``-`` stands for what is unknown."""
        owners, figures = self.owners(), (self.sample.positions, self.sample.ends)
        lags = {each.tp: each.lag for each in self.sample.partitions()}
        rows: list[tuple[object, ...]] = [COLUMNS]
        for tp in sorted(self.sample.positions.keys() | owners.keys()):
            owner = owners.get(tp)
            member = (owner.member_id, owner.host, owner.client_id) if owner else ("-", "-", "-")
            rows.append((printable(tp.topic), tp.partition, *(each.get(tp, "-") for each in (*figures, lags)), *member))
        return rows


def snapshot(client: GroupLagClient) -> Snapshot:
    """Looks the group up. A group that does not exist is an error."""
    seen = Snapshot(client.describe(), client.sample())
    if not (seen.group.members or seen.group.members_hidden or seen.sample.positions):
        raise GroupSourceError(
            f"The group '{client.group}' does not exist: it has no members and no committed offsets.",
            "Its query has not started yet, or the name is wrong.",
        )
    return seen


def watch(
    client: GroupLagClient, seconds: float, interval: float, say: Callable[[str], None], clock: Clock = monotonic
) -> list[Snapshot]:
    """Looks the group up now, and every ``interval`` seconds for ``seconds`` or until Ctrl-C."""
    began, found = clock(), [snapshot(client)]
    with suppress(KeyboardInterrupt):
        while (left := began + seconds - clock()) > 0:
            time.sleep(min(interval, left))
            try:
                found.append(snapshot(client))
            except GroupSourceError as error:
                say(str(error))
    return found


def text(table: Table) -> str:
    """Columns of equal width."""
    cells = [list(map(str, row)) for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def rebalances(snapshots: Sequence[Snapshot]) -> Table:
    """Each change of members or owners, at the first snapshot after its rebalance."""
    settled = [each for each in snapshots if each.group.state in ("Stable", "Empty", "Dead", UNKNOWN)]
    rows: list[tuple[object, ...]] = [("UTC", "joined", "left", "partitions with a new owner")]
    for before, after in pairwise(settled):
        old, new = ({each.member_id for each in at.group.members} for at in (before, after))
        was, now = ({tp: each.member_id for tp, each in at.owners().items()} for at in (before, after))
        moved = sum(was.get(tp) != now.get(tp) for tp in was.keys() | now.keys())
        if moved or old != new:
            rows.append((_utc(after.sample.at), len(new - old), len(old - new), moved))
    return rows


def page(group: str, snapshots: Sequence[Snapshot]) -> str:
    """An HTML page without scripts or links."""
    window, rates = RateWindow(), Rates()
    for each in snapshots:
        rates = window.add(each.sample)
    last, sample = snapshots[-1].group, snapshots[-1].sample
    report = LagReport(group, "", sample.at, sample.partitions(), rates, unknown=sample.unknown())
    state = f"{last.state}, protocol {last.protocol}, assignor {last.assignor or '-'}, {len(last.members)} member(s)"
    if last.members_hidden:
        state += " shown: grant this principal DESCRIBE on all topics that the group reads"
    members = [(m.client_id, m.instance_id or "-", m.protocol, f"{names(m.topics)} {m.pattern}") for m in last.members]
    tables: dict[str, Table] = {
        "Partitions": snapshots[-1].partitions(),
        "Members": [("client", "instance", "protocol", "topics"), *members],
        "Rebalances": rebalances(snapshots),
    }
    body = "".join(f"<h2>{title}</h2><table>{_rows(table)}</table>" for title, table in tables.items())
    head = f"<meta charset='utf-8'><title>{escape(group)}</title><style>{STYLE}</style>"
    head += f"<h1>{escape(str(report))}</h1><p>{escape(state)}</p>{_chart(snapshots)}"
    return f"<!doctype html><html lang='en'>{head}{body}</html>\n"


def _chart(snapshots: Sequence[Snapshot]) -> str:
    """The lag over time, from 0 to its maximum."""
    first, last = snapshots[0].sample.at, snapshots[-1].sample.at
    lags = {each.sample.at: sum(tp.lag for tp in each.sample.partitions()) for each in snapshots}
    width, height = 900 / (last - first or 1), 150 / (max(lags.values()) or 1)
    points = " ".join(f"{(at - first) * width:.1f},{155 - lag * height:.1f}" for at, lag in lags.items())
    line = f"<polyline points='{points}' fill='none' stroke='#2a6f97' stroke-width='2'/>"
    legend = f"lag, 0 to {max(lags.values()):,}, {_utc(first)} to {_utc(last)} UTC"
    return f"<svg viewBox='0 0 900 160'>{line}</svg><p>{legend}</p>"


def _rows(table: Table) -> str:
    return "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in table)


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
