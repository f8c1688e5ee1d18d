"""A rewind of a group holds for every later owner of a partition, whatever its checkpoint logged before: all cases.

Queries of a group read some records one after the other and stop: each checkpoint stands at another offset. Then
somebody decides where the group continues, and the queries start again one after the other, while those before have a
batch in flight.

All cases read the same topic, which nobody writes to meanwhile; each has its own group.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_group_source.offsets import BatchOffset, OffsetRange
from tests.contract.conftest import BASES, Bench, Kafka, Query, eventually

PARTITIONS, END = 4, 40
FIRST_READ = 10
"""Offsets of each partition that a query reads before the decision."""
EARLIER, LATER = 2, 35
SMALL = 1
"""A limit of records so low that a batch reads one of each partition."""

DECISIONS = {"all earlier": EARLIER, "all later": LATER, "one earlier": EARLIER, "reset": 0, "callback": EARLIER}
"""Where the group continues: an operator has set all partitions or one, the first query to start has
``resetOffsetsOnStart`` and a new checkpoint, or its ``startingOffsetsCallback`` goes back."""

CHECKPOINTS = "kept", "each lost", "one lost"
KILLS = "none", "planned", "completed", "committed"
"""What the first query to start had done with its first batch when it was killed. It returns after the others."""


@dataclass(frozen=True)
class Case:
    """``order`` has the numbers of the queries in the order of their starts; query 0 loses its checkpoint."""

    queries: int
    member: str
    protocol: str
    decision: str
    order: tuple[int, ...]
    checkpoints: str
    kill: str


CASES = [
    Case(len(order), member, protocol, decision, order, checkpoints, kill)
    for order in (*itertools.permutations(range(2)), *itertools.permutations(range(3)))
    for member in ("dynamic", "static")
    for protocol in ("range", "cooperative-sticky", "consumer")
    for decision in DECISIONS
    for checkpoints in CHECKPOINTS
    for kill in KILLS
]


def go_back(logged_ends: dict[str, dict[int, int]], positions: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """A ``startingOffsetsCallback`` that goes back only from where the queries stood before the decision."""
    stood = {FIRST_READ * 2, FIRST_READ * 3}
    return {
        topic: {number: EARLIER for number, at in offsets.items() if at in stood}
        for topic, offsets in positions.items()
    }


def fill(kafka: Kafka, topic: str) -> str:
    """Creates and fills the topic of all cases; returns its name."""
    kafka.create_topic(topic, PARTITIONS)
    for number in range(PARTITIONS):
        kafka.produce(topic, [f"v{each}" for each in range(END)], partition=number)
    return topic


class CaseRun:
    """One run of a case. ``reads`` are the ranges of all batches that were completed since the decision."""

    def __init__(self, kafka: Kafka, topic: str, group: str, case: Case) -> None:
        self._case = case
        self._bench = Bench(kafka, topic, group, BASES["consumer" if case.protocol == "consumer" else "classic"])
        self._live: list[Query] = []
        self._killed_batch: list[OffsetRange] = []
        self.reads: list[OffsetRange] = []

    def problems(self) -> list[str]:
        """Runs the case; returns one line for each broken promise."""
        try:
            starts = self._decide(self._read_before())
            self._read_after(starts)
            return list(self._broken(starts))
        finally:
            self._bench.close()

    # Queries

    def _query(self, number: int, logged: BatchOffset, decision: str = "") -> Query:
        options = {}
        if self._case.protocol != "consumer":
            options["kafka.partition.assignment.strategy"] = self._case.protocol
        if self._case.member == "static":
            options["kafka.group.instance.id"] = f"{self._bench.group}-{number}"
        if decision == "reset":
            options["resetOffsetsOnStart"] = "true"
        if decision == "callback":
            options["startingOffsetsCallback"] = f"{__name__}:go_back"
        return self._bench.query(logged, **options)

    def _end(self, query: Query) -> None:
        """Ends a query and its membership; the driver does not learn of a batch that was not reported to it."""
        self._live.remove(query)
        if self._case.member == "dynamic":
            query.close()
            return
        member = query.me
        query.close()
        self._bench.remove(member)  # as if its session had timed out

    def _start(self, query: Query, *, replayed: bool = False) -> None:
        """Starts a query while the others have a batch in flight, and waits until the partitions are split."""
        others = [other for other in self._live if other.poll(SMALL)]
        query.driver.start(query.end, replayed=replayed)
        self._live.append(query)
        for other in others:
            self._complete(other)
        query.driver.await_assignment()
        eventually(self._split, "the partitions to be split")

    def _split(self) -> bool:
        owned = [query.owns() for query in self._live]
        sizes = sorted(len(each) for each in owned)
        return len(set().union(*owned)) == sum(sizes) == PARTITIONS and sizes[-1] - sizes[0] < 2

    def _complete(self, query: Query) -> None:
        """Completes the running batch, and reports that to the driver as the listener of the user's process does."""
        assert query.running is not None
        self.reads += query.running.reads()
        query.finish()
        query.driver.complete(query.end)

    def _batch(self, query: Query, limit: int | None = None) -> bool:
        """Runs one batch if there is one; returns whether there was."""
        if found := query.poll(limit):
            self._complete(query)
        return bool(found)

    # The story

    def _read_before(self) -> list[BatchOffset]:
        """Each query reads :data:`FIRST_READ` offsets of each partition, alone; returns their checkpoints."""
        checkpoints = []
        for number in range(self._case.queries):
            query = self._query(number, BatchOffset())
            self._start(query)
            assert self._batch(query, FIRST_READ * PARTITIONS)
            assert set(query.end.ends().values()) == {FIRST_READ * (number + 1)}
            checkpoints.append(query.end)
            self._end(query)
        return checkpoints

    def _decide(self, checkpoints: list[BatchOffset]) -> dict[int, int]:
        """Decides where the group continues; returns that offset of each partition. Loses checkpoints."""
        decision, at = self._case.decision, DECISIONS[self._case.decision]
        # The last partition is one that moves from the first query to the second.
        moved = dict.fromkeys(range(PARTITIONS - 1 if decision == "one earlier" else 0, PARTITIONS), at)
        if decision in ("all earlier", "all later", "one earlier"):
            self._bench.rewind(moved)
        lost = {"kept": 0, "each lost": self._case.queries, "one lost": 1}[self._case.checkpoints]
        self._checkpoints = [BatchOffset()] * lost + checkpoints[lost:]
        if decision == "reset":
            self._checkpoints[self._case.order[0]] = BatchOffset()
        self.reads.clear()
        return dict.fromkeys(range(PARTITIONS), FIRST_READ * self._case.queries) | moved

    def _read_after(self, starts: dict[int, int]) -> None:
        first, *others = self._case.order
        decision = self._case.decision
        query = self._query(first, self._checkpoints[first], decision)
        self._start(query)
        back = self._first_batches(query)
        for number in others:
            self._start(self._query(number, self._checkpoints[number]))
            for each in self._live:
                self._batch(each, SMALL)
        if back is not None:
            replayed = self._case.kill == "planned"
            if replayed:
                self.reads += self._killed_batch
            self._start(self._query(first, back, decision), replayed=replayed)
        eventually(self._at_end, "the group's commits to reach the end")

    def _first_batches(self, query: Query) -> BatchOffset | None:
        """Runs the first batches of the first query; returns its checkpoint if it is killed."""
        kill = self._case.kill
        if kill == "none":
            self._batch(query, SMALL)
            self._batch(query, SMALL)
            return None
        self._killed_batch = query.begin(SMALL)
        logged = query.running
        if kill == "committed":
            self._complete(query)
        elif kill == "completed":
            self.reads += self._killed_batch
        self._end(query)
        return logged

    def _at_end(self) -> bool:
        for query in self._live:
            self._batch(query)
        return self._bench.committed() == dict.fromkeys(range(PARTITIONS), END)

    # The oracle

    def _broken(self, starts: dict[int, int]) -> Iterator[str]:
        """What is wrong with the completed reads, if everything from ``starts`` on was to be read, and nothing else."""
        times = Counter((each.partition, at) for each in self.reads for at in range(each.start, each.end))
        killed = {(each.partition, at) for each in self._killed_batch for at in range(each.start, each.end)}
        if self._case.kill == "committed":
            killed = set()
        for number, start in starts.items():
            yield from _named("never read", number, (at for at in range(start, END) if not times[number, at]))
            yield from _named("read before the start", number, (at for at in range(start) if times[number, at]))
            twice = (at for at in range(start, END) if times[number, at] > 1 and (number, at) not in killed)
            yield from _named("read twice", number, twice)


def _named(problem: str, number: int, offsets: Iterable[int]) -> Iterator[str]:
    if wrong := list(offsets):
        yield f"{problem}: partition {number} [{wrong[0]}, {wrong[-1] + 1})"


def run(kafka: Kafka, topic: str, cases: Sequence[Case], threads: int) -> list[str]:
    """Runs cases, ``threads`` at a time; returns those that broke, with what is wrong. An exception is wrong, too."""
    began_at = time.time_ns()
    waiting, broken = iter(enumerate(cases)), list[str]()

    def work() -> None:
        for number, case in waiting:
            try:
                problems = CaseRun(kafka, topic, f"rewind-{began_at}-{number}", case).problems()
            except Exception as error:
                problems = [f"{type(error).__name__}: {error}"]
            broken.extend([f"{case}: {', '.join(problems)}"] if problems else [])

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return broken
