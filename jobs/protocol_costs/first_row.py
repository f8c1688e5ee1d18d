"""How long a query waits from its join to its first row, without Spark."""

from __future__ import annotations

import time
from contextlib import closing

from protocol_costs.waiting import POLL_S, TIMEOUT_S, Options, check_time
from spark_group_source.fetch.reader import read
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
from spark_group_source.spark.schema import source_schema, to_arrow_schema
from spark_group_source.testing import EmbeddedKafka

PARTITIONS = 8
"""Partitions of the topic."""


def alone(kafka: EmbeddedKafka, options: Options) -> float:
    """Seconds from the join to the first row in a group without members."""
    _produce(kafka, options)
    return _first_row(options)


def beside_another(kafka: EmbeddedKafka, options: Options) -> float:
    """The same in a group with an idle member, which gives up partitions without waiting for a batch."""
    parsed = parse_options(options)
    with closing(Driver(parsed.with_client_id("first"))) as first:
        first.start(BatchOffset())
        first.complete(_first_batch(first))
        _produce(kafka, options)
        return _first_row(options)


def _produce(kafka: EmbeddedKafka, options: Options) -> None:
    rows = [{"value": "row", "partition": number} for number in range(PARTITIONS)]
    kafka.produce(options["subscribe"], rows)


def _first_row(options: Options) -> float:
    """Seconds from the join of a new member to its first row."""
    parsed = parse_options(options)
    schema = to_arrow_schema(source_schema(False))
    with closing(Driver(parsed.with_client_id("query"))) as query:
        began = time.monotonic()
        query.start(BatchOffset())
        ranges = tuple(_first_batch(query).reads())
        next(iter(read(FetchTask(ranges, parsed.wire, schema, FetchSettings(poll_timeout=TIMEOUT_S)))))
        return time.monotonic() - began


def _first_batch(query: Driver) -> BatchOffset:
    query.await_assignment()
    began, planned = time.monotonic(), BatchOffset()
    while not planned.reads():
        check_time(began, "a first batch")
        time.sleep(POLL_S)
        planned = query.plan_batch(planned, None)
    return planned
