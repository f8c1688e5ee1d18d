"""The results of a case: medians, ratios of pairs, and the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmark.cases import GROUP, JVM, MEMORY, TUNED, Case, Extent
from benchmark.queries import Run

WARM_UP_BATCHES = 3
"""The first micro-batches of a run, in which processes start and the JVM compiles code; its median skips them."""

COMPARED = (JVM, TUNED, GROUP)
HEAD = (
    *("case", "records", *COMPARED, "ratio", "least-most", "of tuned", "ceiling", "with start", "CPU", "received"),
    "worker MiB",
)
NO_VALUE = "-"
MIN_WHOLE = 10_000
"""Rows per second from which a rate is printed in whole thousands."""


@dataclass(frozen=True, slots=True)
class Result:
    """A case with its measured runs by source; run n of each source directly followed run n of another."""

    case: Case
    runs: dict[str, list[Run]]
    peak_mib: float | None

    @property
    def in_ms(self) -> bool:
        """Whether the figure is a time in milliseconds, not rows per second."""
        return self.case.extent in (Extent.MICRO_BATCHES, Extent.LATENCY)

    def value(self, source: str) -> float | None:
        """Median over the runs: rows per second, or milliseconds."""
        return _median([_value(self.case, run) for run in self.runs.get(source, [])])

    def ratios(self, other: str = JVM) -> list[float]:
        """How much faster kafka-group was than ``other`` in each pair; empty if only one source was measured."""
        ratios = []
        for ours, theirs in self._pairs(other):
            our_value, their_value = _value(self.case, ours), _value(self.case, theirs)
            if self.in_ms:
                ratios.append(their_value / our_value)
            else:
                ratios.append(our_value / their_value)
        return ratios

    def _pairs(self, other: str) -> list[tuple[Run, Run]]:
        """The runs of kafka-group, each with the run of ``other`` that directly preceded or followed it."""
        return list(zip(self.runs.get(GROUP, []), self.runs.get(other, []), strict=False))

    def ratio(self, other: str = JVM) -> float | None:
        """Median of :meth:`ratios`."""
        return _median(self.ratios(other))

    def first_batch_ms(self, source: str) -> float | None:
        """The median time from start() to the end of the first batch, in milliseconds."""
        return _median([1000 * run.first_s for run in self.runs.get(source, [])])

    def ceiling(self) -> float | None:
        """The median rate of kafka-group as a fraction of the ceiling's; None if the ceiling was not measured."""
        return _median([_value(self.case, ours) / _value(self.case, most) for ours, most in self._pairs(MEMORY)])

    def ratio_with_start(self) -> float | None:
        """The median ratio of the times from start() to the end of the last batch; None if the figure is a time."""
        if self.in_ms:
            return None
        return _median([theirs.seconds / ours.seconds for ours, theirs in self._pairs(JVM)])

    def cpu_us(self, source: str) -> float | None:
        """The median CPU time of the executor for each row, in microseconds; None if the figure is a time."""
        if self.in_ms:
            return None
        values = []
        for run in self.runs.get(source, []):
            if run.cpu_s is not None:
                values.append(1e6 * run.cpu_s / run.rows)
        return _median(values)

    def received(self, source: str) -> float | None:
        """The median number of bytes that the broker sent for each byte of values that the source returned."""
        values = []
        for run in self.runs.get(source, []):
            if run.received is not None:
                values.append(run.received / (run.rows * self.case.topic.mean_value_bytes))
        return _median(values)

    def as_json(self) -> dict[str, Any]:
        """All figures, including each run."""
        case = asdict(self.case) | {"sink": self.case.sink.value, "extent": self.case.extent.value}
        unit = "rows/s"
        if self.in_ms:
            unit = "ms"
        return {
            "case": case,
            "unit": unit,
            "sources": {source: self._source_as_json(source) for source in self.runs},
            "ratio": self.ratio(),
            "ratios": self.ratios(),
            "ratio_of_tuned": self.ratio(TUNED),
            "ceiling": self.ceiling(),
            "ratio_with_start": self.ratio_with_start(),
            "peak_worker_mib": self.peak_mib,
        }

    def _source_as_json(self, source: str) -> dict[str, Any]:
        return {
            "median": self.value(source),
            "received": self.received(source),
            "cpu_us": self.cpu_us(source),
            "first_batch_ms": self.first_batch_ms(source),
            "runs": [asdict(run) for run in self.runs[source]],
        }

    def row(self) -> tuple[str, ...]:
        """The table row of the case, with a text for each column of :data:`HEAD`."""
        ratios = self.ratios()
        least_most = NO_VALUE
        if ratios:
            least_most = f"{min(ratios):.2f}-{max(ratios):.2f}"
        return (
            self.case.name,
            f"{self.case.topic.records:,}",
            *(self.formatted(source) for source in COMPARED),
            number_text(self.ratio(), "{:.2f}"),
            least_most,
            number_text(self.ratio(TUNED), "{:.2f}"),
            number_text(self.ceiling(), "{:.0%}"),
            number_text(self.ratio_with_start(), "{:.2f}"),
            self._formatted_each(self.cpu_us, "{:.2f}"),
            self._formatted_each(self.received, "{:.1f}"),
            number_text(self.peak_mib, "{:.0f}"),
        )

    def _formatted_each(self, figure: Callable[[str], float | None], template: str) -> str:
        if figure(GROUP) is None:
            return NO_VALUE
        return " / ".join(number_text(figure(source), template) for source in COMPARED)

    def formatted(self, source: str) -> str:
        """The source's median with its unit."""
        value = self.value(source)
        if self.in_ms:
            return number_text(value, "{:.0f} ms")
        if value is None:
            return NO_VALUE
        if value < MIN_WHOLE:
            return number_text(value / 1000, "{:,.1f} k/s")
        return number_text(value / 1000, "{:,.0f} k/s")


def table(results: list[Result]) -> str:
    """All results as aligned text."""
    rows = [HEAD, *(result.row() for result in results)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [_aligned(row, widths) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    """The cells of a row: the first one left-aligned, the others right-aligned."""
    cells = [row[0].ljust(widths[0])]
    for cell, width in zip(row[1:], widths[1:], strict=True):
        cells.append(cell.rjust(width))
    return "  ".join(cells)


def _median(values: list[float]) -> float | None:
    if not values:
        return None
    return median(values)


def _value(case: Case, run: Run) -> float:
    if run.latency_ms is not None:
        return run.latency_ms
    if case.extent is Extent.MICRO_BATCHES:
        return median(batch.phases_ms["triggerExecution"] for batch in run.batches[WARM_UP_BATCHES:])
    return run.rows / sum(batch.phases_ms["addBatch"] for batch in run.batches) * 1000


def number_text(value: float | None, template: str) -> str:
    """The value in a template of ``str.format``; :data:`NO_VALUE` for None."""
    if value is None:
        return NO_VALUE
    return template.format(value)
