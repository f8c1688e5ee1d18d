"""Producers of three clients with one interface: Java's own, librdkafka's and kafka-python's.

The Java producer runs through py4j, whose jar PySpark ships, so a JRE is enough.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Producer
from kafka import KafkaProducer
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from spark_group_source.testing.ivy import BRIEF, java
from spark_group_source.testing.kafka import EmbeddedKafka

LINGER_MS = 200
"""Long enough that records before a flush form one batch."""
OPEN_MS = 900_000
"""Timeout of open transactions: the maximum that brokers allow, so that they stay open during the tests."""
TIMEOUT_S = 90.0


class Record(NamedTuple):
    """A record to write; the timestamp is in milliseconds, or ``None`` if the broker sets it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = 1_700_000_000_123


class Writer(Protocol):
    """A producer. With a transactional id, call :meth:`begin` before :meth:`send`."""

    def send(self, topic: str, partition: int, record: Record) -> None: ...
    def flush(self) -> None: ...
    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class JavaWriter:
    """``org.apache.kafka.clients.producer.KafkaProducer`` in ``jvm``."""

    def __init__(self, jvm: Any, servers: str, codec: str, transactional_id: str | None) -> None:
        self._jvm = jvm
        config = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": LINGER_MS}
        if transactional_id is not None:
            config |= {"transactional.id": transactional_id, "transaction.timeout.ms": OPEN_MS}
        given = jvm.java.util.HashMap()
        for name, value in config.items():
            given.put(name, value)
        serializer = jvm.org.apache.kafka.common.serialization.ByteArraySerializer
        self._producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(given, serializer(), serializer())
        if transactional_id is not None:
            self._producer.initTransactions()
        self.flush = self._producer.flush
        self.begin = self._producer.beginTransaction
        self.commit = self._producer.commitTransaction
        self.abort = self._producer.abortTransaction

    def send(self, topic: str, partition: int, record: Record) -> None:
        headers = self._jvm.org.apache.kafka.common.header.internals.RecordHeaders()
        for key, value in record.headers:
            headers.add(key, value)
        made = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._producer.send(made(topic, partition, record.timestamp, record.key, record.value, headers))

    def close(self) -> None:
        self._producer.close(self._jvm.java.time.Duration.ZERO)


class LibrdkafkaWriter:
    """``confluent_kafka.Producer``."""

    def __init__(self, servers: str, codec: str, transactional_id: str | None) -> None:
        config = {"bootstrap.servers": servers, "compression.type": codec, "linger.ms": LINGER_MS}
        if transactional_id is not None:
            config |= {"transactional.id": transactional_id, "transaction.timeout.ms": OPEN_MS}
        self._producer = Producer(config)
        if transactional_id is not None:
            self._producer.init_transactions(TIMEOUT_S)

    def send(self, topic: str, partition: int, record: Record) -> None:
        given: dict[str, Any] = {"headers": list(record.headers), "timestamp": record.timestamp}
        self._producer.produce(topic, record.value, record.key, partition, **given)

    def flush(self) -> None:
        assert self._producer.flush(TIMEOUT_S) == 0, "not all was written in time"

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)

    def close(self) -> None:
        self._producer.purge()


class KafkaPythonWriter:
    """``kafka.KafkaProducer``."""

    def __init__(self, servers: str, codec: str, transactional_id: str | None) -> None:
        config: dict[str, Any] = {"bootstrap_servers": servers, "linger_ms": LINGER_MS}
        config["compression_type"] = None if codec == "none" else codec
        if transactional_id is not None:
            config |= {"transactional_id": transactional_id, "transaction_timeout_ms": OPEN_MS}
        self._producer = KafkaProducer(**config)
        if transactional_id is not None:
            self._producer.init_transactions()
        self.begin: Callable[[], None] = self._producer.begin_transaction
        self.commit: Callable[[], None] = self._producer.commit_transaction
        self.abort: Callable[[], None] = self._producer.abort_transaction

    def send(self, topic: str, partition: int, record: Record) -> None:
        key, value, headers, timestamp = record
        self._producer.send(topic, value, key, list(headers), partition, timestamp)

    def flush(self) -> None:
        self._producer.flush(TIMEOUT_S)

    def close(self) -> None:
        self._producer.close(TIMEOUT_S)


PRODUCERS = ("java", "librdkafka", "kafka-python")
Open = Callable[[str, str, str | None], Writer]


@contextlib.contextmanager
def writers(kafka: EmbeddedKafka) -> Iterator[Open]:
    """Yields a function that opens writers by producer, codec and transactional id; closes them all at the end."""
    servers = kafka.bootstrap_servers
    with contextlib.ExitStack() as closing:
        jvm = closing.enter_context(_jvm(kafka.libs))

        def opened(producer: str, codec: str, transactional_id: str | None = None) -> Writer:
            found: Writer
            if producer == "java":
                found = JavaWriter(jvm, servers, codec, transactional_id)
            else:
                kind = LibrdkafkaWriter if producer == "librdkafka" else KafkaPythonWriter
                found = kind(servers, codec, transactional_id)
            closing.callback(found.close)
            return found

        yield opened


@contextlib.contextmanager
def _jvm(libs: Path) -> Iterator[Any]:
    """Starts a JVM with Kafka's client, which ends with this process at the latest."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    (jar,) = Path(spark.origin).parent.glob("jars/py4j-*.jar")
    port = launch_gateway(jarpath=str(jar), classpath=f"{libs}/*", die_on_exit=True, java_path=java(), javaopts=[BRIEF])
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
