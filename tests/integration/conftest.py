"""Spark for the integration tests."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source.testing import EmbeddedKafka
from tests.integration import class_data
from tests.integration import secured as secured_kafka
from tests.integration.query_process import Place, PlainQuery, QueryProcess, source_options

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Makes Spark and all child processes find this tree, start soon, and log little to the console."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with class_data.used():
        yield


@pytest.fixture(scope="session")
def spark(kafka_spark: SparkSession) -> SparkSession:
    """A local Spark with the source registered, for all tests of the session."""
    return kafka_spark


class Reader:
    """A query in the tests' own Spark, whose batches a test can keep from ending. To kill a query, use ``query``."""

    def __init__(self, spark: SparkSession, options: dict[str, str], held: bool = False) -> None:
        self.places: list[Place] = []
        self.read_by_held: list[Place] = []
        self.may_end = threading.Event()
        if not held:
            self.may_end.set()
        frame = spark.readStream.format("kafka-group").options(**options).load()
        self.query: StreamingQuery = frame.writeStream.foreachBatch(self._batch).start()

    def _batch(self, rows: DataFrame, number: int) -> None:
        places = [(row.partition, row.offset) for row in rows.select("partition", "offset").collect()]
        if not self.may_end.is_set():
            self.read_by_held = places
            self.may_end.wait()
        self.places += places

    def stop(self) -> None:
        self.may_end.set()
        self.query.stop()


@pytest.fixture
def start(spark: SparkSession, kafka: EmbeddedKafka, group: str) -> Iterator[Callable[..., Reader]]:
    """Starts a query of the test's group: ``start(topic, held=True, **options)``. All queries end with the test."""
    readers: list[Reader] = []

    def begin(topic: str, held: bool = False, **more: str) -> Reader:
        readers.append(Reader(spark, source_options(kafka, topic, group, **more), held))
        return readers[-1]

    yield begin
    for each in readers:
        each.stop()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[secured_kafka.Secured]:
    """A Kafka with TLS, SASL and an authorizer, for all tests of the session."""
    with secured_kafka.running(tmp_path_factory.mktemp("certificates")) as running:
        yield running


@pytest.fixture
def query(kafka: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Callable[..., QueryProcess]]:
    """Creates runs of queries of the test's group, each with its own driver: see ``QueryProcess``."""
    made: list[QueryProcess] = []

    def make(topic: str, available_now: bool = False, beside: str = "", **more: str) -> QueryProcess:
        work, options = tmp_path / f"run-{len(made)}", source_options(kafka, topic, group, **more)
        made.append(QueryProcess(work, options, available_now, beside))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.fixture
def plain(kafka: EmbeddedKafka, group: str, tmp_path: Path) -> Iterator[Callable[..., PlainQuery]]:
    """Starts queries of the test's group without Spark: ``plain(topic, checkpoint, *pause, **options)``."""
    made: list[PlainQuery] = []

    def begin(topic: str, checkpoint: str, *pause: str, **more: str) -> PlainQuery:
        options = source_options(kafka, topic, group, **more)
        made.append(PlainQuery(tmp_path / f"plain-{len(made)}", tmp_path / checkpoint, options, *pause))
        return made[-1]

    yield begin
    for each in made:
        each.kill()
