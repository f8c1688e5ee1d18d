"""Spark for the integration tests."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_group_source import register
from tests.integration import secured as secured_kafka

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with the source registered. Its Python processes see this tree, installed or not."""
    # The workers and the stream runner are processes of their own: they inherit the environment, not sys.path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_CONF_DIR"] = str(REPOSITORY / "conf")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    register(session)
    yield session
    session.stop()
    with warnings.catch_warnings():
        # What it leaves unclosed is not to be found in later tests.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[secured_kafka.Secured]:
    """A Kafka with TLS, SASL and an authorizer, for all tests of the session."""
    with secured_kafka.running(tmp_path_factory.mktemp("certificates")) as running:
        yield running
