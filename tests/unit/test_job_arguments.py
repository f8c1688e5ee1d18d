"""The programs in jobs/ have a help text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"


@pytest.mark.parametrize(
    "name",
    [
        "benchmark",
        "group_of_queries.py",
        "group_protocols.py",
        "group_to_delta.py",
        "group_to_iceberg.py",
        "group_to_parquet.py",
        "group_to_postgres.py",
        "produce_flights.py",
        "soak.py",
        "windowed_counts.py",
    ],
)
def test_help_lists_the_arguments(name: str) -> None:
    done = subprocess.run([sys.executable, str(JOBS / name), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
