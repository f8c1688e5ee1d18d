"""``docs/options.md`` lists all options and compares them with Spark's own source.

``python -m tests.unit.test_option_docs`` writes the defaults and meanings of the code into the page, and adds rows.
"""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

from spark_group_source.option import Option
from spark_group_source.options.table import OPTIONS, default_of
from spark_group_source.options.unsupported_names import UNSUPPORTED
from tests.unit.options.test_client_options import CONSUMER, SECURITY, WITHOUT_JAVA

DOCS = Path(__file__).resolve().parents[2] / "docs" / "options.md"

WRITE = "python -m tests.unit.test_option_docs"

OPTION_ROW = re.compile(r"^\| `([^`]+)` \|[^|]*\|[^|]*\| [^|]*\|$", re.M)
NAMED = ("load()", "enable_auto_commit", 'format("kafka")')
"""Words of the section on unsupported options that are none of Spark's options."""

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
"""The options of Spark's own source, without the keys of Kafka's Java consumer."""

DEFAULTS = {
    "kafka.client.id": "application, topics, application id and process",
    "kafka.client.dns.lookup": "`use_all_dns_ips`",
    "kafka.group.id": "required in streams",
    "kafka.group.protocol": "`classic`",
    "kafka.isolation.level": "`read_uncommitted`",
    "kafka.ssl.endpoint.identification.algorithm": "`https`",
    "kafka.max.partition.fetch.bytes": "`kafka.fetch.max.bytes`",
    "kafka.sasl.login.refresh.window.factor": "`0.8`",
    "kafka.sasl.login.refresh.window.jitter": "`0.05`",
    "kafka.sasl.login.refresh.min.period.seconds": "`60`",
    "kafka.sasl.login.refresh.buffer.seconds": "`300`",
    "startingOffsets": "`latest`; `earliest` in batch queries",
    "startingOffsetsFallback": "`latest`; `earliest` in batch queries",
    "startingOffsetsByTimestampStrategy": "`error`",
    "endingOffsets": "`latest`",
    "maxTriggerDelay": "`15m`",
}
"""Defaults that the code does not state as users write them."""


def shown_default(option: Option) -> str:
    default: Any = default_of(option.place)
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


def with_table(text: str) -> str:
    """The page with the defaults and meanings of the code. A new option's row follows that of the option before it."""
    former = ""
    for option in OPTIONS:
        cells = [f"`{option.name}`", shown_default(option), option.description]
        row = "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
        start = re.compile(rf"^\| `{re.escape(option.name)}` \|[^|]*\|[^|]*\|", re.M)
        if start.search(text):
            text = start.sub(lambda _, row=row: row, text)  # type: ignore[misc]
        elif former:
            behind = re.compile(rf"^\| `{re.escape(former)}` \|.*\n", re.M)
            text = behind.sub(lambda found, row=row: f"{found[0]}{row} only here |\n", text)  # type: ignore[misc]
        former = option.name
    return text


def rows() -> list[str]:
    """The first column of all tables, and the names of the last section."""
    tables = DOCS.read_text().partition("\n## Unsupported\n")[0]
    return re.findall(r"^\| `([^`]+)` \|", tables, re.M) + unsupported()


def unsupported() -> list[str]:
    section = DOCS.read_text().partition("\n## Unsupported\n")[2]
    return [name for name in re.findall(r"`([^`]+)`", section) if name not in NAMED]


def test_defaults_and_meanings_are_those_of_the_code() -> None:
    assert with_table(DOCS.read_text()) == DOCS.read_text(), f"run: {WRITE}"


def test_every_option_of_this_source_and_of_sparks_own_has_a_row() -> None:
    own = {option.name for option in OPTIONS}
    without_row = own - set(OPTION_ROW.findall(DOCS.read_text()))
    assert without_row == set(), f"run: {WRITE}"
    sparks = [*PEER.split(), *(f"kafka.{key}" for key in CONSUMER + SECURITY)]
    assert [name for name in sparks if not any(fnmatch.fnmatchcase(name, row) for row in rows())] == []


def test_options_listed_as_unsupported_are() -> None:
    listed = [each for each in unsupported() if "*" not in each and each[:6] != "spark."]
    assert listed
    assert [name for name in listed if name.removeprefix("kafka.").lower() not in UNSUPPORTED] == []


def test_the_page_names_the_kafka_options_that_are_not_javas() -> None:
    named = DOCS.read_text().partition("except five:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([^`]+)`", named)) == WITHOUT_JAVA


if __name__ == "__main__":
    DOCS.write_text(with_table(DOCS.read_text()))
