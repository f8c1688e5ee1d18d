"""Feeds damaged bytes to the decoder and to the interpreter of Fetch answers: only their own errors may come of it.

    python -m tests.unit.records.fuzz --minutes 10 --seed 1
    python -m tests.unit.records.fuzz --seed 1 --input 4711     (repeats one input, with its traceback)

An input is made of the seed and its number alone. It may take neither more than TIME_S nor, in a run from the command
line, more than MEMORY of address space beyond what is used at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import resource
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import FetchResponse
from kafka.record.util import encode_varint

from spark_group_source.errors import BrokerError, ProtocolError, RecordsError
from spark_group_source.fetch.messages import parse_response
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.records.responses import DecodeLimits
from tests.unit.records.build import FOREVER, Record, batch, marker, part, resealed

TIME_S = 20.0
"""Thousands of times what the slowest input takes."""
MEMORY = 512 * 2**20
GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = [
    ALL_COLUMNS,
    arrow_schema(["value"]),
    arrow_schema(["headers", "offset"]),
    arrow_schema(["key", "value"], ["value"]),
]
LONGEST = 20_000
HEADER = 61
LENGTH_AT, UP_TO_LENGTH = 8, 12
NUMBERS = (0, 1, -1, 2, 7, 127, 128, 255, 2**15 - 1, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))
FIELDS = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))
"""Positions and sizes of the fields of a record batch header, except the checksum."""


def logs() -> list[bytes]:
    """Undamaged record batches: those of real producers, and small ones, in which damage hits lengths more often."""
    small = [Record(b"v", b"k", headers=[("h", b"1"), ("n", None)]), Record(None, b""), Record(b"x" * 70)]
    built = [batch(small * times, 5, codec=codec) for codec in range(5) for times in (1, 12, 40)]
    built.append(b"".join(batch(small, 3 * each, producer=1, transactional=True) for each in range(60)))
    built.append(batch(small, 0, producer=1, transactional=True) + marker(3, 1, commit=False) + batch(small, 4))
    return built + [each.read_bytes()[:LONGEST] for each in sorted(GOLDEN.glob("*/*.log"))]


def answers() -> list[tuple[int, bytes]]:
    """Undamaged Fetch answers of one to three partitions, with the version of each layout."""
    topic_of = FetchResponse.FetchableTopicResponse
    partition_of = topic_of.PartitionData
    aborted = partition_of.AbortedTransaction(producer_id=1, first_offset=2)
    found: list[tuple[int, bytes]] = []
    for count in (1, 2, 3):
        partitions = [
            partition_of(
                partition_index=number,
                error_code=number,
                high_watermark=9,
                last_stable_offset=8,
                log_start_offset=0,
                aborted_transactions=[aborted] * number,
                preferred_read_replica=-1,
                records=batch([Record(b"v")]) * number,
            )
            for number in range(count)
        ]
        topics = [topic_of(topic="t", topic_id=UUID(int=count), partitions=partitions)] * count
        answer = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=topics)
        found += [(version, bytes(answer.encode(version=version))) for version in (4, 5, 7, 11, 12, 13)]
    return found


def mutated(rng: random.Random, raw: bytes, others: list[bytes]) -> bytes:
    """``raw`` with one to six pieces of damage, some of them from ``others``."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not found:
            break
        at = rng.randrange(len(found))
        kind = rng.randrange(8)
        if kind == 0:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at] = rng.choice((0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF))
        elif kind == 2:
            found[at : at + rng.randrange(1, 12)] = b""
        elif kind == 3:
            found[at:at] = rng.choice((rng.randbytes(rng.randrange(1, 12)), b"\xff" * 9, b"\x80" * 10, bytes(8)))
        elif kind == 4:
            del found[at:]
        elif kind == 5:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            found[at : at + rng.randrange(64)] = other[begin : begin + rng.randrange(1, 200)]
        else:
            _overwrite_field(rng, found)
    return bytes(found)


def _overwrite_field(rng: random.Random, raw: bytearray) -> None:
    """Overwrites a header field of a record batch with a critical number."""
    at, size = rng.choice(FIELDS)
    at += rng.choice(_batch_starts(raw))
    number = rng.choice(NUMBERS) + rng.randrange(-1, 2)
    raw[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "big")


def _batch_starts(raw: bytes | bytearray) -> list[int]:
    """The starts of the record batches, by their lengths."""
    found, at = [0], 0
    while at + HEADER <= len(raw):
        (length,) = struct.unpack_from(">i", raw, at + LENGTH_AT)
        if length < HEADER - UP_TO_LENGTH:
            break
        at += length + UP_TO_LENGTH
        found.append(at)
    return found


def repaired(raw: bytes) -> bytes:
    """``raw`` with correct checksums; the last record batch extends to the end of the bytes."""
    begins = _batch_starts(raw)
    whole = [(begin, end) for begin, end in itertools.pairwise(begins) if end <= len(raw)]
    last = whole[-1][1] if whole else 0
    found = b"".join(resealed(raw[begin:end]) for begin, end in whole)
    rest = bytearray(raw[last:])
    if len(rest) < HEADER:
        return found + bytes(rest)
    rest[LENGTH_AT : LENGTH_AT + 4] = (len(rest) - UP_TO_LENGTH).to_bytes(4, "big")
    return found + resealed(rest)


def odd_records(rng: random.Random) -> bytes:
    """A record batch whose records have correct lengths, and some impossible fields."""
    odd = rng.choice((0.0, 0.01, 0.05))
    count = rng.choice((1, 3, 20, 40))
    records = b"".join(_record(rng, number, odd) for number in range(count))
    header = bytearray(batch([Record(b"")] * count, 5)[:HEADER])
    header[LENGTH_AT : LENGTH_AT + 4] = (len(records) + HEADER - UP_TO_LENGTH).to_bytes(4, "big")
    return resealed(header + records)


def _record(rng: random.Random, number: int, odd: float) -> bytes:
    def varint(right: int) -> bytes:
        found = bytearray()
        encode_varint(rng.choice(NUMBERS) if rng.random() < odd else right, found.append)
        return bytes(found)

    def text(null: bool) -> bytes:
        size = rng.randrange(-1 if null else 0, 4)
        return varint(size) + b"t" * max(size, 0)

    headers = rng.choice((0, 0, 1, 3))
    fields = [b"\0", varint(number), varint(number), text(True), text(True), varint(headers)]
    body = b"".join(fields) + b"".join(text(False) + text(True) for _ in range(headers))
    return varint(len(body)) + body


class Fuzz:
    """Inputs by number; what becomes of each."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._logs = logs()
        self._answers = answers()

    def outcome(self, number: int) -> str:
        """Does input ``number``: rows, answer, or the name of the error that came.

        Raises:
            Exception: any that is not of the decoder or interpreter themselves: what is looked for.
        """
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.randrange(6)
        if kind == 0:
            try:
                version, answer = rng.choice(self._answers)
                parse_response(memoryview(mutated(rng, answer, [each for _, each in self._answers])), version)
                return "answer"
            except (ProtocolError, BrokerError) as error:
                return type(error).__name__
        try:
            if kind == 1:
                raw = odd_records(rng)
            else:
                raw = mutated(rng, rng.choice(self._logs), self._logs)
                raw = repaired(raw) if rng.randrange(10) else raw
            decode(rng, raw)
            return "rows"
        except RecordsError as error:
            return type(error).__name__


def decode(rng: random.Random, raw: bytes) -> None:
    """Decodes a log. Arrow itself finds nothing wrong, and no offset is out of range."""
    # Behind a checksum that is right, and behind one that nobody looks at.
    check_crcs = rng.randrange(2) == 0
    schema = rng.choice(SCHEMAS)
    unit_bytes, most = rng.choice((1, 100, 4096, 2**22)), rng.choice((1, 7, 2**17))
    limits = DecodeLimits(unit_bytes=unit_bytes, rows=most, batch_bytes=2**20)
    start, end = rng.choice(((0, FOREVER), (0, 20), (7, 30), (-5, 2**31)))
    aborted = rng.choice(((), ((1, 0),), ((1, 0), (1, 30), (7, -3))))
    decoder = Decoder(schema, read_committed=rng.randrange(2) == 0, check_crcs=check_crcs, limits=limits)
    found = part(raw, start, end, aborted)
    _ = found.batches.next_offset, found.batches.incomplete_batch_size
    for rows in decoder.decode([found]):
        rows.validate(full=True)
        if "offset" in rows.schema.names:
            assert all(start <= each < end for each in rows["offset"].to_pylist())


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Ends an input that hangs with a TimeoutError; for the main thread."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"more than {TIME_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TIME_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(fuzz: Fuzz, minutes: float) -> int:
    """Runs for that long, prints what came of it, and returns how many inputs were trouble."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    outcomes: Counter[str] = Counter()
    number, slowest, began = 0, (0.0, 0), time.monotonic()
    while time.monotonic() - began < minutes * 60:
        before = time.monotonic()
        try:
            with time_limit():
                outcomes[fuzz.outcome(number)] += 1
        except Exception as error:
            outcomes["trouble"] += 1
            print(f"input {number}: {type(error).__name__}: {error}", flush=True)
        slowest = max(slowest, (time.monotonic() - before, number))
        number += 1
    print(
        f"{number} inputs of seed {fuzz.seed}: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}"
    )
    print(f"slowest {slowest[0] * 1000:.0f} ms (input {slowest[1]})")
    return outcomes["trouble"]


def main() -> None:
    """Ends with 1 where anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=int, help="repeats this one")
    given = parser.parse_args()
    if given.input is not None:
        print(Fuzz(given.seed).outcome(given.input))
        return
    sys.exit(1 if run(Fuzz(given.seed), given.minutes) else 0)


if __name__ == "__main__":
    main()
