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
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.python_worker import prepare_for_next_task
from spark_group_source.spark.schema import to_arrow_schema
from spark_group_source.wire.tokens import export_token

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_group_source.options.source_options import SourceOptions

TaskRanges = list[OffsetRange]


def split_into_tasks(
    ranges: Iterable[OffsetRange], min_records: int, max_records: int | None = None, min_tasks: int | None = None
) -> list[TaskRanges]:
    """Groups ranges into tasks. Every offset is in exactly one task; empty ranges are left out.

    The result depends on the ranges alone, so a replayed batch has the same tasks. No task holds a partition twice.

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
    """Plans the tasks of a query or a batch query; ``query_id`` identifies a run of a query.

    ``options`` are those of the query, with a client id.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, application: Application, query_id: str = ""
    ) -> None:
        self.options = options.with_client_id(options.wire.client_id or _client_id(options, application))
        self._schema = schema
        self._query_id = "" if application.encrypts_files else query_id

    def plan(self, ranges: Iterable[OffsetRange], cluster_id: str) -> list[InputPartition]:
        """The tasks that read these ranges of this cluster, one for each of Spark's partitions."""
        options, schema = self.options, to_arrow_schema(self._schema)
        tasks = split_into_tasks(
            ranges, options.min_records_per_task, options.max_records_per_partition, options.min_partitions
        )
        token = export_token(options.wire)
        return [
            TaskPartition(
                FetchTask(tuple(task), options.wire, schema, options.fetch, self._query_id, token, cluster_id)
            )
            for task in tasks
        ]


def _client_id(options: SourceOptions, application: Application) -> str:
    """The query's name in Kafka's tools: application name, topics, application id and process id.

    By the application id a query recognises other queries of its application in its group.
    """
    subscription = options.group.subscription
    topics = "-".join(subscription.topics) or subscription.pattern
    process = "-".join(filter(None, [application.id, str(os.getpid())]))
    name = f"{application.name}-{topics}"[:CLIENT_ID_LENGTH]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{process}")


class PartitionReader:
    """The part of a reader that the executors get: reading needs nothing but the partition."""

    def __reduce__(self) -> tuple[object, ...]:
        return PartitionReader, ()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, as Arrow record batches. Runs on an executor."""
        from spark_group_source.fetch.reader import read  # the driver decodes no records

        # If the read has no partitions, Spark calls this with a partition of its own.
        if isinstance(partition, TaskPartition):
            with hide_tracebacks():
                yield from read(partition.task)
            prepare_for_next_task()
