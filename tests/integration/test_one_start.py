"""A query starts once: after any crash it goes on where it stood, whatever ``startingOffsets`` resolves to by then.

Each query is killed at one step of its first run, again in the first batch of its second run and in the second batch of
its third, and reads the rest in its fourth. Records arrive in all partitions all the while. A plain process drives the
source as Spark does (``micro_batches``).

The start is decided when it is durable: the positions are committed to the group before batch 0 is planned. Before that
a restart knows of no first run, and is a first start again. If it starts at the latest offsets, it may skip what
arrived before it. A ``startingOffsetsCallback`` that moves the start of partitions never read may move it again until
batch 0 is logged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration import callbacks
from tests.integration.query_process import PlainQuery
from tests.integration.standing import caught_up, fill

PARTITIONS = (0, 1)
OLD, EACH, LIMIT = 20, 10, 8
"""Records of each partition from before the query, records that arrive at a time, and offsets of a batch."""
MIDDLE = OLD // 2
LONG_AGO_MS, THEN_MS = 1_500_000_000_000, 1_600_000_000_000

STEPS = {
    "joining": "joining",
    "positions": "planned 0",
    "empty batch": "idle 0",
    "in batch 0": "read 0",
    "after batch 0": "completed 0",
    "in batch 1": "read 1",
    "after batch 1": "completed 1",
}
"""Where the first run is killed, and the event at which it waits for that."""
NOTHING_TO_READ = {"joining", "positions", "empty batch"}
STARTS = ("earliest", "latest", "offsets", "time", "callback")
IN_SHORT = {(start, step) for start in ("latest",) for step in ("empty batch", "in batch 0")}

Table = dict[tuple[str, bool], dict[str, str]]


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """What each cell showed; printed when all are over."""
    found: Table = {}
    yield found
    lines = [" | ".join(["startingOffsets, resetOffsetsOnStart", *STEPS]), "|".join(["---"] * (len(STEPS) + 1))]
    for (start, reset), cells in found.items():
        lines.append(" | ".join([f"{start}, {reset}".lower(), *(cells.get(step, "") for step in STEPS)]))
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\n" + "\n".join(f"| {line} |" for line in lines))


class Story:
    """A query's life over a topic of its own: what arrived, and what it read."""

    def __init__(
        self, kafka: EmbeddedKafka, topic: str, group: str, plain: Callable[..., PlainQuery], start: str, reset: bool
    ) -> None:
        self._kafka, self._topic, self._group, self._plain = kafka, topic, group, plain
        self._start, self._reset = start, reset
        self._begin = 0
        self._arrived = 0

    def begins(self, at: int) -> int:
        """Writes the records from before the query; returns the offset of each partition at which it is to start."""
        if self._start == "earliest":
            return 0
        self._begin = at
        for partition in PARTITIONS:
            rows = [("key", f"{number}", None, LONG_AGO_MS if number < at else THEN_MS) for number in range(OLD)]
            self._kafka.produce(self._topic, rows, partition=partition)
        self._arrived = OLD
        return at

    def arrive(self) -> int:
        """More records arrive in each partition; returns the offset of the first."""
        fill(self._kafka, self._topic, EACH)
        self._arrived += EACH
        return self._arrived - EACH

    def run(self, *pause: str) -> PlainQuery:
        """Starts the query, for the first time or again, when the group has forgotten the run before."""
        from kafka.admin import MemberToRemove

        if dead := [MemberToRemove(member_id=each.consumer_id) for each in self._kafka.members(self._group)]:
            with self._kafka.admin() as admin:
                admin.remove_group_members(self._group, dead)
        places = {str(partition): self._begin for partition in PARTITIONS}
        before = {str(partition): self._begin - callbacks.FURTHER for partition in PARTITIONS}
        function = f"{callbacks.__name__}:{callbacks.further.__name__}"
        how = {
            "callback": {"startingOffsets": json.dumps({self._topic: before}), "startingOffsetsCallback": function},
            "offsets": {"startingOffsets": json.dumps({self._topic: places})},
            "time": {"startingTimestamp": str(THEN_MS), "startingOffsetsByTimestampStrategy": "latest"},
        }.get(self._start, {"startingOffsets": self._start})
        more = {"resetOffsetsOnStart": str(self._reset), "maxOffsetsPerTrigger": str(LIMIT), **how}
        return self._plain(self._topic, "checkpoint", *pause, **more)

    def read_all(self) -> bool:
        return caught_up(self._kafka, self._topic, self._group)

    def problems(self, last: PlainQuery, due_from: int) -> str:
        """What is wrong, or ``ok``: all from ``due_from`` on is to be read, once, and nothing before the start."""
        read = Counter(last.places())
        due = {(partition, at) for partition in PARTITIONS for at in range(due_from, self._arrived)}
        early = sum(at < self._begin for _, at in read)
        skipped, repeated = len(due - read.keys()), sum(count - 1 for count in read.values())
        wrong = {"skipped": skipped, "repeated": repeated, "before the start": early}
        return ", ".join(f"{what} {count}" for what, count in wrong.items() if count) or "ok"


@pytest.fixture
def story(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, plain: Callable[..., PlainQuery]
) -> Callable[[str, bool], Story]:
    return lambda start, reset: Story(kafka, topic(partitions=len(PARTITIONS)), group, plain, start, reset)


def cells() -> Iterator[object]:
    for start in STARTS:
        for reset in (False, True):
            for step in STEPS:
                marks = () if (start, step) in IN_SHORT else (pytest.mark.slow,)
                yield pytest.param(start, reset, step, id=f"{start}-{reset}-{step}", marks=marks)


@pytest.mark.parametrize(("start", "reset", "step"), list(cells()))
def test_after_a_crash_at_any_step_a_query_keeps_its_start_position(
    story: Callable[..., Story], table: Table, start: str, reset: bool, step: str
) -> None:
    current = story(start, reset)
    # Latest is the end, and so is a given start where the first run is to find nothing to read.
    due = current.begins(OLD if start == "latest" or step in NOTHING_TO_READ else MIDDLE)
    first = current.run("started", STEPS[step])
    if step not in NOTHING_TO_READ:
        first.reaches("started")
        current.arrive()
    first.go_on("started")
    first.reaches(STEPS[step])
    first.kill()
    if start == "callback" and step == "positions":
        due += callbacks.FURTHER  # nothing tells the callback that the query has started before
    undecided = step == "joining"
    for number in (1, 2):
        current.arrive()
        event = f"read a batch, number {number} of this run"
        again = current.run("started", event)
        # A restart reads first where a batch was cut short, and finds its positions first where none was.
        again.until(lambda run=again: set(run.events()) - {"joining"}, what="its first step")  # type: ignore[misc]
        arrived = current.arrive()
        if undecided and number == 1 and start == "latest":
            again.reaches("started")
            due = arrived
        again.go_on("started")
        again.reaches(event)
        again.kill()
    current.arrive()
    last = current.run()
    last.until(current.read_all, what="reading all")
    last.end()
    problems = current.problems(last, due)
    table.setdefault((start, reset), {})[step] = problems
    assert problems == "ok"
