"""Spark's input partitions: each is one task, which reads some ranges and returns their rows.

Small ranges share a task, large ranges are split on request. The arithmetic of splitting is that of Spark's own Kafka
source, its KafkaOffsetRangeCalculator.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_group_source.fetch.task import FetchTask
from spark_group_source.offsets import OffsetRange
from spark_group_source.options.table import SourceOptions
from spark_group_source.options.wire import wire_options
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.python_worker import prepare_for_next_task
from spark_group_source.spark.schema import to_arrow_schema
from spark_group_source.wire.settings import WireOptions
from spark_group_source.wire.tokens import ExportedToken, export_token

if TYPE_CHECKING:
    import pyarrow as pa

TaskRanges = list[OffsetRange]


def split_into_tasks(
    ranges: Iterable[OffsetRange], min_records: int, max_records: int | None = None, min_tasks: int | None = None
) -> list[TaskRanges]:
    """Groups ranges into tasks. Every offset is in exactly one task; empty ranges are left out.

    The result depends on the ranges alone, so a replayed batch has the same tasks. No task holds two ranges of the same
    partition.

    Args:
        ranges: at most one range per partition.
        min_records: smaller ranges share a task of at least this many offsets, while enough are left.
        max_records: maximum number of offsets in a task; larger ranges are split into even pieces.
        min_tasks: minimum number of tasks, if there are as many offsets. Even pieces may miss it slightly.
    """
    ordered = sorted(each for each in ranges if each.size)
    limit = max_records or sum(each.size for each in ordered)
    pieces = [piece for each in ordered if each.size > limit for piece in _split(each, -(-each.size // limit))]
    small = [each for each in ordered if each.size <= limit]
    tasks = [[each] for each in pieces] + _pack(small, min_records, limit)
    if min_tasks is None or len(tasks) >= min_tasks:
        return tasks
    return [[piece] for each, count in _piece_counts(pieces + small, min_tasks) for piece in _split(each, count)]


def _pack(ranges: Iterable[OffsetRange], min_records: int, limit: int) -> list[TaskRanges]:
    tasks: list[TaskRanges] = []
    packed: TaskRanges = []
    size = 0
    for offsets in ranges:
        if offsets.size >= min_records:
            tasks.append([offsets])
            continue
        if size >= min_records or (packed and size + offsets.size > limit):
            tasks.append(packed)
            packed, size = [], 0
        packed.append(offsets)
        size += offsets.size
    return [*tasks, packed] if packed else tasks


def _piece_counts(ranges: Sequence[OffsetRange], count: int) -> list[tuple[OffsetRange, int]]:
    """The number of pieces for each range, ``count`` or so in all, in proportion to its offsets.

    Ranges that stay whole are counted first; the larger ranges then divide the remaining pieces.
    """

    def proportion(each: OffsetRange, total: int, pieces: int) -> int:
        # Rounds halves up, as in Java. Python's round() would split two ranges into four where the minimum is five.
        return min(max(int(each.size / total * pieces + 0.5), 1), each.size)

    total = sum(each.size for each in ranges)
    whole = {each for each in ranges if proportion(each, total, count) == 1}
    rest = sum(each.size for each in ranges if each not in whole)
    return [(each, 1 if each in whole else proportion(each, rest, count - len(whole))) for each in ranges]


def _split(offsets: OffsetRange, count: int) -> list[OffsetRange]:
    """Splits a range into ``count`` pieces; later pieces are larger if it does not divide evenly."""
    borders = [offsets.start + offsets.size * number // count for number in range(count + 1)]
    return [replace(offsets, start=begin, end=end) for begin, end in pairwise(borders)]


CLIENT_ID_LENGTH = 150
"""Maximum length of the part of a client id that names the application and the topics, in characters."""


WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""With it, Spark itself bounds AvailableNow runs of sources that cannot, as of all Python sources of PySpark 4.1."""


class Application(NamedTuple):
    """The Spark application that a query runs in."""

    name: str = "pyspark"
    id: str = ""
    encrypts_files: bool = False
    """Whether Spark encrypts its temporary files. Then this source writes none."""
    wraps_available_now: bool = False
    """Whether Spark has the setting :data:`WRAPPER` on."""


class TaskPartition(InputPartition):
    """One task of a micro-batch."""

    def __init__(self, task: FetchTask) -> None:
        super().__init__(None)
        self.task = task


class TaskPlanner:
    """Plans the tasks of a query or a batch query; ``query_id`` identifies a run of a query."""

    def __init__(
        self, options: SourceOptions, schema: StructType, application: Application, query_id: str = ""
    ) -> None:
        self._options = options
        self._schema = schema
        self._application = application
        self._query_id = "" if application.encrypts_files else query_id

    def plan(self, ranges: Iterable[OffsetRange]) -> list[InputPartition]:
        """The tasks that read these ranges, one for each of Spark's partitions."""
        schema = to_arrow_schema(self._schema)
        options = self._options
        tasks = split_into_tasks(
            ranges, options.min_records_per_task, options.max_records_per_partition, options.min_partitions
        )
        wire = self.wire_options()
        token = export_token(wire)
        return [TaskPartition(self._task(task, schema, wire, token)) for task in tasks]

    def wire_options(self) -> WireOptions:
        """The settings of connections to brokers."""
        return wire_options(self._options, self._client_id())

    def _client_id(self) -> str:
        """The query's name in Kafka's tools: the option, or application name, topics, application id and process id.

        By the application id a query recognises other queries of its application in its group.
        """
        if self._options.client_id:
            return self._options.client_id
        topics = "-".join(self._options.topics) or self._options.topic_pattern
        process = "-".join(filter(None, [self._application.id, str(os.getpid())]))
        name = f"{self._application.name}-{topics}"[:CLIENT_ID_LENGTH]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{process}")

    def _task(
        self, ranges: list[OffsetRange], schema: pa.Schema, wire: WireOptions, token: ExportedToken | None
    ) -> FetchTask:
        return FetchTask(
            ranges=tuple(ranges),
            wire=wire,
            schema=schema,
            read_committed=self._options.read_committed,
            check_crcs=self._options.check_crcs,
            fail_on_data_loss=self._options.fail_on_data_loss,
            fetch_max_bytes=self._options.fetch_max_bytes,
            max_partition_fetch_bytes=self._options.max_partition_fetch_bytes,
            min_bytes=self._options.fetch_min_bytes,
            rack=self._options.rack,
            replica_max_age=self._options.metadata_max_age,
            max_wait=self._options.fetch_max_wait,
            poll_timeout=self._options.poll_timeout,
            query_id=self._query_id,
            token=token,
        )


def read_task(partition: TaskPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task, as Arrow record batches."""
    from spark_group_source.fetch.reader import read  # the driver decodes no records

    with hide_tracebacks():
        yield from read(partition.task)
    prepare_for_next_task()
