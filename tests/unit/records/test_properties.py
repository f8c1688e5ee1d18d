"""For any log and any fetch sizes, the rows equal the rows of kafka-python's reader."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_group_source.records.batches import PartitionRecords
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.responses import DecodeLimits
from tests.unit.records.build import FOREVER, Row, decoded, part, rows, rows_of_kafka_python
from tests.unit.records.logs import Log, logs, transactional_logs

LIMITS = st.builds(DecodeLimits, unit_bytes=st.sampled_from([1, 100, 2000, 2**22]), rows=st.sampled_from([1, 3, 2**17]))
# Few examples with many features each, because a log takes milliseconds to build.
FEW = settings(max_examples=30)


def fetches(log: Log, cuts: list[int], start: int, end: int) -> list[PartitionRecords]:
    """The log in several responses: each starts with the record batch that was incomplete in the last one."""
    found, begin, position = [], 0, start
    for cut in [*sorted(cuts), len(log.raw)]:
        each = part(log.raw[begin:cut], position, end, log.aborted_from(position))
        after = each.batches.next_offset
        if after is not None:
            found.append(each)
            begin += each.batches.boundaries[-1]
            position = max(position, after)
    return found


def committed(log: Log, start: int, end: int) -> list[Row]:
    return [
        each for each in rows_of_kafka_python(log.raw) if each.offset not in log.hidden and start <= each.offset < end
    ]


@FEW
@given(transactional_logs(), LIMITS, st.data())
def test_committed_rows_do_not_depend_on_the_size_of_fetches_and_decode_units(
    log: Log, limits: DecodeLimits, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(log.raw)), max_size=3))
    parts = fetches(log, cuts, 0, FOREVER)
    expected = committed(log, 0, FOREVER)
    assert rows(decoded(*parts, read_committed=True, limits=limits)) == expected
    one_by_one = [row for each in parts for row in rows(decoded(each, read_committed=True, limits=limits))]
    assert one_by_one == expected


@FEW
@given(transactional_logs(), st.data())
def test_a_range_has_exactly_its_committed_rows(log: Log, data: st.DataObject) -> None:
    bound = st.integers(-1, log.end + 1)
    start, end = data.draw(bound), data.draw(bound)
    found = decoded(part(log.raw, start, end, log.aborted_from(start)), read_committed=True)
    assert rows(found) == committed(log, start, end)


@FEW
@given(transactional_logs())
def test_read_uncommitted_includes_aborted_rows(log: Log) -> None:
    assert rows(decoded(part(log.raw, aborted=log.aborted_from(0)))) == rows_of_kafka_python(log.raw)


@FEW
@given(logs(), st.lists(st.sampled_from(ALL_COLUMNS.names), min_size=1, unique=True), LIMITS)
def test_a_column_does_not_depend_on_the_other_columns(raw: bytes, names: list[str], limits: DecodeLimits) -> None:
    found = decoded(part(raw), schema=arrow_schema(names), limits=limits)
    assert found.combine_chunks() == decoded(part(raw)).select(names).combine_chunks()
