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
        runs = self.runs.get(source)
        return median(_value(self.case, run) for run in runs) if runs else None

    def ratios(self, other: str = JVM) -> list[float]:
        """How much faster kafka-group was than ``other`` in each pair; empty if only one source was measured."""
        pairs = zip(self.runs.get(GROUP, []), self.runs.get(other, []), strict=False)
        quotients = [(_value(self.case, ours), _value(self.case, theirs)) for ours, theirs in pairs]
        return [theirs / ours if self.in_ms else ours / theirs for ours, theirs in quotients]

    def ratio(self, other: str = JVM) -> float | None:
        """Median of :meth:`ratios`."""
        return median(self.ratios(other)) if self.ratios(other) else None

    def first_batch_ms(self, source: str) -> float | None:
        """The median time from start() to the end of the first batch, in milliseconds."""
        runs = self.runs.get(source)
        return 1000 * median(run.first_s for run in runs) if runs else None

    def ceiling(self) -> float | None:
        """The median rate of kafka-group as a fraction of the ceiling's; None if the ceiling was not measured."""
        pairs = zip(self.runs.get(GROUP, []), self.runs.get(MEMORY, []), strict=False)
        quotients = [_value(self.case, ours) / _value(self.case, ceiling) for ours, ceiling in pairs]
        return median(quotients) if quotients else None

    def ratio_with_start(self) -> float | None:
        """The median ratio of the times from start() to the end of the last batch; None if the figure is a time."""
        if self.in_ms:
            return None
        pairs = zip(self.runs.get(GROUP, []), self.runs.get(JVM, []), strict=False)
        quotients = [theirs.seconds / ours.seconds for ours, theirs in pairs]
        return median(quotients) if quotients else None

    def cpu_us(self, source: str) -> float | None:
        """The median CPU time of the executor for each row, in microseconds; None if the figure is a time."""
        runs = [run for run in self.runs.get(source, []) if run.cpu_s is not None and not self.in_ms]
        return (
            median(1e6 * (run.cpu_s or 0) / sum(batch.rows for batch in run.batches) for run in runs) if runs else None
        )

    def received(self, source: str) -> float | None:
        """The median number of bytes that the broker sent for each byte of values that the source returned."""
        values = [
            run.received / (sum(batch.rows for batch in run.batches) * self.case.topic.mean_value_bytes)
            for run in self.runs.get(source, [])
            if run.received is not None
        ]
        return median(values) if values else None

    def as_json(self) -> dict[str, Any]:
        """All figures, including each run."""
        case = asdict(self.case) | {"sink": self.case.sink.value, "extent": self.case.extent.value}
        sources = {
            source: {
                "median": self.value(source),
                "received": self.received(source),
                "cpu_us": self.cpu_us(source),
                "first_batch_ms": self.first_batch_ms(source),
                "runs": [asdict(run) for run in runs],
            }
            for source, runs in self.runs.items()
        }
        return {
            "case": case,
            "unit": "ms" if self.in_ms else "rows/s",
            "sources": sources,
            "ratio": self.ratio(),
            "ratios": self.ratios(),
            "ratio_of_tuned": self.ratio(TUNED),
            "ceiling": self.ceiling(),
            "ratio_with_start": self.ratio_with_start(),
            "peak_worker_mib": self.peak_mib,
        }

    def row(self) -> tuple[str, ...]:
        """The table row of the case, with a text for each column of :data:`HEAD`."""
        ratios = self.ratios()
        return (
            self.case.name,
            f"{self.case.topic.records:,}",
            *(self.formatted(source) for source in COMPARED),
            _number(self.ratio(), "{:.2f}"),
            f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else NO_VALUE,
            _number(self.ratio(TUNED), "{:.2f}"),
            _number(self.ceiling(), "{:.0%}"),
            _number(self.ratio_with_start(), "{:.2f}"),
            self._formatted_each(self.cpu_us, "{:.2f}"),
            self._formatted_each(self.received, "{:.1f}"),
            _number(self.peak_mib, "{:.0f}"),
        )

    def _formatted_each(self, figure: Callable[[str], float | None], template: str) -> str:
        if figure(GROUP) is None:
            return NO_VALUE
        return " / ".join(_number(figure(source), template) for source in COMPARED)

    def formatted(self, source: str) -> str:
        """The source's median with its unit."""
        value = self.value(source)
        if self.in_ms:
            return _number(value, "{:.0f} ms")
        return _number(value and value / 1000, "{:,.0f} k/s")


def table(results: list[Result]) -> str:
    """All results as aligned text."""
    rows = [HEAD, *(result.row() for result in results)]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _value(case: Case, run: Run) -> float:
    if run.latency_ms is not None:
        return run.latency_ms
    if case.extent is Extent.MICRO_BATCHES:
        return median(batch.phases_ms["triggerExecution"] for batch in run.batches[WARM_UP_BATCHES:])
    return sum(batch.rows for batch in run.batches) / sum(batch.phases_ms["addBatch"] for batch in run.batches) * 1000


def _number(value: float | None, template: str) -> str:
    return NO_VALUE if value is None else template.format(value)
