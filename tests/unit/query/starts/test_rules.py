"""Where a partition starts: the rows of the table of lineages in ``DESIGN.md``."""

from __future__ import annotations

from typing import Any

import pytest

from spark_group_source.group.commits import CommittedOffset, commit_metadata
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.query.starts.rules import Start, StartRule, resume_at
from tests.unit.query.own_commits import ours

A = TopicPartition("t", 0)
LOGGED, COMMITTED, UNTAGGED, REPLAYED = StartRule.LOGGED, StartRule.COMMITTED, StartRule.UNTAGGED, StartRule.REPLAYED


def logged(end: int, lineage: int = 0) -> OffsetRange:
    return OffsetRange(*A, 40, end, lineage=lineage)


@pytest.mark.parametrize(
    ("committed", "logged", "more", "start"),
    [
        (None, None, {}, None),
        (None, logged(80, 7), {}, Start(80, LOGGED, 7)),
        (ours(50), None, {}, Start(50, COMMITTED)),
        (ours(50, 7), None, {}, Start(50, COMMITTED, 7)),
        (CommittedOffset(50), None, {}, Start(50, UNTAGGED, None)),
        (ours(50), logged(80), {}, Start(80, LOGGED)),
        (ours(90), logged(80), {}, Start(90, COMMITTED)),
        (ours(50, 7), logged(80, 7), {}, Start(80, LOGGED, 7)),
        (ours(50, 8), logged(80, 7), {}, Start(50, COMMITTED, 8)),
        (ours(90, 6), logged(80, 7), {}, Start(80, LOGGED, 7)),
        (CommittedOffset(90), logged(80), {}, Start(90, UNTAGGED, None)),
        (CommittedOffset(50, "set by hand"), logged(80), {}, Start(50, UNTAGGED, None)),
        (CommittedOffset(0), logged(80), {}, Start(0, UNTAGGED, None)),
        # A commit with fields after the tag is ours.
        (CommittedOffset(50, commit_metadata({"application": "app-1"})), logged(80), {}, Start(80, LOGGED)),
        # Spark has replayed the logged batch: a decision from before, for an offset in it, is followed already.
        (CommittedOffset(60), logged(80), {"replayed": logged(80, 8)}, Start(80, REPLAYED, None)),
        (ours(60, 8), logged(80), {"replayed": logged(80, 8)}, Start(80, REPLAYED, 8)),
        (ours(60, 9), logged(80), {"replayed": logged(80, 8)}, Start(60, COMMITTED, 9)),
        (CommittedOffset(39), logged(80), {"replayed": logged(80, 8)}, Start(39, UNTAGGED, None)),
        # Another consumer reads on from the beginning of the batch in which the query gave the partition up.
        (CommittedOffset(60), logged(80), {"given_up": 50}, Start(80, LOGGED)),
        (CommittedOffset(50), logged(80), {"given_up": 50}, Start(50, UNTAGGED, None)),
        (CommittedOffset(40), logged(80), {"given_up": 50}, Start(40, UNTAGGED, None)),
    ],
)
def test_the_later_lineage_applies_and_within_one_the_further_offset(
    committed: CommittedOffset | None, logged: OffsetRange | None, more: dict[str, Any], start: Start | None
) -> None:
    assert resume_at(committed, logged, **more) == start
