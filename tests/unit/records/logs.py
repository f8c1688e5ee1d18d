"""Logs for property tests: record batches with all features; interleaved, committed and aborted transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.unit.records.build import Record, batch, marker

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
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


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Record batches of a log, with gaps in them and between them."""
    raw, offset = b"", draw(st.integers(0, 2**40))
    for records in draw(st.lists(st.lists(RECORDS, min_size=1, max_size=8), min_size=1, max_size=4)):
        spaced = with_gaps(draw, records)
        raw += batch(spaced, offset, codec=draw(st.sampled_from(sorted(CODECS.values()))))
        offset += (spaced[-1].delta or 0) + 1 + draw(st.integers(0, 3))
    return raw


@dataclass
class Log:
    """A log up to its last stable offset. ``aborted`` holds producer id, first offset and offset of the marker."""

    raw: bytes = b""
    end: int = 0
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    hidden: set[int] = field(default_factory=set)
    """Offsets of aborted records, and of some gaps between them."""

    def aborted_from(self, offset: int) -> list[tuple[int, int]]:
        """The aborted transactions in the response to a fetch from ``offset``; Kafka does not define their order."""
        return [(producer, first) for producer, first, last in self.aborted if last >= offset][::-1]


@st.composite
def transactional_logs(draw: st.DrawFn) -> Log:
    """Record batches and markers of three producers, and record batches without a transaction."""
    log = Log()
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
        codec = draw(st.sampled_from(sorted(CODECS.values())))
        log.raw += batch(spaced, log.end, codec=codec, transactional=bool(producer), producer=producer or -1)
        size = (spaced[-1].delta or 0) + 1
        if producer:
            open_transactions.setdefault(producer, []).append(range(log.end, log.end + size))
        log.end += size + draw(st.integers(0, 2))
    for producer in list(open_transactions):
        end_of(producer, draw(st.booleans()))
    return log
