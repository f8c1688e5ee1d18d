"""pytest fixtures for tests of streaming jobs; pytest loads them where this package is installed (see docs/testing.md).

The plugin imports, starts and writes nothing before a test requests a fixture. All fixtures except
``run_available_now`` and ``await_query_end`` begin with ``embedded_kafka`` or ``kafka``, so that they do not clash with
the fixtures of your project.
"""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_group_source.testing.kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def embedded_kafka_arguments() -> dict[str, Any]:
    """Arguments of the session's EmbeddedKafka, such as ``version`` and ``config``. Override this to change them."""
    return {}


@pytest.fixture(scope="session")
def embedded_kafka(embedded_kafka_arguments: dict[str, Any]) -> Iterator[EmbeddedKafka]:
    """A real Kafka for all tests of the session: address, topics, records and groups."""
    from spark_group_source.testing.kafka import EmbeddedKafka

    _import_kafka_quietly()
    embedded = EmbeddedKafka(**embedded_kafka_arguments)
    with contextlib.closing(embedded):
        with _fail_without_traceback():
            embedded.open()
        yield embedded


@pytest.fixture(scope="session")
def kafka_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local Spark for all tests of the session, with the source registered."""
    from spark_group_source.testing.spark import local_spark

    _import_kafka_quietly()
    with contextlib.ExitStack() as closing:
        with _fail_without_traceback():
            session = closing.enter_context(local_spark(tmp_path_factory.mktemp("warehouse")))
        yield session


@pytest.fixture
def kafka_topic(embedded_kafka: EmbeddedKafka) -> Callable[..., str]:
    """Creates topics that no other test uses: ``kafka_topic(partitions=4)`` returns the name."""

    def create(partitions: int = 1, *, prefix: str = "topic", config: Mapping[str, str] | None = None) -> str:
        return embedded_kafka.create_topic(_unique(prefix), partitions, config)

    return create


@pytest.fixture
def kafka_group() -> str:
    """A group id that no other test uses."""
    return _unique("group")


@pytest.fixture
def kafka_checkpoint(tmp_path: Path) -> str:
    """A directory for a query's checkpoint, new for each test."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def run_available_now(
    embedded_kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., DataFrame]:
    """Runs a streaming DataFrame until it ends, and returns its rows as a batch DataFrame.

    ``run_available_now(frame, checkpoint=..., *, output_mode="append", timeout=120)``: without ``checkpoint`` each run
    has a new checkpoint. See :func:`spark_group_source.testing.runs.run_available_now`.
    """
    from spark_group_source.testing import runs

    def run(frame: DataFrame, checkpoint: str | Path | None = None, **options: Any) -> DataFrame:
        if checkpoint is None:
            checkpoint = tmp_path_factory.mktemp("checkpoint")
        return runs.run_available_now(frame, checkpoint, embedded_kafka, **options)

    return run


@pytest.fixture
def await_query_end(embedded_kafka: EmbeddedKafka) -> Callable[..., None]:
    """Waits until a query that a job has started ends: ``await_query_end(query, timeout=120)``.

    If the query does not end in time, the fixture stops it, and the error says what the query waited for.
    """
    from spark_group_source.testing import runs

    def wait(query: StreamingQuery, timeout: float = runs.RUN_TIMEOUT_S) -> None:
        runs.await_end(query, embedded_kafka, timeout)

    return wait


def _import_kafka_quietly() -> None:
    """Imports kafka-python without its hundreds of warnings about the deprecated way in which it reads schemas."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer  # noqa: F401

        import spark_group_source.group.consumer.messages  # noqa: F401


def _unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def _fail_without_traceback() -> Iterator[None]:
    """Fails every test that requests the fixture, and never skips one. The failure says what is missing."""
    from spark_group_source.testing.errors import EmbeddedKafkaError, LocalSparkError

    try:
        yield
    except (EmbeddedKafkaError, LocalSparkError) as error:
        pytest.fail(str(error), pytrace=False)
