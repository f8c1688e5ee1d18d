"""What a task logs is on the stderr of its executor, which is that of its Python worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOG = """
import logging
{before}
from spark_group_source.spark.worker_log import warn_on_stderr
warn_on_stderr()
warn_on_stderr()
log = logging.getLogger("spark_group_source.fetch.task_timeout")
log.info("a retry")
log.warning("no broker")
logging.getLogger("py4j").warning("of another package")
"""


def stderr_of_worker(before: str = "") -> list[str]:
    command = [sys.executable, "-c", LOG.format(before=before)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr.splitlines()


def test_warnings_of_a_task_are_lines_as_spark_logs_them() -> None:
    ours, other = stderr_of_worker()
    time, rest = ours[:17], ours[17:]
    assert time.count("/") == time.count(":") == 2
    assert rest == " WARNING spark_group_source.fetch.task_timeout: no broker"
    assert other == "of another package"


@pytest.mark.parametrize(
    "configured",
    ["logging.basicConfig()", "logging.getLogger('spark_group_source').addHandler(logging.StreamHandler())"],
)
def test_logging_that_is_configured_stays_as_it_is(configured: str) -> None:
    assert sum("no broker" in line for line in stderr_of_worker(configured)) == 1
    assert not any(line.startswith("2") for line in stderr_of_worker(configured))
