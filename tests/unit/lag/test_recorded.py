"""Reports from the recorded progress of real queries: one with end offsets, one without.

A listener got this progress, of a query that shared its topic with another one for a while.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import Backlog, LagReport
from tests.unit.lag.events import progressed


def recorded(version: str) -> list[dict[str, Any]]:
    """The progress of each batch of a real query, with this version of PySpark."""
    lines = (Path(__file__).parent / "recorded" / f"pyspark-{version}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def reported(version: str) -> list[LagReport]:
    reports: list[LagReport] = []
    listener = LagListener(reports.append)
    for each in recorded(version):
        listener.onQueryProgress(progressed(each))
    return reports


def test_lag_falls_with_each_batch_to_0() -> None:
    reports = reported("4.3.0")
    assert [each.total for each in reports[:5]] == [141, 103, 65, 27, 0]
    assert {each.total for each in reports[5:]} == {0}
    assert {(each.query, each.source) for each in reports} == {("orders-to-lake", 0)}


def test_partitions_of_another_query_are_left_out_until_this_query_plans_them_again() -> None:
    seen = ["".join(str(each.tp.partition) for each in report.partitions) for report in reported("4.3.0")]
    assert list(dict.fromkeys(seen)) == ["012", "01"]
    assert seen[-3:] == ["012"] * 3
    # Its end offset came back a batch before its position, which would show a wrong lag of ten.
    assert (recorded("4.3.0")[15]["sources"][0]["latestOffset"]["orders"]["2"], seen[15]) == (100, "01")


def test_without_end_offsets_there_is_no_report() -> None:
    assert len(recorded("4.1.0")) > 10
    assert reported("4.1.0") == []


@pytest.mark.parametrize(("version", "steps"), [("4.3.0", [39, 77, 115, 153, 180]), ("4.1.0", None)])
def test_a_backlog_is_done_when_what_was_there_is_read(version: str, steps: list[int] | None) -> None:
    backlog, done = Backlog(), []
    for each in recorded(version):
        backlog.update(each)
        done.append((backlog.done, backlog.total))
    if steps:
        assert done[:5] == [(step, 180) for step in steps]
    assert done[-1][0] == done[-1][1]
