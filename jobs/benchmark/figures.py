"""What the runs of a case say: medians, ratios of pairs, and the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmark.cases import GROUP, JVM, Case, Extent
from benchmark.queries import Run

SETTLING = 3
"""First micro-batches of a run, which are left out of its median: in them processes start and code is compiled."""

HEAD = ("case", "records", JVM, GROUP, "ratio", "least-most", "with start", "worker MiB")
NONE = "-"


@dataclass(frozen=True, slots=True)
class Result:
    """A case with its measured runs by source; the n-th runs of the sources were made one right after the other."""

    case: Case
    runs: dict[str, list[Run]]
    peak_mib: float | None

    @property
    def in_ms(self) -> bool:
        """Whether a time is told, of a micro-batch or until rows come, not rows per second."""
        return self.case.extent in (Extent.MICRO_BATCHES, Extent.LATENCY)

    def value(self, source: str) -> float | None:
        """Median over the runs: rows per second, or milliseconds."""
        runs = self.runs.get(source)
        return median(_value(self.case, run) for run in runs) if runs else None

    def ratios(self) -> list[float]:
        """How much faster kafka-group was, pair by pair; empty where one source was measured alone."""
        pairs = zip(self.runs.get(GROUP, []), self.runs.get(JVM, []), strict=False)
        quotients = [(_value(self.case, ours), _value(self.case, theirs)) for ours, theirs in pairs]
        return [theirs / ours if self.in_ms else ours / theirs for ours, theirs in quotients]

    def ratio(self) -> float | None:
        """Median of :meth:`ratios`."""
        return median(self.ratios()) if self.ratios() else None

    def ratio_with_start(self) -> float | None:
        """The same of the time from the query's start() to the end of what is measured; None where times are."""
        if self.in_ms:
            return None
        pairs = zip(self.runs.get(GROUP, []), self.runs.get(JVM, []), strict=False)
        quotients = [theirs.seconds / ours.seconds for ours, theirs in pairs]
        return median(quotients) if quotients else None

    def as_json(self) -> dict[str, Any]:
        """Everything, down to the single run."""
        case = asdict(self.case) | {"sink": self.case.sink.value, "extent": self.case.extent.value}
        sources = {
            source: {"median": self.value(source), "runs": [asdict(run) for run in runs]}
            for source, runs in self.runs.items()
        }
        return {
            "case": case,
            "unit": "ms" if self.in_ms else "rows/s",
            "sources": sources,
            "ratio": self.ratio(),
            "ratios": self.ratios(),
            "ratio_with_start": self.ratio_with_start(),
            "peak_worker_mib": self.peak_mib,
        }

    def row(self) -> tuple[str, ...]:
        """The case's line of the table, a text for each of :data:`HEAD`."""
        ratios = self.ratios()
        return (
            self.case.name,
            f"{self.case.topic.records:,}",
            self.shown(JVM),
            self.shown(GROUP),
            _number(self.ratio(), "{:.2f}"),
            f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else NONE,
            _number(self.ratio_with_start(), "{:.2f}"),
            _number(self.peak_mib, "{:.0f}"),
        )

    def shown(self, source: str) -> str:
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
        return median(batch.phases_ms["triggerExecution"] for batch in run.batches[SETTLING:])
    return sum(batch.rows for batch in run.batches) / sum(batch.phases_ms["addBatch"] for batch in run.batches) * 1000


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else form.format(value)
