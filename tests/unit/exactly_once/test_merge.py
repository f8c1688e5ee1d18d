"""The MERGE for Delta and Iceberg: its condition, its columns, and its repetition after conflicts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_group_source.exactly_once import DeltaSink, OffsetRange, merge_condition
from spark_group_source.exactly_once.merge import ATTEMPTS, retried
from spark_group_source.exactly_once.positions import Rewind
from tests.unit.hand_clock import Hand

READS = [OffsetRange("orders", 0, 5000, 6000), OffsetRange("orders", 2, 10, 20)]


def test_a_condition_names_the_ranges_as_literals() -> None:
    assert merge_condition(READS, kept="k", batch="b") == (
        "k.topic = b.topic AND k.partition = b.partition AND k.offset = b.offset AND k.timestamp = b.timestamp"
        " AND k.partition IN (0, 2)"
        " AND (k.topic = 'orders' AND k.partition = 0 AND k.offset >= 5000 AND k.offset < 6000"
        " OR k.topic = 'orders' AND k.partition = 2 AND k.offset >= 10 AND k.offset < 20)"
    )


def test_a_condition_without_ranges_is_an_error() -> None:
    with pytest.raises(ValueError, match="without ranges"):
        merge_condition([])


def test_rows_without_a_column_of_the_record_are_an_error_with_its_name() -> None:
    class Rows:
        columns = ("value", "topic", "offset")

    rows: Any = Rows()
    sink = DeltaSink("lake.orders")
    expected = "rows for lake.orders have no column partition, timestamp; keep topic"
    with pytest.raises(ValueError, match=expected):
        sink.create(rows)
    with pytest.raises(ValueError, match=expected):
        sink.write(rows, READS)


class Table:
    """A table with these columns, which keeps the statements; and a batch for it, without Spark."""

    def __init__(self, *columns: str) -> None:
        self.of_table = columns
        self.columns = ["topic", "partition", "offset", "timestamp"]
        self.statements: list[str] = []

    @property
    def sparkSession(self) -> Table:  # noqa: N802 -- Spark's name
        return self

    def sql(self, statement: str) -> Any:
        self.statements.append(statement)
        return SimpleNamespace(columns=self.of_table)

    def withColumn(self, name: str, _: object) -> Table:  # noqa: N802 -- Spark's name
        self.columns.append(name)
        return self

    def createOrReplaceTempView(self, _: str) -> None:  # noqa: N802 -- Spark's name
        pass


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Callable[[Table, Rewind], str]:
    """Writes a batch to a table, and returns the MERGE."""

    def merge(table: Any, rewind: Rewind) -> str:
        monkeypatch.setattr("spark_group_source.exactly_once.merge._lineage", lambda _: None)
        DeltaSink("orders", rewind=rewind).write(table, READS)
        return str(table.statements[-1])

    return merge


def test_a_table_with_lineages_may_be_written_with_either_word(write: Callable[[Table, Rewind], str]) -> None:
    table = Table("topic", "lineage")
    assert "lineage" not in write(table, "skip")
    assert "lineage" in table.columns
    # Rows from before the column have no lineage, and are still records that the table has.
    assert "coalesce(kept.lineage, 0) >= batch.lineage" in write(Table("topic", "lineage"), "write")


def test_a_table_without_lineages_cannot_tell_rewinds_apart(write: Callable[[Table, Rewind], str]) -> None:
    table = Table("topic")
    write(table, "skip")
    assert "lineage" not in table.columns
    with pytest.raises(ValueError, match="orders has no column lineage.*ALTER TABLE orders ADD COLUMN"):
        write(table, "write")


def test_another_word_for_a_rewind_is_an_error_with_the_word() -> None:
    wrong: Any = "again"
    with pytest.raises(ValueError, match="rewind is 'again'"):
        DeltaSink("lake.orders", rewind=wrong)


@pytest.mark.parametrize(
    ("message", "attempts"),
    [
        ("[DELTA_CONCURRENT_APPEND] ...", ATTEMPTS),
        ("[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION] Cannot create table ...", ATTEMPTS),
        ("Found conflicting files", ATTEMPTS),
        ("no", 1),
    ],
)
def test_only_a_conflict_with_another_writer_is_repeated_and_not_for_ever(
    hand: Hand, message: str, attempts: int
) -> None:
    calls = 0

    def write() -> None:
        nonlocal calls
        calls += 1
        raise PySparkException(message)

    with pytest.raises(PySparkException):
        retried(write)
    assert calls == attempts
