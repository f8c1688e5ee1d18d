"""Spark's standalone cluster on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark

from spark_group_source.testing.ports import HOST, free_ports
from spark_group_source.testing.watchdog import Watchdog
from tests.integration.query_process import eventually

SPARK_HOME = Path(pyspark.__file__).parent
SIZES = ("--conf", "spark.executor.cores=1", "--conf", "spark.executor.memory=512m", "--driver-memory", "512m")
"""Arguments of spark-submit with which each worker gets an executor."""


class Standalone:
    """A running cluster: ``url`` of its master, ``workers`` as processes of one core each."""

    def __init__(self, url: str, workers: list[subprocess.Popen[bytes]], applications: Path) -> None:
        self.url = url
        self.workers = workers
        self._applications = applications

    @property
    def submit(self) -> tuple[str, ...]:
        """Arguments of spark-submit."""
        return ("--master", self.url, *SIZES)

    def executors_stderr(self) -> str:
        """What the executors of all applications have written to stderr."""
        return "\n".join(each.read_text(errors="replace") for each in self._applications.glob("*/*/stderr"))


@contextlib.contextmanager
def running(work: Path, workers: int = 2) -> Iterator[Standalone]:
    """Runs a cluster for the block. Logs and unpacked files are in ``work``, which is deleted afterwards."""
    work.mkdir()
    watchdog = Watchdog(work)
    daemons: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        daemons.append(_start(work, name, *arguments))
        watchdog.watch(daemons[-1].pid)

    try:
        port, *_ = free_ports(1)
        start("master.Master", "--port", str(port))
        log = work / "master.Master.log"
        eventually(lambda: "I have been elected leader" in log.read_text(), what="a master")
        for _ in range(workers):
            sizes = ("--cores", "1", "--memory", "600m", "--work-dir", str(work / "apps"))
            start("worker.Worker", *sizes, f"spark://{HOST}:{port}")
        eventually(lambda: log.read_text().count("Registering worker") == workers, what="the workers")
        yield Standalone(f"spark://{HOST}:{port}", daemons[1:], work / "apps")
    finally:
        watchdog.close()
        for daemon in daemons:
            daemon.wait()


def _start(work: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    # Executors inherit this environment, and must not find this tree through it.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    # Spark's own log settings, because the expected lines are INFO.
    settings = {"SPARK_HOME": str(SPARK_HOME), "SPARK_CONF_DIR": str(work), "SPARK_DAEMON_MEMORY": "256m"}
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", HOST, "--webui-port", "0", *arguments]
    with (work / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env={**kept, **settings, "SPARK_LOCAL_IP": HOST}, stdout=log, stderr=log)
