"""Feeds damaged bytes to the decoder and to the interpreter of Fetch answers: only their own errors may come of it.

    python -m tests.unit.records.fuzz --minutes 10 --seed 1
    python -m tests.unit.records.fuzz --seed 1 --input 4711     (repeats one input, with its traceback)

An input is made of the seed and its number alone. It may take neither more than TIME_S nor, in a run from the command
line, more than MEMORY of address space beyond what is used at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from kafka.protocol.consumer import FetchResponse

from spark_group_source.errors import BrokerError, ProtocolError, RecordsError
from spark_group_source.fetch.messages import parse_response
from spark_group_source.records.columns import ALL_COLUMNS, arrow_schema
from spark_group_source.records.decode import Decoder
from spark_group_source.records.responses import DecodeLimits
from spark_group_source.wire import versions
from tests.unit.records.build import FOREVER, Record, batch, marker, part
from tests.unit.records.mutations import mutated, odd_records, repaired

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


def logs() -> list[bytes]:
    """Undamaged record batches: those of real producers, and small ones, in which damage hits lengths more often."""
    small = [Record(b"v", b"k", headers=[("h", b"1"), ("n", None)]), Record(None, b""), Record(b"x" * 70)]
    built = [batch(small * times, 5, codec=codec) for codec in range(5) for times in (1, 12, 40)]
    built.append(b"".join(batch(small, 3 * each, producer=1, transactional=True) for each in range(60)))
    built.append(batch(small, 0, producer=1, transactional=True) + marker(3, 1, commit=False) + batch(small, 4))
    return built + [each.read_bytes()[:LONGEST] for each in sorted(GOLDEN.glob("*/*.log"))]


def answers() -> list[bytes]:
    """Undamaged Fetch answers of one to three partitions."""
    topic_of = FetchResponse.FetchableTopicResponse
    partition_of = topic_of.PartitionData
    aborted = partition_of.AbortedTransaction(version=versions.FETCH, producer_id=1, first_offset=2)
    found = []
    for count in (1, 2, 3):
        partitions = [
            partition_of(
                version=versions.FETCH,
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
        topic = topic_of(version=versions.FETCH, topic_id=UUID(int=count), partitions=partitions)
        answer = FetchResponse(
            version=versions.FETCH, throttle_time_ms=0, error_code=0, session_id=0, responses=[topic] * count
        )
        found.append(bytes(answer.encode(version=versions.FETCH)))
    return found


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
            return self._answer(rng)
        return self._log(rng, odd_records(rng) if kind == 1 else self._damaged(rng))

    def _answer(self, rng: random.Random) -> str:
        raw = mutated(rng, rng.choice(self._answers), self._answers)
        try:
            parse_response(memoryview(raw))
        except (ProtocolError, BrokerError) as error:
            return type(error).__name__
        return "answer"

    def _damaged(self, rng: random.Random) -> bytes:
        raw = mutated(rng, rng.choice(self._logs), self._logs)
        return repaired(raw) if rng.randrange(10) else raw

    def _log(self, rng: random.Random, raw: bytes) -> str:
        # Behind a checksum that is right, and behind one that nobody looks at.
        check_crcs = rng.randrange(2) == 0
        schema = rng.choice(SCHEMAS)
        limits = DecodeLimits(
            unit_bytes=rng.choice((1, 100, 4096, 2**22)), rows=rng.choice((1, 7, 2**17)), batch_bytes=2**20
        )
        start, end = rng.choice(((0, FOREVER), (0, 20), (7, 30), (-5, 2**31)))
        aborted = rng.choice(((), ((1, 0),), ((1, 0), (1, 30), (7, -3))))
        decoder = Decoder(schema, read_committed=rng.randrange(2) == 0, check_crcs=check_crcs, limits=limits)
        try:
            found = part(raw, start, end, aborted)
            _ = found.batches.next_offset, found.batches.incomplete_batch_size
            for each in decoder.decode([found]):
                check(each, start, end)
        except RecordsError as error:
            return type(error).__name__
        return "rows"


def check(rows: pa.RecordBatch, start: int, end: int) -> None:
    """Arrow itself finds nothing wrong, and no offset is out of range."""
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
    troubles = number = 0
    slowest = (0.0, 0)
    began = time.monotonic()
    while time.monotonic() - began < minutes * 60:
        before = time.monotonic()
        try:
            with time_limit():
                outcomes[fuzz.outcome(number)] += 1
        except Exception as error:
            troubles += 1
            print(f"input {number}: {type(error).__name__}: {error}", flush=True)
        slowest = max(slowest, (time.monotonic() - before, number))
        number += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{number} inputs of seed {fuzz.seed} in {time.monotonic() - began:.0f} s, {troubles} of them trouble")
    print(", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    print(f"slowest {slowest[0] * 1000:.0f} ms (input {slowest[1]}), {peak:.0f} MiB of memory at most")
    return troubles


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
