"""The latency from produce to row: the age of a record when ``foreachBatch`` receives its row."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from kafka import KafkaProducer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its customary name

from benchmark.errors import BenchError
from benchmark.source_query import SourceQuery
from spark_group_source.clock import Deadline

RECORDS_PER_SECOND = 1_000
STEP_S = 0.01
WARM_UP_S, MEASURED_S = 3.0, 10.0
"""How long rows are ignored after the first one, while processes start and code is compiled, and then measured."""
TIMEOUT_S = 60.0
POLL_S = 0.1


def median_latency_ms(source_query: SourceQuery) -> float:
    """The median time in milliseconds from a record's timestamp until ``foreachBatch`` receives its row.

    Raises:
        BenchError: the rows did not arrive in time.
    """
    ages: list[tuple[float, float]] = []

    def record_ages(batch: DataFrame, number: int) -> None:
        timestamps = batch.select(F.unix_millis("timestamp")).collect()
        now = time.time()
        ages.extend((now, now * 1000 - timestamp) for (timestamp,) in timestamps)

    def measured_time() -> float:
        if not ages:
            return 0.0
        return ages[-1][0] - ages[0][0]

    with tempfile.TemporaryDirectory(prefix="bench-latency-") as checkpoint, _producing(source_query):
        writer = source_query.frame(None, startingOffsets="latest").writeStream.foreachBatch(record_ages)
        query = writer.option("checkpointLocation", checkpoint).start()
        deadline = Deadline.after(TIMEOUT_S)
        while query.isActive and measured_time() < WARM_UP_S + MEASURED_S and not deadline.expired():
            time.sleep(POLL_S)
        query.stop()
    if measured_time() < WARM_UP_S + MEASURED_S:
        raise BenchError(f"{source_query.source} delivered {len(ages)} rows in {TIMEOUT_S:.0f} s: {query.exception()}")
    return median(age for seen, age in ages if seen - ages[0][0] >= WARM_UP_S)


@contextmanager
def _producing(source_query: SourceQuery) -> Iterator[None]:
    """Produces to all partitions at a constant rate until the block ends."""
    ended = threading.Event()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=source_query.servers, acks=1)
        number, due = 0, time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            for _ in range(round(RECORDS_PER_SECOND * STEP_S)):
                number += 1
                value = b"x" * source_query.case.topic.value_bytes
                producer.send(source_query.topic, value, partition=number % source_query.case.topic.partitions)
            due += STEP_S
        producer.close()

    thread = threading.Thread(target=produce, name="producer")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
