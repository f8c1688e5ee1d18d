"""What a table lacks of a batch: repeated, taken over, moved forward or back, recreated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_group_source.errors import MissingRows
from spark_group_source.exactly_once import Lacking, OffsetRange, PartitionKey, Position, lacking
from spark_group_source.exactly_once.positions import Rewind

KEPT = {("t", "id", 0): (115, 1)}


def read(start: int, end: int, lineage: int = 1, topic_id: str = "id") -> OffsetRange:
    return OffsetRange("t", 0, start, end, topic_id, lineage=lineage)


@pytest.mark.parametrize(
    ("batch", "rewind", "first", "position"),
    [
        pytest.param(read(115, 120), "skip", 115, (120, 1), id="the next batch"),
        pytest.param(read(100, 110), "skip", 115, (115, 1), id="a repeated batch"),
        pytest.param(read(105, 118), "skip", 115, (118, 1), id="a paused member, or another one"),
        pytest.param(read(105, 118), "write", 115, (118, 1), id="a repeated batch is no rewind"),
        pytest.param(read(105, 118, lineage=0), "write", 115, (118, 1), id="a member from before the last move"),
        pytest.param(read(130, 140, lineage=2), "skip", 130, (140, 2), id="moved forward"),
        pytest.param(read(100, 110, lineage=2), "skip", 115, (115, 2), id="moved back, skipped"),
        pytest.param(read(100, 110, lineage=2), "write", 100, (110, 2), id="moved back, written again"),
        pytest.param(read(0, 10, topic_id="new"), "skip", 0, (10, 1), id="a recreated topic"),
        pytest.param(read(115, 115), "skip", 115, (115, 1), id="an empty range"),
    ],
)
def test_a_table_takes_what_it_lacks(batch: OffsetRange, rewind: Rewind, first: int, position: Any) -> None:
    (found,) = lacking([batch], KEPT, rewind)
    assert found == Lacking(batch, first, Position(*position))
    assert found.key == PartitionKey("t", batch.topic_id, 0)


def test_a_position_without_an_id_counts_once_the_topic_has_one() -> None:
    """The brokers were upgraded to a release whose topics have ids."""
    kept = {("t", "", 0): (115, 1)}
    (found,) = lacking([read(110, 120)], kept)
    assert (found.first, found.position, found.key) == (115, (120, 1), PartitionKey("t", "id", 0))
    (recreated,) = lacking([read(0, 10, topic_id="new")], kept | {("t", "id", 0): (120, 1)})
    assert recreated.first == 0, "the position without an id is that of the former topic"


def test_a_batch_from_before_the_topic_had_an_id_is_compared_with_the_position_of_the_id() -> None:
    """A query logged it, and repeats it when another member has written it and the brokers were upgraded."""
    for kept in (KEPT, KEPT | {("t", "", 0): (105, 1)}, KEPT | {("t", "former", 0): (300, 0)}):
        (found,) = lacking([read(100, 120, topic_id="")], kept)
        assert (found.first, found.position, found.key) == (115, (120, 1), PartitionKey("t", "id", 0))


def test_a_batch_ahead_of_a_table_whose_group_nobody_moved_is_an_error_with_both_offsets() -> None:
    with pytest.raises(MissingRows, match="starts at 116 in t-0, and the table has the records below 115") as found:
        lacking([read(116, 120)], KEPT)
    assert "set the position in the table to 116" in str(found.value)


def test_a_batch_of_an_earlier_lineage_ahead_of_the_table_is_an_error_that_does_not_ask_to_skip_records() -> None:
    """With the position at the batch, the member of the later lineage would leave out the records before it."""
    with pytest.raises(MissingRows, match=r"115 in t-0, and is from before.*below 110") as found:
        lacking([read(115, 120, lineage=1)], {("t", "id", 0): (110, 2)}, "write")
    assert "Start the query with a new checkpoint" in str(found.value)
    assert "set the position" not in str(found.value)


def test_another_word_for_a_rewind_is_an_error_with_the_word() -> None:
    wrong: Any = "again"
    with pytest.raises(ValueError, match="rewind is 'again'; it must be 'skip' or 'write'"):
        lacking([], {}, wrong)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_members_that_start_at_or_below_the_position_write_each_record_once(batches: list[tuple[int, int]]) -> None:
    """Each batch starts ``back`` offsets below the position and has ``size`` offsets."""
    kept: dict[tuple[str, str, int], tuple[int, int]] = {}
    written: list[int] = []
    for back, size in batches:
        position = kept.get(("t", "id", 0), (0, 1))[0]
        start = max(0, position - back)
        for each in lacking([read(start, start + size)], kept):
            written += range(each.first, each.read.end)
            kept[each.key] = each.position
    assert written == list(range(kept.get(("t", "id", 0), (0, 1))[0]))
