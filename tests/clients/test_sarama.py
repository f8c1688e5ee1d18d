"""A query beside the Go client sarama in one group, whichever of them is first, and whichever leads."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
from spark_group_source.testing import EmbeddedKafka
from tests.waiting import eventually

PROGRAM = Path(__file__).with_name("sarama")
PARTITIONS = 6
Place = tuple[int, int]
"""Partition and offset."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("go") is None, reason="sarama needs the Go toolchain, which is not on this machine"
    ),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built member; Go's module proxy has sarama."""
    built = str(tmp_path_factory.mktemp("sarama") / "member")
    subprocess.run(["go", "build", "-o", built, "."], cwd=PROGRAM, check=True, timeout=600)
    return built


class Sarama:
    """A running member."""

    def __init__(self, command: list[str]) -> None:
        self.places: list[Place] = []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=[self._process.stdout], daemon=True)
        self._thread.start()

    def _read(self, printed: IO[str]) -> None:
        with printed:
            for line in printed:
                partition, offset = line.split()
                self.places.append((int(partition), int(offset)))

    def stop(self) -> None:
        """Leaves the group."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30.0)
        self._thread.join()


class Ours:
    """A query without Spark; it reads what it plans."""

    def __init__(self, options: dict[str, str]) -> None:
        self.places: list[Place] = []
        self._driver = Driver(parse_options(options).with_client_id("ours"))
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end = BatchOffset()
        self._driver.start(end)
        self._driver.await_assignment()
        while not self._ends.wait(0.05):
            planned = self._driver.plan_batch(end, None)
            if planned is not end:
                end = planned
                self.places += [(each.partition, at) for each in end.reads() for at in range(each.start, each.end)]
                self._driver.complete(end)
        self._driver.close()

    def stop(self) -> None:
        """Leaves the group."""
        self._ends.set()
        self._thread.join()


class Members:
    """Members of the test's group with this assignor, and the records of its topic."""

    def __init__(self, kafka: EmbeddedKafka, program: str, topic: str, group: str, assignor: str) -> None:
        self._kafka, self._program, self._topic, self._group, self._assignor = kafka, program, topic, group, assignor
        self.all: list[Sarama | Ours] = []
        self.written: list[Place] = []

    def sarama(self) -> Sarama:
        servers = self._kafka.bootstrap_servers
        command = [self._program, "-servers", servers, "-group", self._group, "-topic", self._topic]
        self.all.append(started := Sarama([*command, "-assignor", self._assignor]))
        return started

    def ours(self) -> Ours:
        options = {
            "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
            "kafka.group.id": self._group,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            "kafka.partition.assignment.strategy": self._assignor,
            "kafka.session.timeout.ms": "6000",
            "kafka.heartbeat.interval.ms": "200",
        }
        self.all.append(started := Ours(options))
        return started

    def settle(self, *running: Sarama | Ours) -> None:
        """Waits until these share the partitions evenly and have read everything that is written now."""
        even = [PARTITIONS // len(running)] * len(running)
        eventually(lambda: [each.partitions for each in self._kafka.members(self._group)] == even)
        before = [len(each.places) for each in running]
        for number in range(PARTITIONS):
            self.written += self._kafka.produce(self._topic, [f"v{each}" for each in range(5)], partition=number)
        eventually(lambda: set(self.read) >= set(self.written))
        assert all(len(each.places) > count for each, count in zip(running, before, strict=True))

    @property
    def read(self) -> list[Place]:
        """What all members have read, with repeats."""
        return [place for each in self.all for place in list(each.places)]


@pytest.fixture(params=["range", "roundrobin", "sticky"])
def members(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, program: str, topic: Callable[..., str], group: str
) -> Iterator[Members]:
    started = Members(kafka, program, topic(partitions=PARTITIONS), group, request.param)
    yield started
    for each in started.all:
        each.stop()


def test_a_query_and_sarama_read_each_record_once_as_they_come_and_leave(members: Members) -> None:
    query = members.ours()
    members.settle(query)
    other = members.sarama()
    members.settle(query, other)
    query.stop()
    members.settle(other)  # it leads, with the user data of the assignment that the query made
    query = members.ours()
    members.settle(query, other)
    other.stop()
    members.settle(query)
    assert sorted(members.read) == sorted(members.written)
