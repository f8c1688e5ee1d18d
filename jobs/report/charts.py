"""The charts of a group report, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import matplotlib as mpl

from report.watch import History
from spark_group_source.lag.model import RateWindow
from spark_group_source.offsets import TopicPartition

mpl.use("agg")
from matplotlib import pyplot as plt

WIDTH, DPI = 10.0, 110
MOST_NAMES = 25
"""Maximum number of partition labels in a chart."""

BLUE, ORANGE, GREY = "#2a6f97", "#d1702b", "#777777"


def over_time(history: History) -> bytes:
    """The group's lag and the rates of committed and written offsets, with a line for each rebalance."""
    snapshots = history.snapshots
    began = snapshots[0].sample.at
    times = [each.sample.at - began for each in snapshots]
    figure, (lags, rates) = plt.subplots(2, figsize=(WIDTH, 4.6), sharex=True, layout="constrained")
    lags.plot(times, [each.lag() for each in snapshots], color=BLUE, marker=".", markersize=4)
    lags.set_ylabel("lag (offsets)")
    middles, committed, written = _rates(history)
    rates.plot(middles, committed, color=BLUE, label="committed")
    rates.plot(middles, written, color=ORANGE, linestyle="--", label="written")
    rates.set_ylabel("offsets per second")
    rates.set_xlabel(f"seconds since {_clock(began)} UTC")
    for axes in (lags, rates):
        for each in history.rebalances():
            axes.axvline(each.at - began, color=GREY, linestyle=":", linewidth=1.2)
        axes.set_ylim(0, max(axes.get_ylim()[1], 1))
        _count_in_offsets(axes, axes.yaxis)
    if history.rebalances():
        rates.plot([], [], color=GREY, linestyle=":", label="rebalance")
    rates.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return _png(figure)


def by_partition(history: History) -> bytes:
    """The lag of each partition in the last sample."""
    found = history.snapshots[-1].sample.partitions()
    figure, axes = _with_rows([each.tp for each in found])
    axes.barh(range(len(found)), [each.lag for each in found], color=BLUE, height=0.8)
    axes.set_xlabel("lag (offsets)")
    axes.set_xlim(0, max(axes.get_xlim()[1], 1))
    _count_in_offsets(axes, axes.xaxis)
    return _png(figure)


def heat(history: History) -> bytes:
    """The lag of each partition in each sample; darker is more."""
    snapshots = history.snapshots
    partitions = sorted({each.tp for snapshot in snapshots for each in snapshot.sample.partitions()})
    began = snapshots[0].sample.at
    times = [each.sample.at - began for each in snapshots]
    known = [{each.tp: each.lag for each in snapshot.sample.partitions()} for snapshot in snapshots]
    rows = [[lags.get(tp, float("nan")) for lags in known] for tp in partitions]
    figure, axes = _with_rows(partitions)
    mesh = axes.pcolormesh(times, range(len(partitions)), rows, cmap="Blues", shading="nearest")
    mesh.set_clim(0, max(mesh.get_clim()[1], 1))
    axes.set_xlabel(f"seconds since {_clock(began)} UTC")
    figure.colorbar(mesh, label="lag (offsets)", format=_number, pad=0.01)
    return _png(figure)


def _with_rows(partitions: Sequence[TopicPartition]) -> tuple[Any, Any]:
    """A figure with a row for each partition, the first at the top; with several topics the labels have the topic."""
    figure, axes = plt.subplots(figsize=(WIDTH, 1.2 + min(0.25 * len(partitions), 5.0)), layout="constrained")
    topics = {tp.topic for tp in partitions}
    one = len(topics) == 1
    shown = range(0, len(partitions), -(-len(partitions) // MOST_NAMES))
    names = [str(partitions[at].partition) if one else _short(str(partitions[at])) for at in shown]
    axes.set_yticks(list(shown), names)
    axes.set_ylabel(f"partition of\n{_short(topics.pop())}" if one else "partition")
    axes.set_ylim(len(partitions) - 0.5, -0.5)
    return figure, axes


def _rates(history: History) -> tuple[list[float], list[float], list[float]]:
    """The times between samples, and the offsets per second committed and written between them."""
    began = history.snapshots[0].sample.at
    middles, committed, written = [], [], []
    for before, after in zip(history.snapshots, history.snapshots[1:], strict=False):
        window = RateWindow()
        window.add(before.sample)
        found = window.add(after.sample)
        if found.processed is not None and found.arrived is not None:
            middles.append((before.sample.at + after.sample.at) / 2 - began)
            committed.append(found.processed)
            written.append(found.arrived)
    return middles, committed, written


def _count_in_offsets(axes: Any, axis: Any) -> None:
    axis.set_major_formatter(_number)
    axis.get_major_locator().set_params(integer=True)  # no tenths of an offset where there is no lag
    axes.grid(axis=axis.axis_name, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _short(name: str) -> str:
    """A name shortened at its start, because the end identifies the partition."""
    return name if len(name) <= 32 else f"...{name[-29:]}"


def _number(value: float, _: object = None) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M:%S")


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=DPI)
    plt.close(figure)
    return out.getvalue()
