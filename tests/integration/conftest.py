"""Spark for the integration tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import BRIEF
from tests.integration import secured as secured_kafka
from tests.integration.query_process import QueryProcess, source_options

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def environment() -> None:
    """Of Spark, and of the processes that tests start: they see this tree, installed or not, and a quiet console."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_CONF_DIR"] = str(REPOSITORY / "conf")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{BRIEF} -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(kafka_spark: SparkSession) -> SparkSession:
    """A local Spark with the source registered, for all tests of the session."""
    return kafka_spark


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[secured_kafka.Secured]:
    """A Kafka with TLS, SASL and an authorizer, for all tests of the session."""
    with secured_kafka.running(tmp_path_factory.mktemp("certificates")) as running:
        yield running


@pytest.fixture
def query(kafka: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Callable[..., QueryProcess]]:
    """Makes runs of queries of the test's group: ``query(topic, checkpoint=..., available_now=..., **options)``."""
    made: list[QueryProcess] = []

    def make(topic: str, checkpoint: str = "", available_now: bool = False, **more: str) -> QueryProcess:
        options = source_options(kafka, topic, group, **more)
        work = tmp_path / f"run-{len(made)}"
        made.append(QueryProcess(work, options, tmp_path / checkpoint if checkpoint else None, available_now))
        return made[-1]

    yield make
    for each in made:
        each.kill()
