"""The columns that identify a record in a table. Pure: no Spark, no database."""

from __future__ import annotations

from collections.abc import Sequence


def check_record_columns(table: str, columns: Sequence[str], needed: Sequence[str]) -> None:
    """Checks that rows for a table have the columns that identify their records.

    Args:
        table: names the table in the error.
        columns: the columns of the rows.
        needed: the columns that the table needs, at least two.

    Raises:
        ValueError: some of the needed columns are missing.
    """
    missing = [each for each in needed if each not in columns]
    if missing:
        listed = f"{', '.join(needed[:-1])} and {needed[-1]}"
        raise ValueError(
            f"the rows for {table} have no column {', '.join(missing)}; keep {listed} of the source in select()"
        )
