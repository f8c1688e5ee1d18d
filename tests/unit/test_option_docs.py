"""``docs/options.md`` is the reference of all options, and compares them with Spark's own source.

Defaults and meanings in it are what the code says: to write them anew, ``python -m tests.unit.test_option_docs``.
``tests/OPTIONS.md`` names the tests of each row.
"""

from __future__ import annotations

import ast
import fnmatch
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.options.option import Option
from spark_group_source.options.table import OPTIONS, SourceOptions
from spark_group_source.options.unsupported import UNSUPPORTED
from tests.unit.options.test_client_options import CONSUMER, SECURITY

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs" / "options.md"

OPTION_ROW = re.compile(r"^\| `([^`]+)` \|[^|]*\|[^|]*\| (?:same|better|only here)(?:\. [^|]+)? \|$", re.M)
OTHER_ROW = re.compile(r"^\| `([^`]+)` \| [^|]+ \|$", re.M)

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

DEFAULTS = {
    "kafka.client.id": "application, topics, application id and process",
    "kafka.client.dns.lookup": "`use_all_dns_ips`",
    "kafka.group.id": "required in streams",
    "kafka.isolation.level": "`read_uncommitted`",
    "kafka.ssl.endpoint.identification.algorithm": "`https`",
    "startingOffsets": "`latest`; `earliest` in bounded reads",
    "startingOffsetsByTimestampStrategy": "`error`",
    "endingOffsets": "`latest`",
    "maxTriggerDelay": "`15m`",
}
"""Of options whose default says little as the code has it."""


def default_of(option: Option) -> str:
    default: Any = SourceOptions.__dataclass_fields__[option.field].default
    if option.required:
        return "required"
    if option.name in DEFAULTS:
        return DEFAULTS[option.name]
    if default in (None, "", (), frozenset()):
        return ""
    if isinstance(default, float):
        return f"`{default * 1000:.0f}`"
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def written_anew(text: str) -> str:
    """The page with defaults and meanings as the code has them; rows are added and moved by hand."""
    for option in OPTIONS:
        cells = [f"`{option.name}`", default_of(option), option.doc]
        row = "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
        begin = re.compile(rf"^\| `{re.escape(option.name)}` \|[^|]*\|[^|]*\|", re.M)
        text = begin.sub(lambda _, row=row: row, text)  # type: ignore[misc]
    return text


def section(title: str) -> str:
    """The part of the page under a heading."""
    return re.split(r"^## ", DOCS.read_text().partition(f"\n## {title}\n")[2], flags=re.M)[0]


def rows() -> list[str]:
    """Names in the first column of all tables."""
    return re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), re.M)


def shown_by(name: str) -> list[tuple[str, str, str]]:
    """(file, test, path) of all that are named for a row of the page."""
    found = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", (TESTS / "OPTIONS.md").read_text(), re.M)
    links = [tests for pattern, tests in found if fnmatch.fnmatchcase(name, pattern)]
    return re.findall(r"\[([\w.]+)::(\w+)\]\(([\w/.]+)\)", " ".join(links))


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_defaults_and_meanings_are_what_the_code_says() -> None:
    assert written_anew(DOCS.read_text()) == DOCS.read_text()


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_every_option_of_this_source_is_compared(name: str) -> None:
    assert name in OPTION_ROW.findall(DOCS.read_text())


@pytest.mark.parametrize("name", [*PEER.split(), *(f"kafka.{key}" for key in CONSUMER + SECURITY)])
def test_every_option_of_sparks_own_source_is_compared(name: str) -> None:
    assert any(fnmatch.fnmatchcase(name, row) for row in rows())


@pytest.mark.parametrize("name", re.findall(r"^\| `([^`*]+)` \|", section("Refused"), re.M))
def test_what_is_said_to_be_refused_is(name: str) -> None:
    assert name.removeprefix("kafka.").lower() in UNSUPPORTED


@pytest.mark.parametrize("name", rows())
def test_what_a_row_says_is_shown_by_tests_that_exist(name: str) -> None:
    named = shown_by(name)
    assert named or name.startswith("spark.")
    for file, test, path in named:
        assert path.endswith(f"/{file}"), f"a link of {name} leads elsewhere"
        assert test in defined_in(path)


def test_no_row_is_there_twice() -> None:
    assert len(set(rows())) == len(rows())


def test_every_row_has_the_cells_of_its_table() -> None:
    text = DOCS.read_text()
    assert len(rows()) == len(OPTION_ROW.findall(text)) + len(OTHER_ROW.findall(text))


if __name__ == "__main__":
    DOCS.write_text(written_anew(DOCS.read_text()))
