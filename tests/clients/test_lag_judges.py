"""The lag of a query in both group protocols, as the tools of Kafka, kminion and kafka_exporter have it, and ours.

What each tool shows goes to ``build/clients/judges.tsv``.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.group_report import snapshot
from spark_group_source.lag.model import Sample
from spark_group_source.testing import EmbeddedKafka
from tests.clients.programs import BUILT, BY_NAME, lag_judge
from tests.integration import query_process
from tests.integration.query_process import PlainQuery, source_options
from tests.integration.standing import Producing, caught_up, shorten_sessions

pytestmark = [pytest.mark.slow, pytest.mark.integration]
eventually = partial(query_process.eventually, deadline=60)

PARTITIONS, WRITTEN = 6, 4
"""The last two partitions stay empty."""
LOOKUP_TIMEOUT_S = 60.0

Figures = dict[int, tuple[int, int, int]]
"""Committed offset, end offset and lag by partition."""


@dataclass(frozen=True)
class Seen:
    """A group as one tool shows it."""

    state: str
    members: int
    figures: Figures

    @property
    def lags(self) -> list[int]:
        return [self.figures[number][2] for number in sorted(self.figures)]


class Judges:
    """The tools. Each looks up one group and its topic."""

    def __init__(self, kafka: EmbeddedKafka, topic: str, group: str, program: list[str]) -> None:
        self._kafka, self._topic, self._group, self._program = kafka, topic, group, program

    def ours(self) -> Seen:
        """The command ``lag``."""
        with closing(GroupLagClient(source_options(self._kafka, self._topic, self._group))) as client:
            found = snapshot(client)
        rows = [list(map(str, row)) for row in found.partitions(self._group)[1:]]
        return Seen(found.group.state, len(found.group.members), _figures(rows))

    def kafkas(self) -> Seen:
        """kafka-consumer-groups."""
        printed = self._kafka.consumer_groups("--describe", "--group", self._group)
        rows = [line.split() for line in printed.splitlines() if self._topic in line.split()]
        return Seen(self._kafka.group_state(self._group), len({row[6] for row in rows} - {"-"}), _figures(rows))

    def kadms(self) -> Seen:
        """What kminion shows."""
        return self._by("kadm")

    def saramas(self) -> Seen:
        """What kafka_exporter shows."""
        return self._by("sarama")

    def _by(self, judge: str) -> Seen:
        settings = [f"servers={self._kafka.bootstrap_servers}", f"group={self._group}", f"judge={judge}"]
        command = [*self._program, *settings]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOKUP_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stderr
        (state, members), *rows = [line.split() for line in done.stdout.splitlines()]
        return Seen(state, int(members), _figures([[self._group, *row] for row in rows]))

    def tools(self) -> dict[str, Callable[[], Seen]]:
        """The look-up of each tool, by its name."""
        return {"ours": self.ours, "kafka": self.kafkas, "kadm": self.kadms, "sarama": self.saramas}

    def all(self) -> dict[str, Seen]:
        """Each tool, one after the other."""
        return {tool: look() for tool, look in self.tools().items()}


def _figures(rows: list[list[str]]) -> Figures:
    """From rows with group, topic, partition, commit, end and lag."""
    return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}


def lags(each: int) -> list[int]:
    """By partition, if this is the lag of those that are not to stay empty."""
    return [each] * WRITTEN + [0] * (PARTITIONS - WRITTEN)


@contextmanager
def writing(kafka: EmbeddedKafka, topic: str) -> Iterator[None]:
    """Ten records a second in each partition that is not to stay empty."""
    with Producing(kafka, topic, WRITTEN):
        yield


def fill(kafka: EmbeddedKafka, topic: str, count: int) -> None:
    """Writes to the partitions that are not to stay empty."""
    for partition in range(WRITTEN):
        kafka.produce(topic, ["value"] * count, partition=partition)


def is_between(seen: Seen, before: Sample, after: Sample) -> bool:
    """Whether the figures may be those of a moment between two samples."""
    ends = {tp.partition: (before.ends[tp], after.ends[tp]) for tp in after.ends}
    for tp, least in before.positions.items():
        commit, end, lag = seen.figures[tp.partition]
        lowest, highest = ends[tp.partition]
        if not least <= commit <= after.positions[tp] or not lowest <= end <= highest or lag != max(0, end - commit):
            return False
    return True


def note(protocol: str, moment: str, tool: str, seen: Seen) -> None:
    """A row of the table of what the tools show."""
    row = [protocol, moment, tool, " ".join(map(str, seen.lags)), seen.state, str(seen.members)]
    with (BUILT / "judges.tsv").open("a") as table:
        table.write("\t".join(row) + "\n")


CLASSIC_ONLY = {"kadm": "Dead", "sarama": "Dead"}
"""What tools that ask for classic groups only take a group of KIP-848 for: they see none of its members."""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_all_tools_show_the_same_lag_in_each_state_of_a_query(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path, protocol: str
) -> None:
    if BY_NAME["franz-go"].missing():
        pytest.skip(BY_NAME["franz-go"].missing())
    name = topic(partitions=PARTITIONS)
    if protocol == "consumer":
        shorten_sessions(kafka, group)
    judges = Judges(kafka, name, group, lag_judge())
    fill(kafka, name, 100)

    def agree(moment: str, lags: list[int], state: str, members: int) -> None:
        for tool, seen in judges.all().items():
            note(protocol, moment, tool, seen)
            assert seen.lags == lags, tool
            if protocol == "consumer" and tool in CLASSIC_ONLY:
                assert (seen.state, seen.members) == (CLASSIC_ONLY[tool], 0), tool
            else:
                assert (seen.state, seen.members) == (state, members), tool

    options = source_options(kafka, name, group, protocol)
    query = PlainQuery(tmp_path / "work", tmp_path / "checkpoint", options, "read 1")
    try:
        query.until(lambda: caught_up(kafka, name, group), what="the commit of the first batch")
        agree("idle", lags(0), "Stable", 1)
        fill(kafka, name, 80)
        query.reaches("read 1")
        agree("in a long batch", lags(80), "Stable", 1)
        query.go_on("read 1")
        with writing(kafka, name), closing(GroupLagClient(options)) as client:
            for tool, look in judges.tools().items():
                before = client.sample()
                seen = look()
                note(protocol, "busy", tool, seen)
                assert is_between(seen, before, client.sample()), tool  # each at its own moment
        eventually(lambda: caught_up(kafka, name, group))
    finally:
        query.go_on("read 1")
        query.end()
    eventually(lambda: kafka.group_state(group) == "Empty")
    fill(kafka, name, 10)
    agree("stopped", lags(10), "Empty", 0)
    reset = ("--group", group, "--topic", name, "--reset-offsets", "--to-earliest", "--execute")
    kafka.consumer_groups(*reset)
    agree("rewound", list(kafka.end_offsets(name).values()), "Empty", 0)
