"""A real Kafka cluster in child processes, for as long as a ``with`` block."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spark_group_source.clock import Deadline
from spark_group_source.testing.broker import java_command
from spark_group_source.testing.cluster import Cluster
from spark_group_source.testing.errors import EmbeddedKafkaError, RowError
from spark_group_source.testing.groups import GroupMember, GroupPartition, parse_members, parse_partitions
from spark_group_source.testing.java import BRIEF
from spark_group_source.testing.rows import Row, records

if TYPE_CHECKING:
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient, OffsetSpec
    from pyspark.sql import DataFrame

TOOL_TIMEOUT_S = 60.0
COORDINATOR_TIMEOUT_S = 60.0
POLL_S = 0.1
PRODUCE_TIMEOUT_S = 60.0
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OLD_GROUP_COMMAND = "kafka.admin.ConsumerGroupCommand"
"""Its name before Kafka 3.8."""


class EmbeddedKafka(Cluster):
    """A Kafka cluster of this machine's own, on free ports of the loopback address; not safe for several threads.

    Entering fetches Kafka where it is not cached yet (see :mod:`spark_group_source.testing.ivy`), starts it and waits
    until it answers. Leaving stops it and deletes all it wrote; so does the end of this process, however it comes.

    Args:
        brokers: nodes; each is broker and controller, so the cluster survives the loss of less than half of them.
        config: broker properties over those of ``broker.properties``; ``{node}`` in a value is the node's number.
        listeners: further listeners by security protocol (``SASL_PLAINTEXT``, ``SSL``, ``SASL_SSL``), each on a port
            of its own; what they need otherwise goes into ``config``.
        version: of Kafka.
        heap: of each node.
    """

    def __enter__(self) -> EmbeddedKafka:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Topics and records

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None, replication: int = -1
    ) -> str:
        """Creates a topic, on all nodes but at most 3 of them, waits until it can be used, and returns its name."""
        from kafka.admin import NewTopic

        with self.admin() as admin:
            topic = NewTopic(name, partitions, replication, topic_configs=dict(config or {}))
            admin.create_topics([topic], wait_for_metadata=True)
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic."""
        with self.admin() as admin:
            admin.delete_topics([name])

    def topics(self) -> list[str]:
        """Names of all topics but Kafka's internal ones, sorted."""
        with self.admin() as admin:
            return sorted(each for each in admin.list_topics() if not each.startswith("__"))

    def produce(
        self,
        topic: str | None,
        rows: Iterable[Row] | DataFrame,
        partition: int | None = None,
        **config: object,
    ) -> list[tuple[int, int]]:
        """Writes rows and waits until the broker has them all.

        Args:
            topic: where to, whatever the rows say; None where each of them says it.
            rows: values, tuples in the order key, value, headers, timestamp, partition, topic, or dicts with some of
                these; or a Spark DataFrame with columns of these names, as Spark's Kafka sink takes them. See
                :func:`spark_group_source.testing.rows.records`.
            partition: writes all of them there; otherwise the row, its key, or chance, decide.
            config: of kafka-python's ``KafkaProducer``, for example ``compression_type="zstd"``.

        Returns:
            Partition and offset of each, in the order of ``rows``.

        Raises:
            RowError: a row cannot be written; those before it may have been.
        """
        sent = []
        with self.producer(**config) as producer:
            for each in records(rows):
                if (to := topic or each.topic) is None:
                    raise RowError("A row names no topic.", "Name one for all rows, or give each a topic.")
                place = each.partition if partition is None else partition
                sent.append(producer.send(to, each.value, each.key, list(each.headers), place, each.timestamp))
            producer.flush(PRODUCE_TIMEOUT_S)
        done = [each.get(PRODUCE_TIMEOUT_S) for each in sent]
        return [(each.partition, each.offset) for each in done]

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The next offset to be written of each partition of a topic."""
        from kafka.admin import OffsetSpec

        return self._offsets(topic, OffsetSpec.LATEST)

    def _offsets(self, topic: str, spec: OffsetSpec) -> dict[int, int]:
        from kafka import TopicPartition

        with self.admin() as admin:
            partitions = admin.describe_topics([topic])[0]["partitions"]
            asked = {TopicPartition(topic, each["partition_index"]): spec for each in partitions}
            found = admin.list_partition_offsets(asked)
        return {tp.partition: each.offset for tp, each in sorted(found.items())}

    # Consumer groups, as Kafka's own tools and requests show them

    def consumer_groups(self, *arguments: str) -> str:
        """What Kafka's own ``kafka-consumer-groups`` prints, for example for ``"--list"``; takes about 2 s.

        Raises:
            EmbeddedKafkaError: it ended with an error, with its output.
        """
        arguments = ("--bootstrap-server", self.bootstrap_servers, *arguments)
        main = OLD_GROUP_COMMAND if self.version < (3, 8) else GROUP_COMMAND
        command = java_command(
            self.libs, "256m", main, arguments, BRIEF, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        said = done.stdout.strip()
        # It ends with 0 even where the group does not exist or no broker answers.
        if done.returncode != 0 or said.startswith("Error:"):
            reason = said or done.stderr.strip()
            raise EmbeddedKafkaError(f"kafka-consumer-groups {' '.join(arguments)} failed: {reason}")
        return said

    def describe_group(self, group: str) -> list[GroupPartition]:
        """Position, end, lag and owner of every partition of a group, as Kafka's tool tells them; takes about 2 s."""
        return parse_partitions(self.consumer_groups("--describe", "--group", group))

    def describe_members(self, group: str) -> list[GroupMember]:
        """The members of a group and what they own, as Kafka's tool tells them; takes about 2 s."""
        return parse_members(self.consumer_groups("--describe", "--group", group, "--members", "--verbose"))

    def group_state(self, group: str) -> str:
        """``Stable``, ``Empty``, ``PreparingRebalance``, ...; ``Dead`` where there is none of that id. Fast."""
        return str(self._ask_coordinator(lambda admin: admin.describe_groups([group]))[group]["group_state"])

    def members(self, group: str) -> list[GroupMember]:
        """The members of a group that is not rebalancing, by a plain request; fast enough to poll."""
        found = self._ask_coordinator(lambda admin: admin.describe_groups([group]))[group]["members"]
        return [
            GroupMember(each["member_id"], each["client_id"], _partitions(each["member_assignment"])) for each in found
        ]

    def committed(self, group: str, topic: str | None = None) -> dict[tuple[str, int], int]:
        """The committed offset of each (topic, partition) of a group, or of one topic; fast enough to poll."""
        offsets = self._ask_coordinator(lambda admin: admin.list_group_offsets(group))[group]
        return {
            (tp.topic, tp.partition): each.offset for tp, each in sorted(offsets.items()) if topic in (None, tp.topic)
        }

    def lag(self, group: str, topic: str) -> dict[int, int]:
        """How many offsets of each partition of a topic the group has still to read; fast enough to poll.

        Where it has committed nothing: all that are there.
        """
        from kafka.admin import OffsetSpec

        # Before the ends: what comes in between makes the lag larger, and 0 means that all was read.
        committed = self.committed(group, topic)
        begins, ends = self._offsets(topic, OffsetSpec.EARLIEST), self.end_offsets(topic)
        return {number: end - committed.get((topic, number), begins[number]) for number, end in ends.items()}

    def active_groups(self) -> list[str]:
        """Ids of the groups that have members now, or had some a moment ago; fast."""
        with self.admin() as admin:
            found = admin.list_groups()
        return sorted(each["group_id"] for each in found if each["group_state"] not in ("Empty", "Dead"))

    def _ask_coordinator(self, ask: Callable[[KafkaAdminClient], Any]) -> Any:
        """Asks again while the coordinator is not there yet: at a group's first use, and after a restart."""
        from kafka.errors import KafkaError

        deadline = Deadline.after(COORDINATOR_TIMEOUT_S)
        while True:
            try:
                with self.admin() as admin:
                    return ask(admin)
            except KafkaError as error:
                if not error.retriable or deadline.expired():
                    raise
            time.sleep(POLL_S)

    # Clients of kafka-python

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """kafka-python's admin client, connected."""
        from kafka.admin import KafkaAdminClient

        client = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
        try:
            yield client
        finally:
            client.close()

    @contextlib.contextmanager
    def producer(self, **config: object) -> Iterator[KafkaProducer]:
        """kafka-python's producer, connected; ``config`` is its own."""
        from kafka import KafkaProducer

        client = KafkaProducer(**{"bootstrap_servers": self.bootstrap_servers.split(","), "linger_ms": 5, **config})
        try:
            yield client
        finally:
            client.close(timeout=PRODUCE_TIMEOUT_S)


def _partitions(assignment: Mapping[str, Any] | bytes | None) -> int:
    """Partitions in a member's assignment as kafka-python decodes it: none at all while the group rebalances."""
    topics = assignment["assigned_partitions"] if isinstance(assignment, Mapping) else ()
    return sum(len(each["partitions"]) for each in topics)
