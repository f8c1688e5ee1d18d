"""A query in the tests' own Spark, for orderly tests. To kill a query, use ``query_process``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.integration.query_process import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Reader:
    """A query whose batches a test can keep from ending."""

    def __init__(self, spark: SparkSession, options: dict[str, str], held: bool = False) -> None:
        self.places: list[Place] = []
        self.read_by_held: list[Place] = []
        self.may_end = threading.Event()
        if not held:
            self.may_end.set()
        frame = spark.readStream.format("kafka-group").options(**options).load()
        self.query: StreamingQuery = frame.writeStream.foreachBatch(self._batch).start()

    def _batch(self, rows: DataFrame, number: int) -> None:
        places = [(row.partition, row.offset) for row in rows.select("partition", "offset").collect()]
        if not self.may_end.is_set():
            self.read_by_held = places
            self.may_end.wait()
        self.places += places

    def stop(self) -> None:
        self.may_end.set()
        self.query.stop()
