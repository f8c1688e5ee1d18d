"""A query starts once: after any crash it goes on where it stood, whatever ``startingOffsets`` resolves to by then.

Each query is killed at one step of its first run, again in the first batch of its second run and in the second batch of
its third, and reads the rest in its fourth. Records arrive in all partitions all the while. The full matrix drives the
source as Spark does, in a plain process (``micro_batches``); real Spark runs the two steps at which records were lost.

The start is decided when it is durable: the positions are committed to the group before batch 0 is planned. Before that
a restart knows of no first run, and is a first start again. If it starts at the latest offsets, it may skip what
arrived before it. A ``startingOffsetsCallback`` that moves the start of partitions never read may move it again until
batch 0 is logged.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.integration import callbacks
from tests.integration.query_process import REPOSITORY, Place, QueryProcess, eventually, source_options
from tests.integration.standing import caught_up, fill, places_in
from tests.integration.test_brokers import Producing
from tests.integration.test_failures import places_of

SCRIPT = Path(__file__).parent / "micro_batches.py"
PARTITIONS = (0, 1)
OLD, EACH, LIMIT = 20, 10, 8
"""Records of each partition from before the query, records that arrive at a time, and offsets of a batch."""
MIDDLE = OLD // 2
LONG_AGO_MS, THEN_MS = 1_500_000_000_000, 1_600_000_000_000
MOST_S = 60.0

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


class Run:
    """One run of a query in ``micro_batches``."""

    def __init__(self, work: Path, checkpoint: Path, options: dict[str, str], *pause: str) -> None:
        self._work = work
        work.mkdir()
        settings = {"options": options, "checkpoint": str(checkpoint), "pause": pause}
        (work / "settings.json").write_text(json.dumps(settings))
        with (work / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(work)], cwd=REPOSITORY, stdout=log, stderr=log
            )

    def events(self) -> list[str]:
        path = self._work / "events"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            assert self._process.poll() is None, (self._work / "log").read_text()[-4000:]
            return condition()

        eventually(holds, MOST_S, f"{what} after {self.events()}")

    def reaches(self, event: str) -> None:
        self.until(lambda: event in self.events(), event)

    def reads_or_starts(self) -> None:
        """A restart reads first where a batch was cut short, and finds its positions first where none was."""
        self.until(lambda: set(self.events()) - {"joining"}, "its first step")

    def go_on(self, event: str) -> None:
        (self._work / event).touch()

    def end(self) -> None:
        """Ends in order when it is idle."""
        (self._work / "stop").touch()
        assert self._process.wait(MOST_S) == 0, (self._work / "log").read_text()[-4000:]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Story:
    """A query's life over a topic of its own: what arrived, and what it read."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, group: str, place: Path, start: str, reset: bool) -> None:
        self._kafka, self._topic, self._group, self._place = kafka, topic, group, place
        self._start, self._reset = start, reset
        self._begin = 0
        self._runs: list[Run] = []
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

    def run(self, *pause: str) -> Run:
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
        options = source_options(self._kafka, self._topic, self._group, **more)
        work = self._place / f"run-{len(self._runs)}"
        self._runs.append(Run(work, self._place / "checkpoint", options, *pause))
        return self._runs[-1]

    def read_all(self) -> bool:
        return caught_up(self._kafka, self._topic, self._group)

    def batches(self) -> list[list[Place]]:
        """The rows of the last attempt at each batch."""
        last: dict[int, Path] = {}
        for each in sorted((self._place / "checkpoint" / "rows").glob("*.json"), key=lambda path: path.stat().st_mtime):
            last[int(each.stem.split("-")[0])] = each
        return [[(partition, at) for partition, at in json.loads(each.read_text())] for each in last.values()]

    def problems(self, due_from: int) -> str:
        """What is wrong, or ``ok``: all from ``due_from`` on is to be read, once, and nothing before the start."""
        read = Counter(place for rows in self.batches() for place in rows)
        due = {(partition, at) for partition in PARTITIONS for at in range(due_from, self._arrived)}
        early = sum(at < self._begin for _, at in read)
        skipped, repeated = len(due - read.keys()), sum(count - 1 for count in read.values())
        wrong = {"skipped": skipped, "repeated": repeated, "before the start": early}
        return ", ".join(f"{what} {count}" for what, count in wrong.items() if count) or "ok"

    def close(self) -> None:
        for each in self._runs:
            each.kill()


@pytest.fixture
def story(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> Iterator[Callable[..., Story]]:
    made: list[Story] = []

    def create(start: str, reset: bool) -> Story:
        made.append(Story(kafka, topic(partitions=len(PARTITIONS)), group, tmp_path, start, reset))
        return made[-1]

    yield create
    for each in made:
        each.close()


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
        again.reads_or_starts()
        arrived = current.arrive()
        if undecided and number == 1 and start == "latest":
            again.reaches("started")
            due = arrived
        again.go_on("started")
        again.reaches(event)
        again.kill()
    current.arrive()
    last = current.run()
    last.until(current.read_all, "reading all")
    last.end()
    problems = current.problems(due)
    table.setdefault((start, reset), {})[step] = problems
    assert problems == "ok"


SPARK_LIMIT = 400
"""Offsets of a batch of Spark's: fewer than arrive between two runs."""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["empty batch", "in batch 0"])
@pytest.mark.parametrize("reset", [False, True])
def test_after_a_crash_a_spark_query_from_latest_reads_all_records_since_its_start(
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    group: str,
    query: Callable[..., QueryProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reset: bool,
    step: str,
) -> None:
    name = topic(partitions=len(PARTITIONS))
    fill(kafka, name, OLD)
    options = {"startingOffsets": "latest", "resetOffsetsOnStart": str(reset), "maxOffsetsPerTrigger": str(SPARK_LIMIT)}
    runs: list[QueryProcess] = []

    def start(hold: int | None, **more: str) -> QueryProcess:
        runs.append(query(name, checkpoint="kept", **options, **more))
        return (runs[-1] if hold is None else runs[-1].hold(hold)).start()

    if step == "empty batch":
        first = start(None)
        first.until((tmp_path / "kept" / "commits" / "0").exists, what="batch 0, which is empty")
    else:
        # Records arrive while the start is looked for: they are batch 0.
        begun = tmp_path / "begun"
        monkeypatch.setenv(callbacks.BEGUN, str(begun))
        first = start(0, startingOffsetsCallback=f"{callbacks.__name__}:{callbacks.take_a_while.__name__}")
        first.until(begun.exists, what="its positions")
        fill(kafka, name, EACH)
        first.await_held(0)
    assert kafka.committed(group, name) == {(name, partition): OLD for partition in PARTITIONS}
    first.kill()
    held = 0 if step == "in batch 0" else 1
    for number in (0, 1):
        fill(kafka, name, SPARK_LIMIT)
        with Producing(kafka, name, len(PARTITIONS)):
            again = start(held + number)
            again.await_held(held + number)
        again.kill()
    last = start(None)
    everything = {place for place in places_in(kafka, name) if place[1] >= OLD}
    last.until(lambda: caught_up(kafka, name, group), what="reading all")
    last.stop_between_batches()
    batches = {batch: run for run in runs for batch in run.batches()}  # of the last run that read it
    found = Counter(place for batch, run in batches.items() for place in places_of(run, batch))
    print(f"{len(everything - found.keys())} of {len(everything)} records were skipped")
    assert found == Counter(everything)
