"""Spark for the integration tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_group_source.testing import EmbeddedKafka
from tests.integration import class_data, job_process
from tests.integration import secured as secured_kafka
from tests.integration.query_process import TIMEOUT_S, Place, PlainQuery, QueryProcess, eventually, source_options

Stream = Callable[..., DataFrame]
Read = Callable[..., "Reader"]


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    """Makes Spark and all child processes find this tree, start soon, and log little to the console."""
    os.environ |= job_process.environment()
    with class_data.used():
        yield


@pytest.fixture(scope="session")
def spark(kafka_spark: SparkSession) -> SparkSession:
    """A local Spark with the source registered, for all tests of the session."""
    return kafka_spark


@pytest.fixture
def stream(spark: SparkSession, kafka: EmbeddedKafka, group: str) -> Stream:
    """Loads a stream of the test's group: ``stream(topic, **options)``."""

    def load(topic: str, **more: str) -> DataFrame:
        return spark.readStream.format("kafka-group").options(**source_options(kafka, topic, group, **more)).load()

    return load


class Reader:
    """A query in the tests' own Spark, with places and values of its completed batches. To kill a query, use ``query``.

    A batch fails after it was read if it is to, and does not end before ``may_end`` is set.
    """

    def __init__(
        self, frame: DataFrame, checkpoint: Path, held: bool = False, failing: bool = False, **trigger: Any
    ) -> None:
        self.places: list[Place] = []
        self.values: list[str] = []
        self.read_by_held: list[Place] = []
        self.may_end = threading.Event()
        if not held:
            self.may_end.set()
        self._failing = failing
        writer = frame.writeStream.foreachBatch(self._batch).option("checkpointLocation", str(checkpoint))
        self.query: StreamingQuery = (writer.trigger(**trigger) if trigger else writer).start()

    def _batch(self, batch: DataFrame, number: int) -> None:
        rows = sorted(batch.select("partition", "offset", "value").collect())
        if self._failing:
            raise ValueError("this batch fails")
        places = [(row.partition, row.offset) for row in rows]
        if not self.may_end.is_set():
            self.read_by_held = places
            self.may_end.wait()
        self.places += places
        self.values += [row.value.decode() for row in rows]

    def to_end(self) -> Reader:
        """Waits until the run ends in order."""
        assert self.query.awaitTermination(round(TIMEOUT_S)), "the run did not end"
        return self

    def error(self) -> str:
        """Waits for the error that the query ends with."""
        eventually(lambda: not self.query.isActive, what="the end of the query")
        return str(self.query.exception())

    def stop(self) -> None:
        self.may_end.set()
        self.query.stop()


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Starts queries that end with the test: ``read(stream(topic), **trigger)``; see ``Reader``."""
    readers: list[Reader] = []

    def begin(frame: DataFrame, checkpoint: str = "", **how: Any) -> Reader:
        readers.append(Reader(frame, tmp_path / (checkpoint or f"checkpoint-{len(readers)}"), **how))
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
    """Starts runs of queries of the test's group, each with its own driver: see ``QueryProcess``."""
    made: list[QueryProcess] = []

    def begin(topic: str, more: dict[str, str] | None = None, **how: Any) -> QueryProcess:
        options = source_options(kafka, topic, group, **more or {})
        made.append(QueryProcess(tmp_path / f"run-{len(made)}", options, **how))
        return made[-1]

    yield begin
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
