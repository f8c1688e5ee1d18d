"""Compares the speed of format("kafka-group") with Spark's own format("kafka"), on one machine.

Both sources run alternately in one Spark session (local[2]), on the same topics of one embedded Kafka. Each run is a
streaming query with a new checkpoint and its own group. Before the measurement of a topic, all sources must read the
same rows from it. Warm-up runs do not count. "ratio" is the speed of kafka-group divided by that of kafka: the median
over pairs of consecutive runs. "kafka-tuned" is the JVM source with the settings listed below, "of tuned" the speed of
kafka-group divided by that one's.

A name that ends in "-10ms" has a broker ten milliseconds away, behind a proxy that hands on each chunk later. There the
JVM source as it comes reads 5 % of the records. The last section has the round trips that follow from these times.

Rows per second (k/s: thousands) are measured in addBatch, the execution of a batch. "with start" is the ratio of the
times from start() to the end of the last batch. A case reads the whole topic with Trigger.AvailableNow. "-inside" cases
read one batch that ends before the end offset, where the JVM source waits half a second for each partition. For
micro-batches of 1,000 records the time is triggerExecution, the whole trigger. For "latency" it is the age of records
when foreachBatch gets their rows, at 1,000 records per second.

"ceiling" is the rate of kafka-group as a percentage of the rate of rows-from-memory. The tasks of that source return
the same number of rows of the same size from memory, without Kafka. No Python source can be faster in this Spark.

"CPU" has the CPU time of Spark's JVM and Python workers for each row in microseconds, in the order kafka, kafka-tuned,
kafka-group.

"received" has the bytes that the broker sent for each byte of values, in the same order. All sources fetch whole record
batches, and some of them again for the next micro-batch.

--peers also reads the topic of the case "100B" with other clients, in one process without Spark. "worker MiB" is the
peak memory of kafka-group's largest Python worker.

--bars measures only the cases of the limits that a release must reach, and those at a distance.

Results: a table, a section for each of these limits, and the files bench.json, bench.png and spark.log in the output
directory.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Replaces the directory of this file, whose modules are parts of the package.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmark import bars, distant_kafka, machine, peers  # noqa: E402
from benchmark.cases import CASES, GROUP, QUICK_SHARE, Case, select_cases  # noqa: E402
from benchmark.connector import connector_jars  # noqa: E402
from benchmark.errors import BenchError  # noqa: E402
from benchmark.measurement import Measurement  # noqa: E402
from benchmark.plot import draw  # noqa: E402
from benchmark.results import COMPARED, Result, table  # noqa: E402
from benchmark.session import spark_session  # noqa: E402
from benchmark.source_query import TUNING  # noqa: E402
from spark_group_source.testing.errors import EmbeddedKafkaError  # noqa: E402

FULL_MINUTES, QUICK_MINUTES = 150.0, 8.0
RUNS = 5
PEERS_CASE = "100B"


class Report:
    """The results, written after each case, so that an interrupted benchmark keeps them."""

    def __init__(self, directory: Path, facts: dict[str, Any]) -> None:
        self._directory = directory
        self._facts = facts
        self.results: list[Result] = []
        self.skipped: list[str] = []
        self.peers: list[tuple[str, float]] = []

    def add(self, result: Result) -> None:
        """Adds the result of one case."""
        self.results.append(result)
        say("  " + "  ".join(result.row()))
        self._write()

    def add_peers(self, rates: list[tuple[str, float]]) -> None:
        """Adds the rows per second of other clients."""
        self.peers = rates
        self._write()

    def _write(self) -> None:
        facts = self._facts | {"load_after": machine.load()}
        content = {
            "machine": facts,
            "results": [result.as_json() for result in self.results],
            "peers": dict(self.peers),
        }
        (self._directory / "bench.json").write_text(json.dumps(content, indent=1), encoding="utf-8")

    def finish(self) -> None:
        """Prints the table, the limits and the skipped cases, and draws the chart."""
        print(f"\n{table(self.results)}")
        print(bars.report(self.results, self._facts["runs"]))
        for name, rate in self.peers:
            print(f"{name}: {rate / 1000:,.0f} k/s in one process, without Spark")
        if self.skipped:
            print(f"No time remained for: {', '.join(self.skipped)}")
        facts = self._facts
        environment = (
            f"{facts['cores']} cores, {facts['processor']}; pyspark {facts['pyspark']}, Kafka {facts['kafka']}"
        )
        print(f"{environment}; load {facts['load_before']} before, {machine.load()} after")
        if any(result.ratio() for result in self.results):
            draw(self.results, environment, self._directory / "bench.png")
        print(f"Written to {self._directory}")


def main() -> int:
    """Runs the benchmark; returns 1 if the results would be meaningless."""
    args = _parser().parse_args()
    try:
        _bench(args)
    except (BenchError, EmbeddedKafkaError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _bench(args: argparse.Namespace) -> None:
    sources: tuple[str, ...] = (GROUP,)
    jars: list[Path] = []
    if not args.only:
        sources = COMPARED
        jars = connector_jars()
    work = select_cases(_names(args), args.quick, _share(args))
    minutes = _minutes(args)
    count = sum(map(len, work))
    say(f"{count} cases, {args.runs} runs each of {' and '.join(sources)}; at most {minutes:.0f} minutes")
    args.output.mkdir(parents=True, exist_ok=True)
    report = Report(args.output, machine.describe(jars) | {"tuned": TUNING, "runs": args.runs})
    end = time.monotonic() + 60 * minutes
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as directory,
        distant_kafka.running(_distances_ms(work)) as (kafka, port),
        spark_session(jars, args.output / "spark.log") as spark,
    ):
        try:
            _measure_all(
                Measurement(spark, kafka, port, sources, args.runs, Path(directory)), work, report, end, args.peers
            )
        finally:  # also after a failed case or Ctrl-C
            report.finish()


def _names(args: argparse.Namespace) -> list[str]:
    """The names of the cases to run; empty for all, or for the quick ones."""
    if args.cases:
        return list(args.cases)
    if args.bars:
        return sorted(bars.NAMES)
    return []


def _share(args: argparse.Namespace) -> float:
    """The fraction of the records."""
    if args.share:
        return float(args.share)
    if args.quick:
        return QUICK_SHARE
    return 1.0


def _minutes(args: argparse.Namespace) -> float:
    """The maximum duration."""
    if args.minutes:
        return float(args.minutes)
    if args.quick:
        return QUICK_MINUTES
    return FULL_MINUTES


def _distances_ms(work: list[list[Case]]) -> list[int]:
    """The round trips in milliseconds for which the broker needs a proxy."""
    distances = set()
    for cases in work:
        for case in cases:
            if case.distance_ms is not None:
                distances.add(case.distance_ms)
    return sorted(distances)


def _measure_all(
    measurement: Measurement, work: list[list[Case]], report: Report, end: float, with_peers: bool
) -> None:
    """Measures cases as long as the next one is likely to fit in the time."""
    longest_s = 0.0
    for number, cases in enumerate(work):
        name = f"bench-{number}"
        for case in cases:
            began = time.monotonic()
            if began + longest_s > end:
                report.skipped.append(case.name)
                continue
            if case is cases[0]:
                topic = measurement.prepare(name, cases)
            report.add(measurement.measure(topic, case))
            if with_peers and case.name == PEERS_CASE:
                report.add_peers(peers.measure(measurement.kafka, name))
            longest_s = max(longest_s, time.monotonic() - began)
        if cases[0].name not in report.skipped:
            measurement.kafka.delete_topic(name)


def say(text: str) -> None:
    """Prints the progress with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _runs(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few: at least one run")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(
        prog="bench",
        description=__doc__,
        epilog=f"Cases: {', '.join(names)}. Quick ones: {', '.join(each.name for each in CASES if each.quick)}."
        f" kafka-tuned: {', '.join(map('='.join, TUNING.items()))}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("cases", nargs="*", choices=[*names, []], metavar="CASE", help="run only these cases")
    add("--quick", action="store_true", help=f"run few cases with {QUICK_SHARE:.0%}% of the records")
    add("--peers", action="store_true", help=f"with the case {PEERS_CASE}, also measure other clients")
    add("--only", choices=["ours"], help="measure kafka-group only, without the JVM connector")
    add("--bars", action="store_true", help="measure what a release must reach, near and far")
    add(
        "--runs",
        type=_runs,
        default=RUNS,
        metavar="N",
        help="number of measured runs of each source, whose median counts (default: %(default)s)",
    )
    add("--share", type=float, metavar="PART", help="fraction of the records (default: 1.0 without --quick)")
    add(
        "--minutes",
        type=float,
        help=f"maximum duration in minutes (default: {FULL_MINUTES:.0f}, with --quick {QUICK_MINUTES:.0f})",
    )
    add(
        "--output",
        type=Path,
        default=Path("build/bench"),
        metavar="DIR",
        help="directory for the results (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
