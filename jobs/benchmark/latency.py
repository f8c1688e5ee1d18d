"""From produce to row: how old a record is when a batch that holds it hands out its rows."""

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
from benchmark.reading import Reading
from spark_group_source.clock import Deadline

RECORDS_PER_SECOND = 1_000
STEP_S = 0.01
SETTLING_S, MEASURED_S = 3.0, 10.0
"""After the first row: for how long rows are left out, as processes start and code is compiled, and then taken."""
TIMEOUT_S = 60.0
POLL_S = 0.1


def median_latency_ms(reading: Reading) -> float:
    """The median over the records of the milliseconds from their timestamp until ``foreachBatch`` has their rows.

    Raises:
        BenchError: the rows did not come in time.
    """
    ages: list[tuple[float, float]] = []

    def note(batch: DataFrame, number: int) -> None:
        stamps = batch.select(F.unix_millis("timestamp")).collect()
        now = time.time()
        ages.extend((now, now * 1000 - stamp) for (stamp,) in stamps)

    def lasted() -> float:
        return ages[-1][0] - ages[0][0] if ages else 0.0

    with tempfile.TemporaryDirectory(prefix="bench-latency-") as place, _producing(reading):
        writer = reading.frame(None, startingOffsets="latest").writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", place).start()
        deadline = Deadline.after(TIMEOUT_S)
        while query.isActive and lasted() < SETTLING_S + MEASURED_S and not deadline.expired():
            time.sleep(POLL_S)
        query.stop()
    if lasted() < SETTLING_S + MEASURED_S:
        raise BenchError(f"{reading.source} handed out {len(ages)} rows in {TIMEOUT_S:.0f} s: {query.exception()}")
    return median(age for seen, age in ages if seen - ages[0][0] >= SETTLING_S)


@contextmanager
def _producing(reading: Reading) -> Iterator[None]:
    """Produces at a steady rate, spread over the partitions, until the block ends."""
    ended = threading.Event()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=reading.servers, acks=1)
        number, due = 0, time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            for _ in range(round(RECORDS_PER_SECOND * STEP_S)):
                number += 1
                value = b"x" * reading.case.topic.value_bytes
                producer.send(reading.topic, value, partition=number % reading.case.topic.partitions)
            due += STEP_S
        producer.close()

    thread = threading.Thread(target=produce, name="producer")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
