"""The code in ``docs/monitoring.md`` that reads the offsets of a progress computes the lag."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition, latest_offset_json

PAGE = Path(__file__).resolve().parents[3] / "docs" / "monitoring.md"


def documented_lag(progress: dict[str, Any]) -> dict[tuple[int, str, int], int]:
    section = PAGE.read_text().partition("### Offsets in the progress")[2]
    code = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)[0]
    names: dict[str, Any] = {}
    exec(code, names)
    found: dict[tuple[int, str, int], int] = names["lag"](SimpleNamespace(json=json.dumps(progress)))
    return found


@pytest.mark.parametrize("as_text", [False, True], ids=["classic", "connect"])
def test_the_documented_code_computes_the_lag_of_each_partition(as_text: bool) -> None:
    ranges = [OffsetRange("topics", 0, 3, 23, "id", 4, 7), OffsetRange("u", 10, 7, 7), OffsetRange("v", 0, 1, 2)]
    end = BatchOffset.from_ranges(ranges, "g").as_json()
    latest = latest_offset_json({TopicPartition("topics", 0): 30, TopicPartition("u", 10): 7}, {"batches": 3})
    offsets = [json.dumps(each) if as_text else each for each in (end, latest)]
    sources = [{"startOffset": None, "endOffset": offsets[0], "latestOffset": offsets[1]}]
    assert documented_lag({"sources": sources}) == {(0, "topics", 0): 7, (0, "u", 10): 0}
    others: list[dict[str, Any]] = [
        {"endOffset": {"topics": {"0": 5}}, "latestOffset": {"topics": {"0": 6}}},
        {"endOffset": 5, "latestOffset": 7},
    ]
    assert documented_lag({"sources": [*others, *sources]}) == {(2, "topics", 0): 7, (2, "u", 10): 0}
    without_latest = [{"endOffset": offsets[0], "latestOffset": None}]  # PySpark 4.1
    assert documented_lag({"sources": without_latest}) == {}
