"""The ratios as a picture."""

from __future__ import annotations

from pathlib import Path

from benchmark.cases import GROUP, JVM, Extent
from benchmark.figures import Result

COLORS = {Extent.INSIDE: "#9bbad8"}
COLOR = "#33608f"
SLOWER = "#c06050"


def draw(results: list[Result], subtitle: str, path: Path) -> None:
    """One bar for each case that both sources ran: the median ratio, with a dot for each pair of runs."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    compared = [(each, ratio) for each in results if (ratio := each.ratio()) is not None]
    figure, axes = plt.subplots(figsize=(9, 1.4 + 0.24 * len(compared)), layout="constrained")
    longest = max(max(each.ratios()) for each, _ in compared)
    at, ticks = 0.0, []
    for result, ratio in compared:
        at -= 1.0 if result.case.extent is Extent.INSIDE else 1.4  # a case and the same inside the log stand together
        axes.barh(at, ratio, height=0.9, color=COLORS.get(result.case.extent, COLOR) if ratio >= 1 else SLOWER)
        axes.plot(result.ratios(), [at] * len(result.ratios()), ".", markersize=3, color="black", alpha=0.7)
        end = max(*result.ratios(), ratio) + 0.01 * longest
        axes.text(end, at, f"{ratio:.2f}   {result.shown(JVM)} → {result.shown(GROUP)}", fontsize=7, va="center")
        ticks.append((at, result.case.name))
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=7)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlim(0, 1.25 * longest)  # with room for the figures
    axes.set_ylim(at - 1, 0)
    axes.set_xlabel(f"times as fast as {JVM}: median (bar), and each pair of runs (dots)")
    axes.set_title(f"{GROUP} beside {JVM}\n{subtitle}", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)
