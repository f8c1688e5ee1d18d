"""The programs in jobs/ have a help text."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
NAMES = """
benchmark group_of_queries group_to_delta group_to_iceberg group_to_parquet group_to_postgres
produce_flights soak windowed_counts
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_help_lists_the_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = JOBS / (name if name == "benchmark" else f"{name}.py")
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_what_a_rewind_means_is_asked_only_of_a_table_with_every_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = JOBS / "group_to_postgres.py"
    where = ["--bootstrap-servers", "b:9092", "--topic", "t", "--group", "g", "--checkpoint", "c"]
    arguments = [*where, "--postgres", "dbname=d", "--table", "t", "--rewind", "write"]
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    monkeypatch.syspath_prepend(str(JOBS))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 2
    assert "--rewind needs --append" in capsys.readouterr().err
