"""The death of a driver, of its JVM or of its Python process: its reader leaves, and no process is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Read, Stream
from tests.integration.job_process import spark_submit
from tests.integration.query_process import JVM, READER, QueryProcess, eventually
from tests.integration.standing import caught_up, fill

LEAVE_S = 90.0
"""In which a reader whose driver has died is gone from its group; seconds are normal. Less than the session."""

Query = Callable[..., QueryProcess]


@pytest.mark.parametrize(
    ("launcher", "victim", "number"),
    [
        (sys.executable, "jvm", signal.SIGKILL),
        pytest.param(sys.executable, "python", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(spark_submit(), "jvm", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(spark_submit(), "jvm", signal.SIGKILL, marks=pytest.mark.slow),
    ],
    ids=["python-jvm-killed", "python-python-killed", "spark-submit-jvm-ended", "spark-submit-jvm-killed"],
)
def test_when_the_driver_dies_busy_and_idle_readers_leave_their_groups_and_all_processes_end(
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    unique: Callable[[str], str],
    query: Query,
    group: str,
    launcher: str,
    victim: str,
    number: signal.Signals,
) -> None:
    name, idle = topic(partitions=2), unique("idle")
    fill(kafka, name, 10)
    # So long a session that only a member which leaves is gone soon.
    run = query(name, {"kafka.session.timeout.ms": "120000"}, launcher=launcher, beside=idle, held=True)
    run.until(lambda: run.batches() and caught_up(kafka, name, idle))
    assert len(run.processes(READER)) == 2
    assert run.log().count("commits each batch when Spark has completed it") == 2, "TMPDIR is long"
    os.kill(run.processes(JVM)[0] if victim == "jvm" else run.pid, number)
    took = eventually(lambda: {kafka.group_state(each) for each in (group, idle)} == {"Empty"}, LEAVE_S, "leaving")
    (run.work / "release").touch()
    ended = eventually(lambda: not run.processes(), what="the end of all processes")
    print(f"{number.name} of {victim}: left after {took:.1f} s, no process after {took + ended:.1f} s")


def test_when_the_jvm_dies_a_reader_that_waits_for_other_members_leaves_its_group(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, query: Query, stream: Stream, read: Read
) -> None:
    name = topic(partitions=4)
    fill(kafka, name, 20)
    slow = read(stream(name), held=True)
    eventually(lambda: slow.read_by_held)
    run = query(name, available_now=True)
    run.until(lambda: f"the run waits for tests-{name}" in run.log())
    (reader,) = run.processes(READER)
    os.kill(run.processes(JVM)[0], signal.SIGKILL)
    took = eventually(lambda: reader not in run.processes(), LEAVE_S, "the end of the reader")
    print(f"the reader of a waiting run ended {took:.1f} s after its JVM")
    slow.may_end.set()
    eventually(lambda: caught_up(kafka, name, group))
