"""Waiting for the end of a query, no longer than asked; and what it waited for where it did not end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_group_source.testing.errors import StuckQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_group_source.testing.kafka import EmbeddedKafka

SHORTEST_WAIT_S = 0.001


def await_end(query: StreamingQuery, kafka: EmbeddedKafka, timeout: float) -> None:
    """Waits until the query ends by itself, at most ``timeout`` seconds; stops it where that fails.

    Raises:
        StuckQuery: it did not end in time.
        StreamingQueryException: it failed.
    """
    try:
        # Spark refuses to wait for no time at all.
        if not query.awaitTermination(max(timeout, SHORTEST_WAIT_S)):  # type: ignore[arg-type]
            raise _stuck(query, kafka, timeout)
    finally:
        if query.isActive:
            query.stop()


def _stuck(query: StreamingQuery, kafka: EmbeddedKafka, timeout: float) -> StuckQuery:
    sizes = {each["batchId"]: each["numInputRows"] for each in query.recentProgress if each["numInputRows"]}
    return StuckQuery(
        f"The query did not end within {timeout:.0f} s. Spark says {query.status['message']!r}, after {len(sizes)}"
        f" batches with {sum(sizes.values())} rows. {_standing(kafka)}",
        "A run ends when all of the topic was committed, by whichever member owns it: stop other queries and consumers"
        " of the group, give each read in one query a group of its own, or give the run a longer timeout.",
    )


def _standing(kafka: EmbeddedKafka) -> str:
    """Who is in which group now, and how far it is."""
    from kafka.errors import KafkaError

    try:
        groups = [_of_group(kafka, group) for group in kafka.active_groups()]
    except (KafkaError, OSError) as error:
        return f"Kafka could not be asked for its groups: {error!r}."
    return " ".join(groups) or "No group has members."


def _of_group(kafka: EmbeddedKafka, group: str) -> str:
    members = [f"{each.client_id} with {each.partitions} partitions" for each in kafka.members(group)]
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
