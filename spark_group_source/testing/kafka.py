"""A real Kafka cluster in child processes, which lives for a ``with`` block."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spark_group_source.clock import Deadline
from spark_group_source.testing.broker_cluster import MAX_REPLICATION, BrokerCluster
from spark_group_source.testing.errors import EmbeddedKafkaError, RowError
from spark_group_source.testing.java import BRIEF, java_command
from spark_group_source.testing.rows import Record, Row, records

if TYPE_CHECKING:
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, OffsetSpec
    from pyspark.sql import DataFrame

    from spark_group_source.group.description import GroupDescription
    from spark_group_source.lag.client import GroupLagClient

TOOL_TIMEOUT_S = 60.0
COORDINATOR_TIMEOUT_S = 60.0
LEADERS_TIMEOUT_S = 300.0
POLL_S = 0.1
PRODUCE_TIMEOUT_S = 60.0
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OLD_GROUP_COMMAND = "kafka.admin.ConsumerGroupCommand"
"""The name of the class before Kafka 3.8."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, with the number of its partitions."""

    consumer_id: str
    client_id: str
    partitions: int


class EmbeddedKafka(BrokerCluster):
    """A Kafka cluster on free ports of the loopback address. Not thread-safe.

    Entering the block downloads Kafka if it is not cached yet (see :mod:`spark_group_source.testing.ivy`), starts it
    and waits until it is ready. Leaving the block stops Kafka and deletes its files, as does the end of this process,
    even by SIGKILL.

    Args:
        brokers: number of nodes. Each is broker and controller, so the cluster survives while more than half run.
        config: broker properties that override ``broker.properties``; ``{node}`` in a value is the node's number.
        listeners: further listeners by security protocol (``SASL_PLAINTEXT``, ``SSL``, ``SASL_SSL``), each on its own
            port; put their other properties into ``config``.
        version: Kafka's version.
        heap: heap of each node.
        jvm_flags: flags of each node's JVM. The default starts fast, and is slower under a high load.
    """

    # Kept from call to call: a new client costs more than most requests, and tests poll.
    _admin: KafkaAdminClient | None = None
    _producer: KafkaProducer | None = None
    _group_client: GroupLagClient | None = None

    def __enter__(self) -> EmbeddedKafka:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics and records

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replication: int = -1,
        *,
        exist_ok: bool = False,
    ) -> str:
        """Creates a topic with replicas on at most 3 nodes, waits until it is usable, and returns its name.

        With ``exist_ok`` a topic of this name stays as it is, whatever its partitions and configuration are. Otherwise
        it is an error (kafka-python's ``TopicAlreadyExistsError``).
        """
        from kafka import TopicPartition
        from kafka.admin import NewTopic, OffsetSpec

        if exist_ok and name in self.topics():
            return name
        brokers_have_default = self.version >= (2, 4)
        if replication < 0 and not brokers_have_default:
            replication = min(self._count, MAX_REPLICATION)
        configs: dict[str, str] = {}
        if config is not None:
            configs.update(config)
        topic = NewTopic(name, partitions, replication, topic_configs=configs)
        self._ask(lambda admin: admin.create_topics([topic], wait_for_metadata=True))
        # With thousands of partitions the metadata names the leaders long before their logs exist.
        specs = {TopicPartition(name, number): OffsetSpec.EARLIEST for number in range(partitions)}
        _retry(lambda: self._ask(lambda admin: admin.list_partition_offsets(specs)), LEADERS_TIMEOUT_S)
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic."""
        with self.admin() as admin:  # also forgets the kept producer, which knows the topic
            admin.delete_topics([name])

    def topics(self) -> list[str]:
        """Returns the names of all topics except Kafka's internal topics, sorted."""
        names = self._ask(lambda admin: admin.list_topics())
        return sorted([name for name in names if not name.startswith("__")])

    def produce(
        self, topic: str | None, rows: Iterable[Row] | DataFrame, partition: int | None = None, **config: object
    ) -> list[tuple[int, int]]:
        """Writes rows and waits until the broker has acknowledged all.

        Args:
            topic: the topic of all rows, or ``None`` if each row names its topic.
            rows: values, tuples in the order key, value, headers, timestamp, partition, topic, or dicts with some of
                these; or a Spark DataFrame with columns of these names, as for Spark's Kafka sink. See
                :func:`spark_group_source.testing.rows.records`.
            partition: the partition of all rows; by default the row, its key, or chance decides.
            config: settings of kafka-python's ``KafkaProducer``, for example ``compression_type="zstd"``.

        Returns:
            The partition and offset of each row, in the order of ``rows``.

        Raises:
            RowError: a row cannot be written; the rows before it may have been written.
        """
        chosen = self._kept_producer()
        if config:
            chosen = self.producer(**config)
        sent = []
        with chosen as producer:
            for row in records(rows):
                sent.append(_send(producer, topic, partition, row))
            producer.flush(PRODUCE_TIMEOUT_S)
        acknowledged = [future.get(PRODUCE_TIMEOUT_S) for future in sent]
        return [(record.partition, record.offset) for record in acknowledged]

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Returns the end offset of each partition of a topic."""
        from kafka.admin import OffsetSpec

        return self._offsets(topic, OffsetSpec.LATEST)

    def _offsets(self, topic: str, spec: OffsetSpec) -> dict[int, int]:
        from kafka import TopicPartition

        partitions = self._ask(lambda admin: admin.describe_topics([topic]))[0]["partitions"]
        specs = {TopicPartition(topic, each["partition_index"]): spec for each in partitions}
        offsets = self._ask(lambda admin: admin.list_partition_offsets(specs))
        return {tp.partition: each.offset for tp, each in sorted(offsets.items())}

    # Consumer groups, from Kafka's own tools and requests

    def consumer_groups(self, *arguments: str) -> str:
        """Returns the output of Kafka's ``kafka-consumer-groups``, for example for ``"--list"``; about 2 s.

        Raises:
            EmbeddedKafkaError: the tool failed; the text holds its output.
        """
        arguments = ("--bootstrap-server", self.bootstrap_servers, *arguments)
        main = GROUP_COMMAND
        if self.version < (3, 8):
            main = OLD_GROUP_COMMAND
        command = java_command(
            self.libs, "256m", main, arguments, BRIEF, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        )
        completed = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        output = completed.stdout.strip()
        # The tool exits with 0 even if the group does not exist or no broker responds.
        if completed.returncode != 0 or output.startswith("Error:"):
            reason = output
            if not reason:
                reason = completed.stderr.strip()
            raise EmbeddedKafkaError(f"kafka-consumer-groups {' '.join(arguments)} failed: {reason}")
        return output

    def group_state(self, group: str) -> str:
        """Returns ``Stable``, ``Empty``, ``PreparingRebalance``, ...; ``Dead`` if the group does not exist. Fast.

        Works with both group protocols.

        Raises:
            BrokerUnavailable: the group's coordinator does not answer within :data:`COORDINATOR_TIMEOUT_S`.
        """
        return self._describe(group).state

    def members(self, group: str) -> list[GroupMember]:
        """Returns the members of a group that is not rebalancing; fast enough to poll.

        Works with both group protocols.

        Raises:
            BrokerUnavailable: the group's coordinator does not answer within :data:`COORDINATOR_TIMEOUT_S`.
        """
        return [
            GroupMember(member.member_id, member.client_id, len(member.partitions))
            for member in self._describe(group).members
        ]

    def _describe(self, group: str) -> GroupDescription:
        """Describes a group as the source does, because kafka-python's admin client reports KIP-848 groups as dead."""
        from spark_group_source.lag.client import GroupLagClient

        if self._group_client is None or self._group_client.group != group:
            if self._group_client is not None:
                self._group_client.close()
            servers = {"kafka.bootstrap.servers": self.bootstrap_servers}
            options = {**servers, "kafka.group.id": group, "subscribePattern": ".*"}
            self._group_client = GroupLagClient(options, COORDINATOR_TIMEOUT_S)
        return self._group_client.describe()

    def committed(self, group: str, topic: str | None = None) -> dict[tuple[str, int], int]:
        """Returns the committed offset of each (topic, partition) of a group, or of one topic; fast enough to poll."""
        # The coordinator is not available yet at a group's first use, and after a restart.
        request = functools.partial(self._ask, lambda admin: admin.list_group_offsets(group))
        offsets = _retry(request, COORDINATOR_TIMEOUT_S)[group]
        committed = {}
        for tp in sorted(offsets):
            if topic is None or tp.topic == topic:
                committed[tp.topic, tp.partition] = offsets[tp].offset
        return committed

    def lag(self, group: str, topic: str) -> dict[int, int]:
        """Returns the group's lag in each partition of a topic; fast enough to poll.

        In a partition without a committed offset, the lag counts from the earliest offset.
        """
        from kafka.admin import OffsetSpec

        # Before the end offsets: records that arrive in between increase the lag, so 0 means that all were read.
        committed = self.committed(group, topic)
        begins, ends = self._offsets(topic, OffsetSpec.EARLIEST), self.end_offsets(topic)
        return {number: end - committed.get((topic, number), begins[number]) for number, end in ends.items()}

    def active_groups(self) -> list[str]:
        """Returns the ids of groups that have members now, or had members a moment ago; fast."""
        active = []
        for group in self._ask(lambda admin: admin.list_groups()):
            if group["group_state"] not in ("Empty", "Dead"):
                active.append(group["group_id"])
        return sorted(active)

    # Clients of kafka-python

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """Yields kafka-python's admin client, connected."""
        from kafka.admin import KafkaAdminClient

        self._forget_clients()  # their metadata may be older than what the caller changes
        client = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
        try:
            yield client
        finally:
            client.close()

    @contextlib.contextmanager
    def producer(self, **config: object) -> Iterator[KafkaProducer]:
        """Yields kafka-python's producer, connected; ``config`` overrides its settings."""
        client = self._new_producer(**config)
        try:
            yield client
        finally:
            client.close(timeout=PRODUCE_TIMEOUT_S)

    def _new_producer(self, **config: object) -> KafkaProducer:
        from kafka import KafkaProducer

        return KafkaProducer(**{"bootstrap_servers": self.bootstrap_servers.split(","), "linger_ms": 5, **config})

    def _ask(self, request: Callable[[KafkaAdminClient], Any]) -> Any:
        """Sends a request with the kept admin client. An error closes the client, which may be the cause."""
        from kafka.admin import KafkaAdminClient

        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
        try:
            return request(self._admin)
        except BaseException:
            self._forget_clients()
            raise

    @contextlib.contextmanager
    def _kept_producer(self) -> Iterator[KafkaProducer]:
        if self._producer is None:
            self._producer = self._new_producer()
        try:
            yield self._producer
        except BaseException:
            self._forget_clients()
            raise

    def _forget_clients(self) -> None:
        if self._admin is not None:
            self._admin.close()
        if self._producer is not None:
            self._producer.close(timeout=1)  # a dead broker never acknowledges what the producer still sends
        if self._group_client is not None:
            self._group_client.close()
        self._admin = self._producer = self._group_client = None


def _send(producer: KafkaProducer, topic: str | None, partition: int | None, row: Record) -> Any:
    """Sends a row to this topic and partition, or to the row's own; returns the future of the acknowledgement."""
    if topic is None:
        topic = row.topic
    if topic is None:
        raise RowError("A row names no topic.", "Name a topic for all rows, or in each row.")
    if partition is None:
        partition = row.partition
    return producer.send(topic, row.value, row.key, list(row.headers), partition, row.timestamp)


def _retry(request: Callable[[], Any], timeout_s: float) -> Any:
    """Sends a request again after an error that may pass, until the timeout."""
    from kafka.errors import KafkaError

    deadline = Deadline.after(timeout_s)
    while True:
        try:
            return request()
        except KafkaError as error:
            if not error.retriable or deadline.expired():
                raise
        time.sleep(POLL_S)
