"""The ratios as a picture."""

from __future__ import annotations

from pathlib import Path

from benchmark.cases import GROUP, JVM
from benchmark.figures import Result


def draw(results: list[Result], subtitle: str, path: Path) -> None:
    """One bar for each case that both sources ran: the median ratio, with a dot for each pair of runs."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    compared = [(each, ratio) for each in reversed(results) if (ratio := each.ratio()) is not None]
    figure, axes = plt.subplots(figsize=(9, 1.6 + 0.45 * len(compared)), layout="constrained")
    for at, (result, ratio) in enumerate(compared):
        axes.barh(at, ratio, height=0.6, color="#4878a8" if ratio >= 1 else "#c06050")
        axes.plot(result.ratios(), [at] * len(result.ratios()), "o", markersize=3, color="black", alpha=0.6)
    labels = [f"{each.case.name}\n{each.shown(JVM)} → {each.shown(GROUP)}" for each, _ in compared]
    axes.set_yticks(range(len(compared)), labels, fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"times as fast as {JVM}: median, and each pair of runs")
    axes.set_title(f"{JVM} → {GROUP}\n{subtitle}", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
