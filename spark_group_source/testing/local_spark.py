"""A small Spark on this machine, with the source registered."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from spark_group_source import register
from spark_group_source.testing.errors import LocalSparkError
from spark_group_source.testing.java import BRIEF, java
from spark_group_source.testing.ports import HOST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: dict[str, bool | float | int | str | None] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The default of 200 makes 200 tasks of each aggregation.
    "spark.sql.shuffle.partitions": "2",
    # What is expected must not depend on where the tests run.
    "spark.sql.session.timeZone": "UTC",
    # By its name a machine is often not reachable for itself: in a VPN, or offline.
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.extraJavaOptions": f"{BRIEF} -XX:+UseSerialGC",
    # Without it a query that does not stop is waited for without end.
    "spark.sql.streaming.stopTimeout": "60s",
}


@contextlib.contextmanager
def local_spark(warehouse: Path) -> Iterator[SparkSession]:
    """A session with ``local[2]``, ended with the block; one that this process has already is used, and not ended.

    Its Python processes find the modules that this process finds now.

    Args:
        warehouse: directory for tables.

    Raises:
        EmbeddedKafkaError: there is no Java.
        LocalSparkError: there is no PySpark, or it does not start.
    """
    command = java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise LocalSparkError(
            f"PySpark cannot be imported: {error}.", 'pip install "spark_group_source[spark,testing]"'
        ) from error
    running = SparkSession.getActiveSession()
    session = running or _started(warehouse, command)
    register(session)
    try:
        yield session
    finally:
        if running is None:
            _stop(session)


def _started(warehouse: Path, command: str) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tests").config(map=SETTINGS)
    with mock.patch.dict(os.environ, _environment()):
        try:
            return builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
        except PySparkRuntimeError as error:
            raise LocalSparkError(
                f"Spark did not start with {command}: {error}.",
                "It needs Java 17 or later; what Java said about it is on stderr.",
            ) from error


def _environment() -> dict[str, str]:
    """For Spark's Java and Python processes: they inherit the environment, and not this process' ``sys.path``."""
    paths = os.pathsep.join(dict.fromkeys(os.path.abspath(each) for each in sys.path))
    return {"PYTHONPATH": paths, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


def _stop(session: SparkSession) -> None:
    session.stop()
    with warnings.catch_warnings():
        # What PySpark leaves unclosed is not to be found in tests that follow.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
