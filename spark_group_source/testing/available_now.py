"""Runs a streaming DataFrame to its end, and gives what it brought as a DataFrame that tests can compare."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from spark_group_source.clock import Deadline
from spark_group_source.testing.stuck_query import await_end

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from spark_group_source.testing.kafka import EmbeddedKafka

RUN_TIMEOUT_S = 120.0
"""Of a run: a member that died holds its partitions for a session, 45 s, and machines that test are slow."""


def run_available_now(
    frame: DataFrame,
    checkpoint: str | Path,
    kafka: EmbeddedKafka,
    *,
    output_mode: str = "append",
    timeout: float = RUN_TIMEOUT_S,
) -> DataFrame:
    """Runs ``frame`` with Trigger.AvailableNow until all that was there has been read and committed.

    PySpark 4.1 makes one batch of such a run, and does not tell a Python source that it was completed: there the run is
    repeated with its checkpoint until one has no batch, so that the same holds on every version.

    Args:
        frame: a streaming DataFrame.
        checkpoint: directory of the query; a run with that of an earlier one goes on where that ended.
        kafka: asked for its groups where the run does not end.
        output_mode: ``append``, ``complete`` or ``update``, as Spark has it.
        timeout: seconds that the whole may take.

    Returns:
        A batch DataFrame with the rows of all batches of this run, in their order; with ``complete`` those of the last.

    Raises:
        StuckQuery: it did not end in time, with what it waited for.
        StreamingQueryException: it failed.
    """
    deadline = Deadline.after(timeout)
    batches: dict[int, pa.Table] = {}
    while True:
        known = len(batches)
        _run(frame, str(checkpoint), output_mode, batches, kafka, deadline)
        if _source_hears_of_the_end() or len(batches) == known:
            break
    return _together(frame, batches, output_mode)


def _run(
    frame: DataFrame,
    checkpoint: str,
    output_mode: str,
    batches: dict[int, pa.Table],
    kafka: EmbeddedKafka,
    deadline: Deadline,
) -> None:
    def keep(batch: DataFrame, number: int) -> None:
        batches[number] = batch.toArrow()  # over that of an earlier try

    # Not Spark's memory sink: that refuses to go on from a checkpoint.
    writer = frame.writeStream.foreachBatch(keep).outputMode(output_mode)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    await_end(query, kafka, deadline.remaining())


def _together(frame: DataFrame, batches: dict[int, pa.Table], output_mode: str) -> DataFrame:
    import pyarrow as pa

    tables = [batches[number] for number in sorted(batches)]
    if output_mode == "complete":
        tables = tables[-1:]
    rows = pa.concat_tables(tables) if tables else []
    return frame.sparkSession.createDataFrame(rows, frame.schema)


def _source_hears_of_the_end() -> bool:
    """Whether this is PySpark 4.2 or later."""
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
