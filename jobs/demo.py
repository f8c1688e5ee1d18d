"""A demo on one machine in a few minutes: Kafka, 336,776 flights, and a Spark job in a consumer group.

The demo starts a real Kafka, runs jobs/group_to_parquet.py with spark-submit, and shows the group with Kafka's tool. It
checks the guarantees of this project; if a check fails, the exit code is not 0. The demo removes all its files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.errors import EmbeddedKafkaError

JOBS = Path(__file__).resolve().parent
sys.path.insert(0, str(JOBS))
import flights as report  # noqa: E402 -- the jobs are scripts, not a package
from produce_flights import FLIGHTS, SCHEMA  # noqa: E402

TOPIC, GROUP, PARTITIONS = "flights", "flights-archive", 8
MORE = 1_000
BATCH = 40_000
JOB_TIMEOUT_S = 300.0
POLL_S = 0.1

# Events of 2013 are past any retention, and Kafka starts a new file for each week of their time.
TOPIC_CONFIG = {"retention.ms": "-1", "segment.ms": str(2**63 - 1)}


class CheckFailed(Exception):
    """A check after a step failed."""


def main() -> int:
    """Runs all steps; returns 1 if a check fails."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="flights-") as work:
            say("Starting a real Kafka on this machine (the first time it is downloaded from Maven Central)")
            with EmbeddedKafka() as kafka:
                steps(kafka, Path(work))
    except (CheckFailed, EmbeddedKafkaError, subprocess.CalledProcessError) as failure:
        print(f"\nDEMO FAILED: {failure}", file=sys.stderr)
        return 1
    say(f"All checks passed. {time.monotonic() - began:.0f} s")
    return 0


def steps(kafka: EmbeddedKafka, work: Path) -> None:
    """The steps of the demo, in order."""
    output = work / "flights"
    say(f"Creating topic {TOPIC} with {PARTITIONS} partitions and writing {FLIGHTS:,} departures to it")
    kafka.create_topic(TOPIC, PARTITIONS, TOPIC_CONFIG)
    run_script("produce_flights.py", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", TOPIC)

    say(f"spark-submit copies them to Parquet, as a member of the consumer group {GROUP}")
    copy(kafka, output, work / "checkpoint-1", show_members=True)
    expect(rows(output) == FLIGHTS, f"{FLIGHTS:,} rows", f"{rows(output):,} rows")

    say("The report of the Parquet files")
    if report.main([str(output), "--expect", str(FLIGHTS)]):
        raise CheckFailed("flights are missing or duplicated")

    say("The job has ended. Kafka's own kafka-consumer-groups shows its committed offsets:")
    show_lag(kafka)

    say("The same job with a NEW checkpoint continues at the committed offsets: no records are left to read")
    copy(kafka, output, work / "checkpoint-2")
    expect(rows(output) == FLIGHTS, "0 more rows", f"{rows(output) - FLIGHTS:,} more rows")

    say(f"{MORE:,} more departures and another NEW checkpoint: the job reads only these")
    more = ("--count", str(MORE), "--years-later", "1")
    run_script("produce_flights.py", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", TOPIC, *more)
    copy(kafka, output, work / "checkpoint-3")
    counts = report.count(report.read(str(output)))
    expect(set(counts.values()) == {FLIGHTS + MORE}, f"{MORE:,} more rows, each once", f"{counts}")
    show_lag(kafka)


def copy(kafka: EmbeddedKafka, output: Path, checkpoint: Path, show_members: bool = False) -> None:
    """Runs the job up to the current end offsets; with ``show_members`` it prints the members while the job runs."""
    job = spark_submit(
        *("group_to_parquet.py", "--bootstrap-servers", kafka.bootstrap_servers),
        *("--topic", TOPIC, "--group", GROUP, "--output", str(output), "--checkpoint", str(checkpoint)),
        *("--trigger", "available-now", "--max-offsets-per-trigger", str(BATCH), "--schema", SCHEMA),
    )
    try:
        if show_members:
            expect(members_shown(kafka, job), "the running job is a member of the group", "no member was seen")
        status = job.wait(JOB_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(f"the job did not end within {JOB_TIMEOUT_S:.0f} s") from error
    finally:
        job.kill()
        job.wait()
    expect(status == 0, "the job succeeded", f"the job ended with exit code {status}")


def members_shown(kafka: EmbeddedKafka, job: subprocess.Popen[bytes]) -> bool:
    """Prints the members with Kafka's tool once the group is stable; false if the job ends first."""
    deadline = Deadline.after(JOB_TIMEOUT_S)
    while job.poll() is None and not deadline.expired():
        # A member that has joined owns partitions only when the rebalance is complete.
        if kafka.group_state(GROUP) == "Stable":
            shown = kafka.consumer_groups("--describe", "--group", GROUP, "--members", "--verbose")
            if GROUP in shown:
                print(f"  while the job runs, kafka-consumer-groups --describe --members shows:\n{shown}\n", flush=True)
                return True
        time.sleep(POLL_S)
    return False


def show_lag(kafka: EmbeddedKafka) -> None:
    """Prints the committed offsets with Kafka's tool, and checks that every partition has lag 0."""
    print(kafka.consumer_groups("--describe", "--group", GROUP), end="\n\n", flush=True)
    lags = kafka.lag(GROUP, TOPIC)
    expect(lags == dict.fromkeys(range(PARTITIONS), 0), f"lag 0 in all {PARTITIONS} partitions", f"lag {lags}")


def rows(output: Path) -> int:
    """The number of rows in the Parquet files."""
    import pyarrow.dataset as ds

    return int(ds.dataset(output, format="parquet").count_rows())


def run_script(name: str, *arguments: str) -> None:
    """Runs a script without Spark."""
    subprocess.run([sys.executable, str(JOBS / name), *arguments], check=True, timeout=JOB_TIMEOUT_S)


def spark_submit(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a job with the ``spark-submit`` of this Python and the ``conf`` of this repository."""
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(JOBS.parent), os.environ.get("PYTHONPATH")])),
        "SPARK_CONF_DIR": str(JOBS.parent / "conf"),
    }
    command = [str(Path(sys.executable).parent / "spark-submit"), str(JOBS / name), *arguments]
    return subprocess.Popen(command, env=environment)


def expect(passed: bool, expected: str, actual: str) -> None:
    """Prints that a check passed, or raises with the actual result."""
    if not passed:
        raise CheckFailed(f"expected: {expected}; actual: {actual}")
    print(f"  ok: {expected}", flush=True)


def say(step: str) -> None:
    """Prints the title of a step."""
    print(f"\n== {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
