"""Measures memory and CPU of a query's reader process for a long time: first idle, then with one batch a second.

    make soak                                   (half an hour of each)
    python jobs/soak.py --idle 4 --busy 4       (minutes)

The soak fails if the reader's memory grows by 5 % or more after the warm-up, or if the idle reader uses 2 % of a core.
It needs Linux, for /proc.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from spark_group_source import register
from spark_group_source.testing import EmbeddedKafka

GROWTH_LIMIT = 0.05
IDLE_CPU_LIMIT = 0.02
TOPIC, GROUP, PARTITIONS = "soak", "soak", 8
RECORDS_PER_SECOND = 100
RUNNER = b"python_streaming_source_runner"
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Sample:
    """Resident memory in MB and total CPU seconds of the reader process, at a time in seconds."""

    at: float
    rss: float
    cpu: float


def main(arguments: list[str] | None = None) -> int:
    """Runs the soak. Exit codes: 0 within the limits, 1 outside."""
    args = _parser().parse_args(arguments)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[1]").appName("soak").config("spark.ui.enabled", "false").getOrCreate()
    register(spark)
    with EmbeddedKafka() as kafka:
        kafka.create_topic(TOPIC, PARTITIONS)
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": GROUP, "subscribe": TOPIC}
        query = spark.readStream.format("kafka-group").options(**options).load().writeStream.format("noop").start()
        reader = _await_reader(kafka)
        idle = [_sample(reader) for _ in _seconds(args.idle)]
        busy = []
        with kafka.producer() as producer:
            for _ in _seconds(args.busy):
                for number in range(RECORDS_PER_SECOND):
                    producer.send(TOPIC, value=b"x" * 100, partition=number % PARTITIONS)
                producer.flush()
                busy.append(_sample(reader))
        batches = 0
        if query.lastProgress:
            batches = query.lastProgress.batchId + 1
        outcome = "did not fail"
        if query.exception():
            outcome = "failed"
        query.stop()
    spark.stop()
    print(f"batches: {batches}; the query {outcome}")
    idle_is_good = _judge("idle", idle, args.warm_up, IDLE_CPU_LIMIT)
    busy_is_good = _judge("busy", busy, args.warm_up, None)
    if outcome == "failed" or not idle_is_good or not busy_is_good:
        print("FAILED: memory grew, the idle reader used too much CPU, or the query failed")
        return 1
    print("passed")
    return 0


def _judge(phase: str, samples: list[Sample], warm_up: float, cpu_limit: float | None) -> bool:
    """Prints the result of a phase; returns whether it is within the limits."""
    warm = _after_warm_up(samples, warm_up)
    edge = max(1, len(warm) // 10)
    first, last = _median_rss(warm[:edge]), _median_rss(warm[-edge:])
    seconds = warm[-1].at - warm[0].at
    cpu = 0.0
    if seconds:
        cpu = (warm[-1].cpu - warm[0].cpu) / seconds
    growth = last / first - 1
    print(
        f"{phase}: memory {samples[0].rss:.1f} MB at first, {first:.1f} MB after the warm-up, {last:.1f} MB at the end"
        f" ({growth:+.1%} in {seconds / 60:.1f} min); {cpu:.1%} of a core"
    )
    if cpu_limit is not None and cpu >= cpu_limit:
        return False
    return growth < GROWTH_LIMIT


def _after_warm_up(samples: list[Sample], warm_up: float) -> list[Sample]:
    """The samples after the first ``warm_up`` minutes; all samples if the phase was shorter."""
    warm = []
    for sample in samples:
        if sample.at - samples[0].at >= warm_up * 60:
            warm.append(sample)
    return warm or samples


def _median_rss(samples: list[Sample]) -> float:
    return statistics.median(sample.rss for sample in samples)


def _await_reader(kafka: EmbeddedKafka) -> int:
    """The process id of the stream runner, after its query has joined the group."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        runner = _stream_runner()
        if runner is not None and kafka.group_state(GROUP) == "Stable":
            return runner
        time.sleep(0.2)
    raise TimeoutError(f"no reader was a member of the group within {START_TIMEOUT_S:.0f} s")


def _stream_runner() -> int | None:
    for pid in _descendants(os.getpid()):
        if RUNNER in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _descendants(child)


def _seconds(minutes: float) -> Iterator[None]:
    """Yields once a second for this time; slower if the caller takes longer."""
    end = time.monotonic() + minutes * 60
    while (began := time.monotonic()) < end:
        yield
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))


def _sample(pid: int) -> Sample:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    rss = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return Sample(time.monotonic(), rss, ticks / os.sysconf("SC_CLK_TCK"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--idle", type=float, default=30.0, metavar="MINUTES", help="minutes without records (default: %(default)s)"
    )
    parser.add_argument(
        "--busy",
        type=float,
        default=30.0,
        metavar="MINUTES",
        help="minutes with one batch a second (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        default=5.0,
        metavar="MINUTES",
        help="minutes to skip at the start of each (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
