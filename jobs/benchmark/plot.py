"""Draws the ratios as a chart."""

from __future__ import annotations

from pathlib import Path

from benchmark.cases import GROUP, JVM, Extent
from benchmark.results import Result

COLORS = {Extent.INSIDE: "#9bbad8"}
COLOR = "#33608f"
SLOWER = "#c06050"


def draw(results: list[Result], subtitle: str, path: Path) -> None:
    """Draws a bar with the median ratio for each case that both sources ran, and a dot for each pair of runs."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    compared = []
    for result in results:
        ratio = result.ratio()
        if ratio is not None:
            compared.append((result, ratio))
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.24 * len(compared)), layout="constrained")
    longest = max(max(each.ratios()) for each, _ in compared)
    y, ticks = 0.0, []
    for result, ratio in compared:
        y -= _distance_to_bar_before(result)
        axes.barh(y, ratio, height=0.9, color=_color(result, ratio))
        axes.plot(result.ratios(), [y] * len(result.ratios()), ".", markersize=3, color="black", alpha=0.7)
        end = max(*result.ratios(), ratio) + 0.01 * longest
        axes.text(end, y, f"{ratio:.2f}   {result.formatted(JVM)} → {result.formatted(GROUP)}", fontsize=7, va="center")
        ticks.append((y, result.case.name))
    axes.set_yticks([y for y, _ in ticks], [name for _, name in ticks], fontsize=7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlim(0, 1.25 * longest)  # leaves room for the texts
    axes.set_ylim(y - 1, 0)
    axes.set_xlabel(f"times as fast as {JVM}: median (bar), and each pair of runs (dots)")
    axes.set_title(f"{GROUP} beside {JVM}\n{subtitle}", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _distance_to_bar_before(result: Result) -> float:
    """Both extents of a case are close together."""
    if result.case.extent is Extent.INSIDE:
        return 1.0
    return 1.4


def _color(result: Result, ratio: float) -> str:
    if ratio < 1:
        return SLOWER
    return COLORS.get(result.case.extent, COLOR)
