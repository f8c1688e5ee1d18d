"""Streams that run until they end."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_group_source.clock import Deadline
from spark_group_source.testing.errors import StuckQuery

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
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
    sizes = {}
    for progress in query.recentProgress:
        if progress["numInputRows"] > 0:
            sizes[progress["batchId"]] = progress["numInputRows"]
    return StuckQuery(
        f"The query did not end within {timeout:.0f} s. It completed {len(sizes)} batch(es) with {sum(sizes.values())}"
        f" row(s), and its status is {query.status['message']!r}. {_describe_groups(kafka)}",
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
    if not groups:
        return "No group has members."
    return " ".join(groups)


def _describe_group(kafka: EmbeddedKafka, group: str) -> str:
    members = [f"{member.client_id} with {member.partitions} partition(s)" for member in kafka.members(group)]
    topics = sorted({topic for topic, _ in kafka.committed(group)})
    behind = []
    for topic in topics:
        for number, count in kafka.lag(group, topic).items():
            if count > 0:
                behind.append(f"{count} in {topic}-{number}")
    return (
        f"Group {group} is {kafka.group_state(group)}. Its members: {_listed(members, 'none')}. Its lag:"
        f" {_listed(behind, 'none')}."
    )


def _listed(texts: Sequence[str], empty: str) -> str:
    if not texts:
        return empty
    return ", ".join(texts)


RUN_TIMEOUT_S = 120.0
"""Default timeout of a run. A dead member keeps its partitions for a session of 45 s, and test machines are slow."""


def run_available_now(
    frame: DataFrame,
    checkpoint: str | Path,
    kafka: EmbeddedKafka,
    *,
    output_mode: str = "append",
    timeout: float = RUN_TIMEOUT_S,
) -> DataFrame:
    """Runs ``frame`` with Trigger.AvailableNow until it has read and committed all available records.

    Before PySpark 4.2 a run is one batch, or only the replay of an earlier batch. This function therefore repeats the
    run with the same checkpoint until a run has no batch, and the result is the same on every version.

    Args:
        frame: a streaming DataFrame.
        checkpoint: directory of the query; a run with the checkpoint of an earlier run continues where that run ended.
        kafka: describes its groups in the error if the run does not end.
        output_mode: Spark's ``append``, ``complete`` or ``update``.
        timeout: how many seconds all runs together may take.

    Returns:
        A batch DataFrame with the rows of all batches, in their order; with ``complete`` only those of the last batch.

    Raises:
        StuckQuery: the query did not end in time; the text says what it waited for.
        StreamingQueryException: the query failed.
    """
    deadline = Deadline.after(timeout)
    batches: dict[int, pa.Table] = {}
    while True:
        before = len(batches)
        _run(frame, str(checkpoint), output_mode, batches, kafka, deadline)
        if _run_has_all_batches() or len(batches) == before:
            break
    return _combined(frame, batches, output_mode)


def _run(
    frame: DataFrame,
    checkpoint: str,
    output_mode: str,
    batches: dict[int, pa.Table],
    kafka: EmbeddedKafka,
    deadline: Deadline,
) -> None:
    def keep(batch: DataFrame, number: int) -> None:
        batches[number] = batch.toArrow()  # replaces the table of an earlier attempt

    # Not Spark's memory sink, which cannot restart from a checkpoint.
    writer = frame.writeStream.foreachBatch(keep).outputMode(output_mode)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    await_end(query, kafka, deadline.remaining())


def _combined(frame: DataFrame, batches: dict[int, pa.Table], output_mode: str) -> DataFrame:
    import pyarrow as pa

    tables = [batches[number] for number in sorted(batches)]
    if output_mode == "complete":
        tables = tables[-1:]
    if not tables:
        return frame.sparkSession.createDataFrame([], frame.schema)
    return frame.sparkSession.createDataFrame(pa.concat_tables(tables), frame.schema)


def _run_has_all_batches() -> bool:
    """Whether one run reads everything: PySpark 4.2 or later."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
