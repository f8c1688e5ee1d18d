"""The whole of it on one machine, in a few minutes: Kafka, 336,776 flights, a Spark job that is a member of a group.

Starts a real Kafka, runs jobs/group_to_parquet.py with spark-submit, shows the group with Kafka's own tool, and checks
what this project promises. Ends with an exit code other than 0 where a promise does not hold; leaves nothing behind.
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


class BrokenPromise(Exception):
    """Something that must hold after a step does not."""


def main() -> int:
    """Runs all steps; ends with 1 at the first that breaks a promise."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="flights-") as work:
            say("Starting a real Kafka on this machine (fetched from Maven Central the first time)")
            with EmbeddedKafka() as kafka:
                steps(kafka, Path(work))
    except (BrokenPromise, EmbeddedKafkaError, subprocess.CalledProcessError) as failure:
        print(f"\nDEMO FAILED: {failure}", file=sys.stderr)
        return 1
    say(f"All of it holds. {time.monotonic() - began:.0f} s")
    return 0


def steps(kafka: EmbeddedKafka, work: Path) -> None:
    """What the demo shows, in order."""
    output = work / "flights"
    say(f"Creating topic {TOPIC} with {PARTITIONS} partitions and writing {FLIGHTS:,} departures to it")
    kafka.create_topic(TOPIC, PARTITIONS, TOPIC_CONFIG)
    run_script("produce_flights.py", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", TOPIC)

    say(f"spark-submit copies them to Parquet, as a member of the consumer group {GROUP}")
    copy(kafka, output, work / "checkpoint-1", show_members=True)
    expect(rows(output) == FLIGHTS, f"{FLIGHTS:,} rows", f"{rows(output):,} rows")

    say("The report over the Parquet")
    if report.main([str(output), "--expect", str(FLIGHTS)]):
        raise BrokenPromise("flights are missing or there twice")

    say("The job has ended. What it has done is in the group, where Kafka's own kafka-consumer-groups sees it:")
    show_lag(kafka)

    say("The same job with a NEW checkpoint goes on where the group is: nothing is left to read")
    copy(kafka, output, work / "checkpoint-2")
    expect(rows(output) == FLIGHTS, "0 rows more", f"{rows(output) - FLIGHTS:,} rows more")

    say(f"{MORE:,} more departures, and once more a NEW checkpoint: those are read, and no others")
    more = ("--count", str(MORE), "--years-later", "1")
    run_script("produce_flights.py", "--bootstrap-servers", kafka.bootstrap_servers, "--topic", TOPIC, *more)
    copy(kafka, output, work / "checkpoint-3")
    counts = report.count(report.read(str(output)))
    expect(set(counts.values()) == {FLIGHTS + MORE}, f"{MORE:,} rows more, each once", f"{counts}")
    show_lag(kafka)


def copy(kafka: EmbeddedKafka, output: Path, checkpoint: Path, show_members: bool = False) -> None:
    """Runs the job over what is in the topic now, and shows the group's members meanwhile if asked."""
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
        raise BrokenPromise(f"the job did not end within {JOB_TIMEOUT_S:.0f} s") from error
    finally:
        job.kill()
        job.wait()
    expect(status == 0, "the job ended well", f"the job ended with exit code {status}")


def members_shown(kafka: EmbeddedKafka, job: subprocess.Popen[bytes]) -> bool:
    """Prints the group's members as Kafka's tool shows them, once there are some; false where the job ends first."""
    deadline = Deadline.after(JOB_TIMEOUT_S)
    while job.poll() is None and not deadline.expired():
        # Joined is not enough: a member owns something only when its group is through with the assignment.
        if kafka.group_state(GROUP) == "Stable":
            shown = kafka.consumer_groups("--describe", "--group", GROUP, "--members", "--verbose")
            if GROUP in shown:
                print(f"  while it runs, kafka-consumer-groups --describe --members says:\n{shown}\n", flush=True)
                return True
        time.sleep(POLL_S)
    return False


def show_lag(kafka: EmbeddedKafka) -> None:
    """Prints the group's positions as Kafka's tool shows them, and checks that nothing is left in any partition."""
    print(kafka.consumer_groups("--describe", "--group", GROUP), end="\n\n", flush=True)
    lags = {each.partition: each.lag for each in kafka.describe_group(GROUP)}
    expect(lags == dict.fromkeys(range(PARTITIONS), 0), f"lag 0 in all {PARTITIONS} partitions", f"lag {lags}")


def rows(output: Path) -> int:
    """Rows in the Parquet so far."""
    import pyarrow.dataset as ds

    return int(ds.dataset(output, format="parquet").count_rows())


def run_script(name: str, *arguments: str) -> None:
    """Runs one of the jobs that are plain Python."""
    subprocess.run([sys.executable, str(JOBS / name), *arguments], check=True, timeout=JOB_TIMEOUT_S)


def spark_submit(name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a job with the ``spark-submit`` of this Python, and this repository's ``conf``."""
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(JOBS.parent), os.environ.get("PYTHONPATH")])),
        "SPARK_CONF_DIR": str(JOBS.parent / "conf"),
    }
    command = [str(Path(sys.executable).parent / "spark-submit"), str(JOBS / name), *arguments]
    return subprocess.Popen(command, env=environment)


def expect(holds: bool, promise: str, seen: str) -> None:
    """Says that a promise holds, or ends the demo with what was seen instead."""
    if not holds:
        raise BrokenPromise(f"promised: {promise}; seen: {seen}")
    print(f"  ok: {promise}", flush=True)


def say(step: str) -> None:
    """Announces a step."""
    print(f"\n== {step}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
