"""For any log and any fetch sizes, the rows equal the rows of kafka-python's reader."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_group_source.records.batches import PartitionRecords
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.responses import DecodeLimits
from tests.unit.records.build import FOREVER, Record, Row, batch, decoded, marker, part, rows, rows_of_kafka_python

# Sizes on both sides of the limits at which a length takes one more byte.
NULLABLE = st.none() | st.binary(max_size=6) | st.sampled_from([*range(40, 70), *range(8150, 8200)]).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=3), NULLABLE), max_size=3)
RECORDS = st.builds(Record, NULLABLE, NULLABLE, st.integers(-1, 2**52), HEADERS)
STEPS = [1, 1, 1, 2, 100, 10_000]


def with_gaps(draw: st.DrawFn, records: list[Record]) -> list[Record]:
    """The records with gaps between them, as after compaction."""
    steps = draw(st.lists(st.sampled_from(STEPS), min_size=len(records), max_size=len(records)))
    deltas = [sum(steps[:index]) - 1 for index in range(1, len(steps) + 1)]
    return [each._replace(delta=delta) for each, delta in zip(records, deltas, strict=True)]


@dataclass
class Log:
    """A log up to its last stable offset. ``aborted`` holds producer id, first offset and offset of the marker."""

    begin: int
    end: int
    raw: bytes = b""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)
    """Offsets of aborted records, and of some gaps between them."""

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        """The aborted transactions in the response to a fetch from ``offset``; Kafka does not define their order."""
        return [(producer, first) for producer, first, last in self.aborted if last >= offset][::-1]


@st.composite
def transactional_logs(draw: st.DrawFn) -> Log:
    """Record batches and markers of three producers, and record batches without a transaction, with gaps."""
    begin = draw(st.sampled_from([0, 2**40]))
    log = Log(begin, begin)
    open_transactions: dict[int, list[range]] = {}

    def end_of(producer: int, commit: bool) -> None:
        written = open_transactions.pop(producer)
        if not commit:
            log.aborted.append((producer, written[0].start, log.end))
            log.hidden.update(*written)
        log.raw += marker(log.end, producer, commit)
        log.end += 1

    for producer in draw(st.lists(st.integers(0, 3), min_size=1, max_size=12)):
        if producer in open_transactions and draw(st.booleans()):
            end_of(producer, draw(st.booleans()))
            continue
        spaced = with_gaps(draw, draw(st.lists(RECORDS, min_size=1, max_size=3)))
        codec = draw(st.integers(0, 4))
        log.raw += batch(spaced, log.end, codec=codec, transactional=bool(producer), producer=producer or -1)
        size = (spaced[-1].delta or 0) + 1
        if producer:
            open_transactions.setdefault(producer, []).append(range(log.end, log.end + size))
        log.end += size + draw(st.integers(0, 2))
    for producer in list(open_transactions):
        end_of(producer, draw(st.booleans()))
    return log


LIMITS = st.builds(DecodeLimits, unit_bytes=st.sampled_from([1, 100, 2000, 2**22]), rows=st.sampled_from([1, 3, 2**17]))
# Few examples with many features each, because a log takes milliseconds to build.
FEW = settings(max_examples=20)


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
def test_committed_rows_do_not_depend_on_sizes_of_fetches(log: Log, limits: DecodeLimits, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(log.raw)), max_size=3))
    parts = fetches(log, cuts, 0, FOREVER)
    expected = committed(log, 0, FOREVER)
    assert rows(decoded(*parts, read_committed=True, limits=limits)) == expected
    one_by_one = [row for each in parts for row in rows(decoded(each, read_committed=True, limits=limits))]
    assert one_by_one == expected


@FEW
@given(transactional_logs(), st.data())
def test_a_range_has_exactly_its_committed_rows(log: Log, data: st.DataObject) -> None:
    bound = st.integers(log.begin - 1, log.end + 1) | st.just(0)
    start, end = data.draw(bound), data.draw(bound)
    found = decoded(part(log.raw, start, end, log.aborted_from(start)), read_committed=True)
    assert rows(found) == committed(log, start, end)


@FEW
@given(transactional_logs(), LIMITS)
def test_read_uncommitted_includes_aborted_rows(log: Log, limits: DecodeLimits) -> None:
    found = decoded(part(log.raw, aborted=log.aborted_from(0)), limits=limits)
    assert rows(found) == rows_of_kafka_python(log.raw)


@FEW
@given(transactional_logs(), st.lists(st.sampled_from(ALL_COLUMNS.names), min_size=1, unique=True), LIMITS)
def test_a_column_does_not_depend_on_the_other_columns(log: Log, names: list[str], limits: DecodeLimits) -> None:
    found = decoded(part(log.raw), schema=arrow_schema(names), limits=limits)
    assert found.combine_chunks() == decoded(part(log.raw)).select(names).combine_chunks()
