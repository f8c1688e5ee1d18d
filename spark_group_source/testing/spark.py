"""A small local Spark session with the source registered."""

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
    # With the default of 200, each aggregation has 200 tasks.
    "spark.sql.shuffle.partitions": "2",
    # Expected times must not depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # In a VPN or offline, a machine often cannot reach itself by its own name.
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.extraJavaOptions": f"{BRIEF} -XX:+UseSerialGC",
    # Without a timeout, Spark waits forever for a query that does not stop.
    "spark.sql.streaming.stopTimeout": "60s",
}


@contextlib.contextmanager
def local_spark(warehouse: Path) -> Iterator[SparkSession]:
    """Yields a session with ``local[2]`` and stops it after the block. An active session is used and kept.

    The session's Python processes find the same modules as this process.

    Args:
        warehouse: directory for tables.

    Raises:
        EmbeddedKafkaError: Java is missing.
        LocalSparkError: PySpark is missing, or Spark does not start.
    """
    command = java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise LocalSparkError(
            f"PySpark cannot be imported: {error}.", 'pip install "spark_group_source[spark,testing]"'
        ) from error
    running = SparkSession.getActiveSession()
    session = running
    if session is None:
        session = _start(warehouse, command)
    register(session)
    try:
        yield session
    finally:
        if running is None:
            _stop(session)


def _start(warehouse: Path, command: str) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tests").config(map=SETTINGS)
    with mock.patch.dict(os.environ, _environment()):
        try:
            return builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
        except PySparkRuntimeError as error:
            raise LocalSparkError(
                f"Spark did not start with {command}: {error}.",
                "Spark needs Java 17 or later. Java's own message is on stderr.",
            ) from error


def _environment() -> dict[str, str]:
    """Variables for Spark's processes, which inherit the environment, but not the ``sys.path`` of this process."""
    paths = os.pathsep.join(dict.fromkeys(os.path.abspath(each) for each in sys.path))
    return {"PYTHONPATH": paths, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


def _stop(session: SparkSession) -> None:
    session.stop()
    with warnings.catch_warnings():
        # Later tests must not fail because PySpark leaves sockets open.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
