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
        *(f"group_{each}.py" for each in ("of_queries", "protocols")),
        *(f"group_to_{each}.py" for each in ("delta", "iceberg", "parquet", "postgres")),
        *(f"{each}.py" for each in ("produce_flights", "soak", "windowed_counts")),
    ],
)
def test_help_lists_the_arguments(name: str) -> None:
    done = subprocess.run([sys.executable, str(JOBS / name), "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
