"""The sink for SQLite in ``docs/exactly_once.md`` writes each record once, also if members write at the same time."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from spark_group_source.errors import MissingRows
from spark_group_source.exactly_once import OffsetRange

PAGE = Path(__file__).resolve().parents[3] / "docs" / "exactly_once.md"
EXAMPLE = re.compile(r"<!-- tested: \S+/test_another_database.py -->\n```python\n(.*?)\n\n\nquery = ", re.S)


class Row(NamedTuple):
    """A row of the batch."""

    value: bytes
    topic: str
    partition: int
    offset: int


class Batch:
    """A batch that reads the ranges, without Spark."""

    def __init__(self, reads: list[OffsetRange]) -> None:
        self._reads = reads

    def select(self, *columns: str) -> Batch:
        assert columns == Row._fields
        return self

    def collect(self) -> list[Row]:
        return [Row(b"v", each.topic, each.partition, at) for each in self._reads for at in range(each.start, each.end)]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes ranges with the sink of the page."""
    monkeypatch.chdir(tmp_path)
    example = EXAMPLE.search(PAGE.read_text())
    assert example
    names: dict[str, Any] = {}
    exec(example[1], names)
    return lambda *reads: names["write"](Batch(list(reads)), list(reads))


def counted() -> tuple[int, int]:
    """The rows and the different records."""
    with closing(sqlite3.connect("orders.db")) as database:
        query = 'SELECT count(*), count(DISTINCT "partition" || \' \' || "offset") FROM orders'
        rows, different = database.execute(query).fetchone()
    return rows, different


def test_a_table_takes_what_it_lacks(write: Callable[..., None]) -> None:
    write(OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 10))
    write(OffsetRange("t", 0, 5, 12))
    write(OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 10))
    assert counted() == (22, 22)
    with pytest.raises(MissingRows):
        write(OffsetRange("t", 1, 10, 20), OffsetRange("t", 0, 13, 20))
    assert counted() == (22, 22)
    write(OffsetRange("t", 1, 10, 20), OffsetRange("t", 0, 13, 20, lineage=1))
    assert counted() == (39, 39)


def test_members_that_write_the_same_partitions_at_once_wait_for_each_other(write: Callable[..., None]) -> None:
    def member(step: int) -> None:
        for start in range(0, 200, step):
            write(*(OffsetRange("t", partition, start, start + step) for partition in range(4)))

    write(OffsetRange("t", 0, 0, 1))
    with ThreadPoolExecutor() as threads:
        list(threads.map(member, (20, 40, 50)))
    assert counted() == (800, 800)
