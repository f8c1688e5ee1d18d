"""Decodes bytes of real producers, and compares the rows with Java's consumer (``golden/capture.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.records.build import Row, decoded, part, rows

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(str(each.relative_to(GOLDEN).with_suffix("")) for each in GOLDEN.glob("*/*.log"))
PRODUCERS, CODECS = ("java", "kafka-python", "librdkafka"), ("none", "gzip", "snappy", "lz4", "zstd")


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    log = GOLDEN / f"{name}.log"
    return log.read_bytes(), json.loads((log.parent / "expected.json").read_text())


def expected(logged: list[dict[str, Any]]) -> list[Row]:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    found = []
    for each in logged:
        headers = [(bytes.fromhex(key).decode(), raw(value)) for key, value in each["headers"]]
        key, value = raw(each["key"]), raw(each["value"])
        found.append(Row(each["offset"], each["timestamp"], each["timestampType"], key, value, headers or None))
    return found


def test_rows_and_end_offsets_equal_those_of_javas_consumer() -> None:
    assert {f"{producer}/{codec}" for producer in PRODUCERS for codec in CODECS} <= set(NAMES)
    for name in NAMES:
        raw, logged = golden(name)
        found = rows(decoded(part(raw)))
        assert found, name
        assert found == expected(logged["read_uncommitted"]), name
        assert part(raw).batches.next_offset == logged["end"], name


def test_aborted_transactions_are_skipped_as_in_javas_consumer() -> None:
    raw, logged = golden("transactions/java")
    aborted = [(producer, first) for producer, first in logged["aborted"]]
    found = rows(decoded(part(raw, aborted=aborted), read_committed=True))
    assert found == expected(logged["read_committed"])
    assert len(found) < len(logged["read_uncommitted"])
    assert len(aborted) == 3
