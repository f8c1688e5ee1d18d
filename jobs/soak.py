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
        error, batches = query.exception(), query.lastProgress.batchId + 1 if query.lastProgress else 0
        query.stop()
    spark.stop()
    print(f"batches: {batches}; the query {'failed' if error else 'did not fail'}")
    good = [_judge("idle", idle, args.warm_up, IDLE_CPU_LIMIT), _judge("busy", busy, args.warm_up, None)]
    passed = all(good) and not error
    print("passed" if passed else "FAILED: memory grew, the idle reader used too much CPU, or the query failed")
    return 0 if passed else 1


def _judge(phase: str, samples: list[Sample], warm_up: float, cpu_limit: float | None) -> bool:
    """Prints the result of a phase; returns whether it is within the limits."""
    warm = [sample for sample in samples if sample.at - samples[0].at >= warm_up * 60] or samples
    edge = max(1, len(warm) // 10)
    first, last = (statistics.median(sample.rss for sample in part) for part in (warm[:edge], warm[-edge:]))
    seconds = warm[-1].at - warm[0].at
    cpu = (warm[-1].cpu - warm[0].cpu) / seconds if seconds else 0.0
    growth = last / first - 1
    print(
        f"{phase}: memory {samples[0].rss:.1f} MB at first, {first:.1f} MB after the warm-up, {last:.1f} MB at the end"
        f" ({growth:+.1%} in {seconds / 60:.1f} min); {cpu:.1%} of a core"
    )
    return growth < GROWTH_LIMIT and (cpu_limit is None or cpu < cpu_limit)


def _await_reader(kafka: EmbeddedKafka) -> int:
    """The process id of the stream runner, after its query has joined the group."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        runners = [pid for pid in _descendants(os.getpid()) if RUNNER in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if runners and kafka.group_state(GROUP) == "Stable":
            return runners[0]
        time.sleep(0.2)
    raise TimeoutError(f"no reader was a member of the group within {START_TIMEOUT_S:.0f} s")


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
