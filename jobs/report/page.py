"""The page of a group report: one HTML file without other files."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timezone

from report import charts
from report.watch import History, Snapshot
from spark_group_source.group.description import DEAD, MemberDescription
from spark_group_source.lag.model import LagReport, Rates, RateWindow, duration
from spark_group_source.text import names

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1120px; margin: 24px auto; padding: 0 20px }
h1 { font-size: 24px; margin: 0 } h2 { font-size: 18px; margin: 32px 0 8px } p.sub { color: #666; margin: 4px 0 20px }
.tiles { display: flex; flex-wrap: wrap; gap: 12px }
.tile { border: 1px solid #ddd; border-radius: 6px; padding: 10px 16px; min-width: 120px }
.tile b { display: block; font-size: 22px } .tile span { color: #666; font-size: 13px }
table { border-collapse: collapse; width: 100% } td, th { padding: 3px 10px; text-align: left; overflow-wrap: anywhere }
th { border-bottom: 2px solid #999; font-weight: 600 } td { border-bottom: 1px solid #eee; vertical-align: top }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums } img { max-width: 100% }
.warn { background: #fff3e0; border-left: 4px solid #d1702b; padding: 8px 12px }
"""

Row = Sequence[object]


def page(group: str, history: History) -> str:
    """The HTML of the page."""
    last = history.snapshots[-1]
    parts = [
        f"<h1>Consumer group {_safe(group)}</h1><p class='sub'>{_safe(_subtitle(history))}</p>",
        _tiles(group, history),
        *_warnings(history),
        *_pictures(history),
        "<h2>Members</h2>" + _members(last),
        "<h2>Rebalances</h2>" + _rebalances(history),
        "<h2>Partitions</h2>" + _partitions(last),
    ]
    head = f"<meta charset='utf-8'><title>{_safe(group)}: lag</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _subtitle(history: History) -> str:
    first, last = (each.sample.at for each in (history.snapshots[0], history.snapshots[-1]))
    group = history.snapshots[-1].group
    named = f" by {group.assignor}" if group.assignor else ""
    samples = f"{len(history.snapshots)} sample(s) in {duration(last - first)}, the last at {_when(last)} UTC"
    state = "No group" if group.state == DEAD else f"{group.state}, protocol {group.protocol}"
    members = "hidden members" if group.members_hidden else f"{len(group.members)} member(s)"
    return f"{state}, {members}{named}; {samples}"


def _tiles(group: str, history: History) -> str:
    window, rates = RateWindow(), Rates()
    for each in history.snapshots:
        rates = window.add(each.sample)
    last = history.snapshots[-1].sample
    report = LagReport(group, "", last.at, last.partitions(), rates, unknown=last.unknown())
    worst = report.largest
    least = "≥ " * bool(report.unknown)
    tiles = [(f"{least}{report.total:,}", f"lag in {len(report.partitions)} partition(s)")]
    if worst is not None and worst.lag:
        tiles.append((f"{worst.lag:,}", f"maximum, in {worst.tp}"))
    if rates.processed is not None and rates.arrived is not None:
        tiles += [(f"{rates.processed:,.0f}/s", "committed"), (f"{rates.arrived:,.0f}/s", "written")]
    if report.total and report.catch_up is not None:
        tiles.append(
            ("never" if math.isinf(report.catch_up) else duration(report.catch_up), "to catch up, at these rates")
        )
    return (
        "<div class='tiles'>"
        + "".join(f"<div class='tile'><b>{_safe(a)}</b><span>{_safe(b)}</span></div>" for a, b in tiles)
        + "</div>"
    )


def _warnings(history: History) -> Iterable[str]:
    last = history.snapshots[-1]
    idle = {each.tp for each in last.sample.partitions() if each.lag} - last.owners().keys()
    if idle and last.group.state in ("Stable", "Empty"):
        yield f"<p class='warn'>{len(idle)} partition(s) with lag have no owner now.</p>"
    if unknown := last.sample.unknown():
        text = (
            f"The lag of {len(unknown)} partition(s) is unknown: no leader reported the end offset of {names(unknown)}."
        )
        yield f"<p class='warn'>{_safe(text)}</p>"
    if last.group.members_hidden:
        yield (
            "<p class='warn'>The members are hidden, because this principal may not describe all of their topics. Grant"
            " it DESCRIBE on the topics that the group reads.</p>"
        )
    if history.failures:
        failed = f"{len(history.failures)} sample(s) failed, the last one with: {history.failures[-1]}"
        yield f"<p class='warn'>{_safe(failed)}</p>"


def _pictures(history: History) -> Iterable[str]:
    if len(history.snapshots) > 1:
        yield "<h2>Lag over time</h2>" + _image(charts.over_time(history), "lag and rates over time")
    if history.snapshots[-1].sample.partitions():
        yield "<h2>Lag by partition, at the last sample</h2>" + _image(charts.by_partition(history), "lag by partition")
        if len(history.snapshots) > 1:
            yield "<h2>Lag by partition, over time</h2>" + _image(charts.heat(history), "lag by partition over time")


def _members(snapshot: Snapshot) -> str:
    head = ("client", "member", "instance", "host", "protocol", "epoch", "topics", "partitions")
    rows = [
        (
            each.client_id,
            each.member_id,
            each.instance_id or "",
            each.host,
            each.protocol,
            "" if each.epoch is None else each.epoch,
            _subscription(each),
            len(each.partitions),
        )
        for each in snapshot.group.members
    ]
    none = "<p>Hidden.</p>" if snapshot.group.members_hidden else "<p>None now.</p>"
    return _table(head, rows, {5, 7}) if rows else none


def _subscription(member: MemberDescription) -> str:
    pattern = f"pattern {member.pattern}" if member.pattern else ""
    return ", ".join(filter(None, [names(member.topics), pattern]))


def _rebalances(history: History) -> str:
    rows = [(_when(each.at), each.what) for each in history.rebalances()]
    return _table(("UTC", "what"), rows) if rows else "<p>None.</p>"


def _partitions(snapshot: Snapshot) -> str:
    clients = {each.member_id: f"{each.client_id} at {each.host}" for each in snapshot.group.members}
    owners, sample = snapshot.owners(), snapshot.sample
    lags = {each.tp: each.lag for each in sample.partitions()}
    rows = [
        (tp.topic, tp.partition, *map(_count, (sample.positions.get(tp), sample.ends.get(tp), lags.get(tp))), owner)
        for tp in sorted(sample.positions.keys() | owners.keys())
        for owner in [clients.get(owners.get(tp, ""), "")]
    ]
    return _table(("topic", "partition", "committed", "end offset", "lag", "owner"), rows, {1, 2, 3, 4})


def _table(head: Sequence[str], rows: Iterable[Row], numbers: Collection[int] = ()) -> str:
    def line(tag: str, cells: Row) -> str:
        mark = ["", " class='n'"]
        return (
            "<tr>"
            + "".join(f"<{tag}{mark[at in numbers]}>{_safe(cell)}</{tag}>" for at, cell in enumerate(cells))
            + "</tr>"
        )

    return (
        f"<table><thead>{line('th', head)}</thead><tbody>{''.join(line('td', each) for each in rows)}</tbody></table>"
    )


def _image(png: bytes, alt: str) -> str:
    return f"<img alt='{alt}' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _safe(text: object) -> str:
    return html.escape(str(text))
