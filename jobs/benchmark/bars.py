"""What a release must reach on a quiet machine, and by how much it misses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmark.cases import CASES, DISTANCES_MS, GROUP, JVM, TUNED
from benchmark.results import COMPARED, Result, number_text

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
        if missing <= 0:
            return "reached"
        return f"MISSED by {missing:.2f}"

    @property
    def limit(self) -> str:
        """The limit as a text."""
        if self.at_least is not None:
            return f"at least {self.at_least}"
        return f"at most {self.at_most}"


def _part_of_time(result: Result) -> float | None:
    ratio = result.ratio()
    if ratio is None:
        return None
    return 1 / ratio


def _part_of_cpu(result: Result) -> float | None:
    ours, theirs = result.cpu_us(GROUP), result.cpu_us(JVM)
    if ours is None or theirs is None:
        return None
    return ours / theirs


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
        lines += _section(bar, by_name)
    return "\n".join(lines + _distances(by_name))


def _section(bar: Bar, by_name: dict[str, Result]) -> list[str]:
    lines = []
    for name in bar.cases:
        if name not in by_name:
            continue
        value = bar.figure(by_name[name])
        if value is not None:
            lines.append(f"  {name:24} {value:7.2f}  {bar.verdict(value)}")
    if not lines:
        return []
    return [f"{bar.title} ({bar.limit})", *lines]


def _distances(by_name: dict[str, Result]) -> list[str]:
    lines = []
    for case in DISTANT:
        if case.name in by_name:
            lines.append(_at_a_distance(by_name[case.name]))
    if not lines:
        return []
    return [f"Broker at a distance, behind a proxy: {' / '.join(COMPARED)}", *lines, *_round_trips(by_name)]


def _at_a_distance(result: Result) -> str:
    first = " / ".join(number_text(result.first_batch_ms(source), "{:,.0f}") for source in COMPARED)
    figures = " / ".join(result.formatted(source) for source in COMPARED)
    return f"  {result.case.name:24} {figures:40}  first batch after {first} ms"


def _round_trips(by_name: dict[str, Result]) -> list[str]:
    """Round trips in a row: what the distance adds to a time, divided by the distance."""
    near = by_name.get(f"micro-batches-8-{DISTANCES_MS[0]}ms")
    far = by_name.get(f"micro-batches-8-{DISTANCES_MS[-1]}ms")
    if near is None or far is None:
        return []
    added_ms = DISTANCES_MS[-1] - DISTANCES_MS[0]
    lines = ["Round trips in a row: from start() to the end of the first batch; in a micro-batch"]
    for source in COMPARED:
        first = _added(near.first_batch_ms(source), far.first_batch_ms(source))
        batch = _added(near.value(source), far.value(source))
        if first is not None and batch is not None:
            lines.append(f"  {source:24} {first / added_ms:5.1f}  {batch / added_ms:5.1f}")
    return lines


def _added(near: float | None, far: float | None) -> float | None:
    if near is None or far is None:
        return None
    return far - near
