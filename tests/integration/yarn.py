"""HDFS and YARN on this machine: Hadoop's own mini clusters in one process, which starts the containers of Spark."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from spark_group_source.testing.file_lock import file_lock
from spark_group_source.testing.ivy import ATTEMPTS, RESOLVE_TIMEOUT_S, cache_directory, fetch_jars
from spark_group_source.testing.java import BRIEF, java
from spark_group_source.testing.ports import HOST
from spark_group_source.testing.watchdog import Watchdog
from tests.integration.job_process import family, kill
from tests.integration.query_process import eventually

SPARK_HOME = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).with_name("YarnCluster.java")
ARTIFACTS = (
    # The mini clusters' own classes need all but the first.
    ("org.apache.hadoop", "hadoop-client-minicluster", ""),
    ("org.bouncycastle", "bcprov-jdk18on", "1.82"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
    ("org.bouncycastle", "bcutil-jdk18on", "1.82"),
    ("org.junit.jupiter", "junit-jupiter-api", "5.13.4"),
    ("org.junit.platform", "junit-platform-commons", "1.13.4"),
    ("org.opentest4j", "opentest4j", "1.3.0"),
)
"""Group, name and version, which is empty for that of PySpark's Hadoop. They have 67 MB; PySpark has the rest."""
MASTER, EXECUTOR = "org.apache.spark.deploy.yarn.ApplicationMaster", "YarnCoarseGrainedExecutorBackend"
"""In the command lines of the containers' JVMs."""


def hadoop_version() -> str:
    """Returns the version of Hadoop that PySpark contains."""
    (jar,) = SPARK_HOME.glob("jars/hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def has_compiler() -> bool:
    """Whether Java can run a source file."""
    described = subprocess.run([java(), "--describe-module", "jdk.compiler"], capture_output=True, check=False)
    return described.returncode == 0


def minicluster_jars() -> Path:
    """Returns the directory with the jars of Hadoop's mini clusters; downloads them once."""
    version = hadoop_version()
    jars = cache_directory() / f"hadoop-minicluster-{version}"
    jars.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(jars.with_suffix(".lock"), RESOLVE_TIMEOUT_S * ATTEMPTS):
        if not jars.is_dir():
            failure = fetch_jars(_ivy_module(version), jars, "hadoop-client-minicluster-*.jar")
            if failure:
                pytest.skip(f"Hadoop's mini clusters cannot be fetched from Maven Central: {failure}")
    return jars


def _ivy_module(version: str) -> str:
    lines = []
    for group, name, own in ARTIFACTS:
        attributes = f'org="{group}" name="{name}" rev="{own or version}" conf="default->default" transitive="false"'
        lines.append(f"<dependency {attributes}/>")
    head = '<ivy-module version="2.0"><info organisation="tests" module="yarn"/>'
    confs = '<configurations><conf name="default"/></configurations>'
    return f"{head}{confs}<dependencies>{''.join(lines)}</dependencies></ivy-module>"


class YarnCluster:
    """A running cluster, with its settings in ``work``."""

    def __init__(self, work: Path, process: subprocess.Popen[str]) -> None:
        self.work = work
        self._process = process
        self._known: set[int] = set()

    def environment(self) -> dict[str, str]:
        """The environment of spark-submit. It does not show this tree."""
        hidden = ("PYTHON", "PYSPARK", "SPARK")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return {**kept, "HADOOP_CONF_DIR": str(self.work), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST}

    def arguments(self, python: Path) -> list[str]:
        """The arguments of spark-submit for a small application whose containers run this Python."""
        settings = {
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",  # otherwise 450 MB are copied to HDFS
            "spark.yarn.am.waitTime": "300s",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.executor.memoryOverhead": "512m",
            "spark.driver.memory": "512m",
            "spark.driver.memoryOverhead": "512m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            **{f"spark.{each}.PYSPARK_PYTHON": str(python) for each in ("yarn.appMasterEnv", "executorEnv")},
            **{f"spark.{each}.SPARK_LOCAL_IP": HOST for each in ("yarn.appMasterEnv", "executorEnv")},
        }
        options = [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]
        return ["--master", "yarn", "--deploy-mode", "cluster", *options]

    def containers(self, of: str) -> list[int]:
        """The JVMs of the living containers whose command line has this text."""
        return [pid for pid, line in self._family().items() if of in line and _program(line) == "java"]

    def processes(self) -> dict[int, str]:
        """All processes of containers with their command lines, also orphans of killed ones."""
        return {pid: line for pid, line in self._family().items() if pid != self._process.pid}

    def _family(self) -> dict[int, str]:
        found = family(self._process.pid, *self._known)
        self._known |= found.keys()
        return found

    def logs(self) -> str:
        """What the containers have written; the error of a script is on the stdout of its container."""
        written = sorted(self.work.rglob("container_*/std*"))
        return "\n".join(f"{each}:\n{each.read_text(errors='replace')}" for each in written)

    def kill(self, application: str) -> None:
        """As ``yarn application -kill``."""
        assert self._process.stdin is not None
        print(application, file=self._process.stdin, flush=True)


def _program(line: str) -> str:
    """The name of the program of a command line. The shells of a container have its JVM's name in theirs as well."""
    return Path(line.partition(" ")[0]).name


@contextlib.contextmanager
def running(work: Path) -> Iterator[YarnCluster]:
    """Runs a cluster for the block. Everything of it is in ``work``, which is deleted afterwards."""
    if not has_compiler():
        pytest.skip("no Java compiler on this machine, which Hadoop's mini clusters need")
    jars = minicluster_jars()
    work.mkdir()
    watchdog = Watchdog(work)
    command = [java(), "-Xmx512m", "-XX:+UseSerialGC", BRIEF, "-cp", f"{jars}/*:{SPARK_HOME}/jars/*", str(PROGRAM)]
    log = work / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, str(work)], stdin=subprocess.PIPE, stdout=file, stderr=file, text=True, cwd=work
        )
    watchdog.watch(process.pid)
    cluster = YarnCluster(work, process)
    try:
        eventually(lambda: "\nready" in log.read_text() or process.poll() is not None, what="YARN")
        assert process.poll() is None, log.read_text()[-4000:]
        yield cluster
    finally:
        kill(process, *cluster.processes())
        process.communicate()
        watchdog.close()
        shutil.rmtree(work, ignore_errors=True)
