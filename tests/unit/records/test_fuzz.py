"""Damaged bytes give rows, an answer, or an error of the decoder or interpreter itself, in limited time.

``make fuzz`` tries many more.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse

from spark_group_source.errors import BrokerError, ProtocolError, RecordsError
from spark_group_source.fetch.messages import parse_response
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.records.responses import DecodeLimits
from tests.unit.records.build import FOREVER, Record, batch, marker, part

TIME_S = 20.0
"""Thousands of times what the slowest input takes."""
SOME = [Record(b"v", b"k", headers=[("h", b"1"), ("n", None)]), Record(None, b""), Record(b"x" * 70)]
LOGS = [
    *(batch(SOME * times, 5, codec=codec) for codec in range(5) for times in (1, 12, 40)),
    b"".join(batch(SOME, 3 * each, producer=1, transactional=True) for each in range(60)),
    batch(SOME, 0, producer=1, transactional=True) + marker(3, 1, commit=False) + batch(SOME, 4),
    *(each.read_bytes()[:20_000] for each in sorted((Path(__file__).parent / "golden").glob("*/*.log"))),
]
SCHEMAS = [ALL_COLUMNS, arrow_schema(["headers", "offset"]), arrow_schema(["key", "value"], ["value"])]
NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 2**15 - 1, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))
"""Positions and sizes of the fields of a record batch header, except the checksum."""


def answers() -> list[tuple[int, bytes]]:
    """Undamaged Fetch answers of one to three partitions, with the version of each layout."""
    topic_of = FetchResponse.FetchableTopicResponse
    partition_of = topic_of.PartitionData
    aborted = partition_of.AbortedTransaction(producer_id=1, first_offset=2)
    found: list[tuple[int, bytes]] = []
    for count in (1, 2, 3):
        partitions = [partition_of(partition_index=number, error_code=number) for number in range(count)]
        for number, each in enumerate(partitions):
            each.aborted_transactions, each.records = [aborted] * number, batch([Record(b"v")]) * number
        topics = [topic_of(topic="t", topic_id=UUID(int=count), partitions=partitions)] * count
        answer = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)
        found += [(version, bytes(answer.encode(version=version))) for version in (4, 5, 7, 11, 12, 13)]
    return found


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes with flipped bits, cuts, insertions, and critical numbers in the header of a record batch."""
    found = bytearray(whole)
    for _ in range(draw(st.sampled_from([1, 1, 2, 3, 6]))):
        at, kind = draw(st.integers(0, max(len(found) - 1, 0))), draw(st.integers(0, 2))
        if kind == 0 and found:
            found[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            removed = draw(st.sampled_from([0, 1, 4, 12, 64, len(found)]))
            others = st.sampled_from([b"\xff" * 9, b"\x80" * 10, bytes(8), whole[at : at + 200]])
            found[at : at + removed] = draw(st.binary(max_size=12) | others)
        else:
            start, size = draw(st.sampled_from(FIELDS))
            number = draw(st.sampled_from(NUMBERS)) % 2 ** (8 * size)
            found[start : start + size] = number.to_bytes(size, "big")
    return bytes(found)


def outcomes(attempt: Callable[[st.DataObject], str]) -> Counter[str]:
    """What becomes of many inputs; an input that hangs ends with a TimeoutError."""
    found = Counter[str]()

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {TIME_S} s")

    examples = int(os.environ.get("FUZZ_EXAMPLES", "150"))

    @settings(max_examples=examples, suppress_health_check=[*HealthCheck], database=None)
    @given(st.data())
    def try_all(data: st.DataObject) -> None:
        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, TIME_S)
        try:
            found[attempt(data)] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    try_all()
    return found


def test_damaged_record_batches_give_rows_or_a_records_error() -> None:
    def attempt(data: st.DataObject) -> str:
        raw = data.draw(st.sampled_from(LOGS).flatmap(damaged))
        if data.draw(st.booleans()) and len(raw) > 12:  # otherwise cuts leave nothing but incomplete record batches
            raw = raw[:8] + (len(raw) - 12).to_bytes(4, "big") + raw[12:]
        unit_bytes, most = data.draw(st.sampled_from([(1, 2**17), (100, 7), (4096, 2**17), (2**22, 1)]))
        start, end = data.draw(st.sampled_from([(0, FOREVER), (0, 20), (7, 30), (-5, 2**31)]))
        aborted = data.draw(st.sampled_from([(), ((1, 0),), ((1, 0), (1, 30), (7, -3))]))
        decoder = Decoder(
            data.draw(st.sampled_from(SCHEMAS)),
            read_committed=data.draw(st.booleans()),
            check_crcs=data.draw(st.sampled_from([False, False, False, True])),
            limits=DecodeLimits(unit_bytes=unit_bytes, rows=most, batch_bytes=2**20),
        )
        try:
            found = part(raw, start, end, aborted)
            _ = found.batches.next_offset, found.batches.incomplete_batch_size
            for rows in decoder.decode([found]):
                rows.validate(full=True)
                if "offset" in rows.schema.names:
                    assert all(start <= each < end for each in rows["offset"].to_pylist())
        except RecordsError as error:
            return type(error).__name__
        return "rows"

    found = outcomes(attempt)
    assert min(found[each] for each in ("rows", "CorruptRecords", "UnsupportedRecords")) > 0, found


def test_damaged_fetch_answers_are_read_or_one_of_our_errors() -> None:
    undamaged = answers()

    def attempt(data: st.DataObject) -> str:
        version, answer = data.draw(st.sampled_from(undamaged))
        try:
            parse_response(memoryview(data.draw(damaged(answer))), version)
        except (ProtocolError, BrokerError) as error:
            return type(error).__name__
        return "answer"

    found = outcomes(attempt)
    assert min(found["answer"], found["ProtocolError"]) > 0, found


def test_a_name_of_negative_size_does_not_lead_back() -> None:
    topics, first, second = (1000).to_bytes(4, "big"), bytes(6), (-6).to_bytes(2, "big", signed=True)
    with pytest.raises(ProtocolError, match="not a Fetch response"):
        parse_response(memoryview(bytes(4) + topics + first + second), 4)
