"""The Spark session that both sources share."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

import spark_group_source
from benchmark.rows_from_memory import RowsFromMemory

JOBS = Path(__file__).resolve().parents[1]
CONF = JOBS.parent / "conf"
CORES = 2
STDERR = 2


@contextlib.contextmanager
def spark_session(jars: list[Path], log: Path) -> Iterator[SparkSession]:
    """A local Spark with the sources registered; its processes write stderr to ``log``."""
    # Workers and stream runners are separate processes, which inherit the environment but not sys.path.
    package = Path(spark_group_source.__file__).parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(package), str(JOBS), os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_CONF_DIR"] = str(CONF)
    builder = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("bench")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .config("spark.sql.session.timeZone", "UTC")
    )
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    with _stderr_to(log):
        spark = builder.getOrCreate()
    try:
        spark_group_source.register(spark)
        spark.dataSource.register(RowsFromMemory)
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Processes started in this block write stderr to ``log``: Spark, and its workers through it."""
    sys.stderr.flush()
    original = os.dup(STDERR)
    with log.open("wb") as target:
        os.dup2(target.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(original, STDERR)
        os.close(original)
