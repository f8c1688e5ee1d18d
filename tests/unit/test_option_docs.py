"""``docs/options.md`` compares every option of Spark's own source with ours, and each test that it names is there."""

from __future__ import annotations

import ast
import fnmatch
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from spark_group_source.options.table import OPTIONS
from tests.unit.options.test_client_options import CONSUMER, SECURITY

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs" / "options.md"

PEER = """
assign subscribe subscribePattern startingOffsets startingOffsetsByTimestamp startingTimestamp
startingOffsetsByTimestampStrategy endingOffsets endingOffsetsByTimestamp endingTimestamp failOnDataLoss
maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition includeHeaders
groupIdPrefix fetchOffset.numRetries fetchOffset.retryIntervalMs kafkaConsumer.pollTimeoutMs topic .schema(...)
spark.kafka.consumer.cache.capacity spark.sql.kafkaConsumerCache.capacity spark.kafka.consumer.cache.timeout
spark.kafka.consumer.cache.evictorThreadRunInterval spark.kafka.consumer.cache.jmx.enable
spark.kafka.consumer.fetchedData.cache.timeout spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval
spark.sql.streaming.kafka.useDeprecatedOffsetFetching spark.sql.streaming.disabledV2MicroBatchReaders
spark.kafka.clusters.<id>
"""
"""What Spark's own source reads, besides the keys of Kafka's Java consumer."""


@dataclass(frozen=True)
class Row:
    """One line of a table; ``tests`` are (file, test)."""

    name: str
    verdict: str
    here: str
    tests: tuple[tuple[str, str], ...]


def rows() -> list[Row]:
    found = []
    for name, verdict, here, tests in re.findall(
        r"^\| `([^`]+)` \| ([^|]+) \| ([^|]*) \| ([^|]*)\|$", DOCS.read_text(), re.M
    ):
        links = re.findall(r"\[([\w.]+)::(\w+)\]\(\.\./tests/([\w/.]+)\)", tests)
        assert all(path.endswith(f"/{file}") for file, _, path in links), f"a link of {name} leads elsewhere"
        named = tuple((path, test) for _, test, path in links)
        found.append(Row(name, verdict, here.strip(), named))
    return found


def covered(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, row.name) for row in rows())


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", [*PEER.split(), *(f"kafka.{key}" for key in CONSUMER + SECURITY)])
def test_every_option_of_sparks_own_source_is_compared(name: str) -> None:
    assert covered(name)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_every_option_of_this_source_is_compared(name: str) -> None:
    assert covered(name)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_what_a_row_says_is_shown_by_tests_that_exist(row: Row) -> None:
    assert row.verdict in {"same", "better", "own", "not applicable"}
    assert row.here or row.verdict in {"same", "own"}, "what is other than there is said"
    assert row.tests or row.name.startswith("spark.")
    for path, test in row.tests:
        assert test in defined_in(path)


def test_no_row_is_there_twice() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names)


def test_every_line_of_a_table_is_read() -> None:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    assert len(lines) == len(rows())
