"""What a release must reach on a quiet machine, and by how much it misses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmark.cases import CASES, DISTANCES_MS, GROUP, JVM, TUNED
from benchmark.results import COMPARED, Result

Figure = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit on a figure of some cases: ``at_least``, or ``at_most``."""

    title: str
    cases: tuple[str, ...]
    figure: Figure
    at_least: float | None = None
    at_most: float | None = None

    def verdict(self, value: float) -> str:
        """Whether the value is within the limit, or by how much it misses it."""
        missing = 0.0
        if self.at_least is not None:
            missing = self.at_least - value
        if self.at_most is not None:
            missing = value - self.at_most
        return "reached" if missing <= 0 else f"MISSED by {missing:.2f}"


def _part_of_time(result: Result) -> float | None:
    ratio = result.ratio()
    return None if ratio is None else 1 / ratio


def _part_of_cpu(result: Result) -> float | None:
    ours, theirs = result.cpu_us(GROUP), result.cpu_us(JVM)
    return None if ours is None or theirs is None else ours / theirs


def _of_tuned(result: Result) -> float | None:
    return result.ratio(TUNED)


_10_KB = ("10kB-128kB-inside", "10kB-256kB-inside")
_1_KB = ("1kB-256kB-inside", "1kB-1MB-inside")
BARS = (
    Bar("10 kB: times the rate of kafka", _10_KB, Result.ratio, at_least=1.3),
    Bar("10 kB: times the rate of kafka-tuned", _10_KB, _of_tuned, at_least=0.95),
    Bar("1 kB, 256 kB: times the rate of kafka", _1_KB[:1], Result.ratio, at_least=1.5),
    Bar("1 kB, 1 MB: times the rate of kafka", _1_KB[1:], Result.ratio, at_least=1.45),
    Bar("100 B, 256 kB: times the rate of kafka", ("100B-256kB-inside",), Result.ratio, at_least=2.0),
    Bar("micro-batches: part of the time of kafka", ("micro-batches-8",), _part_of_time, at_most=0.9),
    Bar("executor CPU a row: part of that of kafka", (*_1_KB, *_10_KB), _part_of_cpu, at_most=1.0),
    Bar("worker MiB", ("100B-256kB-inside", *_1_KB, *_10_KB), lambda result: result.peak_mib, at_most=300.0),
)
DISTANT = tuple(case for case in CASES if case.distance_ms is not None)
NAMES = frozenset(name for bar in BARS for name in bar.cases) | {case.name for case in DISTANT}
"""The cases of all bars, and those at a distance."""


def report(results: Sequence[Result], pairs: int) -> str:
    """A section for each bar with a measured case, then the distances."""
    by_name = {result.case.name: result for result in results}
    lines = [f"\nBars (medians of {pairs} pairs)"]
    for bar in BARS:
        measured = [(name, bar.figure(by_name[name])) for name in bar.cases if name in by_name]
        values = [(name, value) for name, value in measured if value is not None]
        if values:
            limit = f"at least {bar.at_least}" if bar.at_least is not None else f"at most {bar.at_most}"
            lines.append(f"{bar.title} ({limit})")
            lines += [f"  {name:24} {value:7.2f}  {bar.verdict(value)}" for name, value in values]
    return "\n".join(lines + _distances(by_name))


def _distances(by_name: dict[str, Result]) -> list[str]:
    far = [by_name[case.name] for case in DISTANT if case.name in by_name]
    if not far:
        return []
    lines = [f"Broker at a distance, behind a proxy: {' / '.join(COMPARED)}"]
    for result in far:
        firsts = [result.first_batch_ms(source) for source in COMPARED]
        first = " / ".join("-" if each is None else f"{each:,.0f}" for each in firsts)
        figures = " / ".join(result.formatted(source) for source in COMPARED)
        lines.append(f"  {result.case.name:24} {figures:40}  first batch after {first} ms")
    return lines + _round_trips(by_name)


def _round_trips(by_name: dict[str, Result]) -> list[str]:
    """Round trips in a row: what the distance adds to a time, divided by the distance."""
    near, far = (by_name.get(f"micro-batches-8-{each}ms") for each in (DISTANCES_MS[0], DISTANCES_MS[-1]))
    if near is None or far is None:
        return []
    added_ms = DISTANCES_MS[-1] - DISTANCES_MS[0]
    lines = ["Round trips in a row: from start() to the end of the first batch; in a micro-batch"]
    for source in COMPARED:
        times = near.first_batch_ms(source), far.first_batch_ms(source), near.value(source), far.value(source)
        if None not in times:
            first, batch = (times[1] or 0) - (times[0] or 0), (times[3] or 0) - (times[2] or 0)
            lines.append(f"  {source:24} {first / added_ms:5.1f}  {batch / added_ms:5.1f}")
    return lines
