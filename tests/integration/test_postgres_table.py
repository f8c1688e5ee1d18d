"""The table of ``jobs/group_to_postgres.py``: it does not matter how often or in which order rows come."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from group_to_postgres import TABLE, upsert
from psycopg.sql import Identifier

from tests.integration import postgres

LATEST = Identifier("public", "latest")


@pytest.fixture
def database() -> Iterator[str]:
    with postgres.running() as running, psycopg.connect(running, autocommit=True) as connection:
        connection.execute(TABLE.format(LATEST))
        yield running


def record(key: bytes | None, value: bytes | None, offset: int, second: int = 0) -> tuple[object, ...]:
    """A row as the job writes it."""
    return (key, value, "topic", 0, offset, f"2026-01-01 00:00:{second:02}.123Z")


def kept(database: str) -> list[tuple[bytes, bytes | None, int]]:
    with psycopg.connect(database) as connection:
        return connection.execute('SELECT key, value, "offset" FROM latest ORDER BY key').fetchall()


def test_the_last_record_of_each_key_wins_in_any_order_of_writes(database: str) -> None:
    older = [record(b"one", b"first", 1), record(b"two", b"\x00\xff\\N\t\n", 2), record(b"one", b"second", 3)]
    newer = [record(b"one", b"third", 4), record(b"one", None, 5, second=1)]
    for rows in (older, older, newer, older, newer[:1]):
        upsert(rows, database, LATEST)
    assert kept(database) == [(b"one", None, 5), (b"two", b"\x00\xff\\N\t\n", 2)]


def test_a_record_without_a_key_fails_and_its_task_writes_nothing(database: str) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation):
        upsert([record(b"one", b"first", 1), record(None, b"second", 2)], database, LATEST)
    assert kept(database) == []
