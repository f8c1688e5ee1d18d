"""The death of a driver, of its JVM or of its Python process: its reader leaves, and no process is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration.job_process import spark_submit
from tests.integration.query_process import QueryProcess, eventually
from tests.integration.standing import caught_up, fill

Query = Callable[..., QueryProcess]


@pytest.mark.parametrize("held", [True, False], ids=["in mid-batch", "idle"])
@pytest.mark.parametrize(
    ("launcher", "victim", "number"),
    [
        ("python", "jvm", signal.SIGKILL),
        ("python", "python", signal.SIGKILL),
        ("spark-submit", "jvm", signal.SIGTERM),
        ("spark-submit", "jvm", signal.SIGKILL),
    ],
)
def test_when_the_driver_dies_the_reader_leaves_the_group_and_no_process_is_left(
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    group: str,
    query: Query,
    launcher: str,
    victim: str,
    number: signal.Signals,
    held: bool,
) -> None:
    name = topic(partitions=2)
    fill(kafka, name, 10)
    # So long a session that only a member which leaves is gone soon.
    run = query(name, **{"kafka.session.timeout.ms": "120000"})
    if held:
        run.hold()
    run.start(*([spark_submit()] if launcher == "spark-submit" else []))
    run.until(lambda: run.batches() if held else caught_up(kafka, name, group))
    processes = run.processes()
    assert run.reader() in processes
    os.kill(run.jvm() if victim == "jvm" else run.script(), number)
    took = eventually(lambda: kafka.group_state(group) == "Empty", 60, "leaving the group")
    run.release()
    ended = eventually(lambda: not run.processes(), 60, "the end of all processes")
    print(f"{launcher}, {number.name} of {victim}: left after {took:.1f} s, no process after {took + ended:.1f} s")


def test_when_the_jvm_dies_the_reader_leaves_also_while_its_run_waits_for_other_members(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, query: Query
) -> None:
    name = topic(partitions=4)
    fill(kafka, name, 20)
    slow = query(name).hold(0).start()
    slow.await_held(0)
    run = query(name, available_now=True).start()
    run.until(lambda: "the run waits for other members" in run.log())
    reader = run.reader()
    os.kill(run.jvm(), signal.SIGKILL)
    took = eventually(lambda: reader not in run.processes(), 60, "the end of the reader")
    print(f"the reader of a waiting run ended {took:.1f} s after its JVM")
    slow.release()
    eventually(lambda: caught_up(kafka, name, group))
