"""Waits until a query ends, with a timeout; the error describes what the query waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_group_source.testing.errors import StuckQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_group_source.testing.kafka import EmbeddedKafka

MIN_WAIT_S = 0.001


def await_end(query: StreamingQuery, kafka: EmbeddedKafka, timeout: float) -> None:
    """Waits at most ``timeout`` seconds until the query ends by itself; otherwise stops the query.

    Raises:
        StuckQuery: the query did not end in time.
        StreamingQueryException: the query failed.
    """
    try:
        # Spark rejects a timeout of 0.
        if not query.awaitTermination(max(timeout, MIN_WAIT_S)):  # type: ignore[arg-type]
            raise _stuck(query, kafka, timeout)
    finally:
        if query.isActive:
            query.stop()


def _stuck(query: StreamingQuery, kafka: EmbeddedKafka, timeout: float) -> StuckQuery:
    sizes = {each["batchId"]: each["numInputRows"] for each in query.recentProgress if each["numInputRows"]}
    return StuckQuery(
        f"The query did not end within {timeout:.0f} s. Spark says {query.status['message']!r}, after {len(sizes)}"
        f" batches with {sum(sizes.values())} rows. {_describe_groups(kafka)}",
        "A run ends when the members of its group have committed the whole topic. Stop other queries and consumers of"
        " the group, use a separate group for each read in one query, or give the run a longer timeout.",
    )


def _describe_groups(kafka: EmbeddedKafka) -> str:
    """Describes the members and the lag of the active groups."""
    from kafka.errors import KafkaError

    try:
        groups = [_describe_group(kafka, group) for group in kafka.active_groups()]
    except (KafkaError, OSError) as error:
        return f"The groups are unknown, because Kafka did not respond: {error!r}."
    return " ".join(groups) or "No group has members."


def _describe_group(kafka: EmbeddedKafka, group: str) -> str:
    members = [f"{member.client_id} with {member.partitions} partitions" for member in kafka.members(group)]
    topics = sorted({topic for topic, _ in kafka.committed(group)})
    behind = [
        f"{topic}-{number} by {count}"
        for topic in topics
        for number, count in kafka.lag(group, topic).items()
        if count > 0
    ]
    return (
        f"Group {group} is {kafka.group_state(group)}, members are {', '.join(members) or 'none'};"
        f" it is behind in {', '.join(behind) or 'nothing'}."
    )
