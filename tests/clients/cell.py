"""One group with members of several clients while its topics are written, and the verdict on it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_group_source.group.description import STABLE, GroupDescription
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.testing import EmbeddedKafka
from tests.clients.division import STICKY, Share, divided, swapped
from tests.clients.judge import Reading, Verdict, judge
from tests.clients.member import Member, now_ms
from tests.clients.programs import BUILT, OURS, Program
from tests.integration.commit_log import commits

SESSION_MS = 6000
SETTLE_TIMEOUT_S = 60.0
POLL_S = 0.05
WRITE_EVERY_S = 0.05
"""Between two records of each partition."""


@dataclass(frozen=True)
class Side:
    """How the members of one client are configured in a cell. Without assignor they have their client's default."""

    program: Program
    protocol: str = "classic"
    assignor: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join(each for each in (self.program.name, self.protocol, self.assignor.replace(",", "+")) if each)


@dataclass
class Figures:
    """Seconds from each event until the group was stable, and from then until each owner had read."""

    stable: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)


class Cell:
    """The group, its topics and its members. Use it in a ``with`` block, which ends all members."""

    def __init__(
        self,
        kafka: EmbeddedKafka,
        group: str,
        topics: Mapping[str, int],
        work: Path,
        built: Built,
        session_ms: int = SESSION_MS,
    ) -> None:
        """``topics`` are names with numbers of partitions; the topics exist."""
        self._kafka, self._group, self._topics, self._work, self._built = kafka, group, dict(topics), work, built
        self._session_ms = session_ms
        self.figures = Figures()
        self.members: list[Member] = []
        self._written: list[Any] = []
        self._shares: dict[str, Share] = {}
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Cell:
        self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_writing()
        for each in self.members:
            each.end()

    def _write(self) -> None:
        with self._kafka.producer(acks="all") as producer:
            while not self._ended.wait(WRITE_EVERY_S):
                for topic, count in list(self._topics.items()):
                    for partition in range(count):
                        self._written.append(producer.send(topic, value=b"value", partition=partition))
            producer.flush()

    def _stop_writing(self) -> None:
        self._ended.set()
        self._writer.join()

    def add_topic(self, name: str, partitions: int) -> None:
        """Writes to a topic that has come since; the group has to divide it.

        The brokers' assignors may then move other partitions too.
        """
        self._topics[name] = partitions
        self._shares = {}

    def start(self, side: Side, instance: str = "") -> Member:
        """Starts a member. Members of ours continue with the checkpoint of the member before."""
        name = f"{side.program.name}-{len(self.members)}"
        settings = {
            "servers": self._kafka.bootstrap_servers,
            "group": self._group,
            "topics": ",".join(self._topics),
            "session": str(self._session_ms),
            "protocol": side.protocol,
            "assignor": side.assignor,
            "instance": instance,
            **side.settings,
        }
        if side.program is OURS:
            settings["checkpoint"] = str(self._work / "checkpoint")
        command = self._built(side.program)
        self.members.append(started := Member(side.program, command, name, settings, self._work / f"{name}.log"))
        return started

    def settle(self, *running: Member, assignor: str = "") -> None:
        """Waits until these members, and no others, have the topics as their assignor divides them, and read them."""
        began = time.monotonic()
        with closing(GroupLagClient(self._lookup())) as client:
            self._await(running, lambda: self._is_settled(client.describe(), running, assignor))
            owners = self._owners(client.describe())
        self.figures.stable.append(time.monotonic() - began)
        began, since = time.monotonic(), now_ms()
        for member in running:
            share = owners[member.client_id]
            self._await(running, lambda member=member, share=share: member.read_since(since) >= share)  # type: ignore[misc]
        self.figures.reading.append(time.monotonic() - began)

    def share(self, member: Member) -> Share:
        """What the coordinator says that a member has."""
        with closing(GroupLagClient(self._lookup())) as client:
            return self._owners(client.describe())[member.client_id]

    def _lookup(self) -> dict[str, str]:
        servers = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers}
        return {**servers, "kafka.group.id": self._group, "subscribePattern": ".*"}

    def _is_settled(self, group: GroupDescription, running: tuple[Member, ...], assignor: str) -> bool:
        if group.state != STABLE:
            return False
        shares = self._owners(group)
        if shares.keys() != {each.client_id for each in running}:
            return False
        if assignor and group.assignor != assignor:
            return False
        # A leader with such faults may divide in its own way. Next to other clients it cannot lead.
        assigns_as_named = any(not each.program.faults for each in running)
        if not divided(group.assignor if assigns_as_named else "", list(shares.values()), self._topics):
            return False
        if group.assignor in STICKY:
            for name, share in shares.items():
                before = self._shares.get(name, frozenset())
                assert not swapped(before, share), f"{name} had {sorted(before)} and has {sorted(share)}"
        self._shares = shares
        return True

    def _owners(self, group: GroupDescription) -> dict[str, Share]:
        return {each.client_id: frozenset(each.partitions) for each in group.members}

    def _await(self, running: tuple[Member, ...], holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not holds():
            for each in running:
                each.check()
            assert time.monotonic() < deadline, self._story(running)
            time.sleep(POLL_S)

    def _story(self, running: tuple[Member, ...]) -> str:
        """What there is when a condition does not come true."""
        with closing(GroupLagClient(self._lookup())) as client:
            group = client.describe()
        shares = {name: sorted(map(str, share)) for name, share in self._owners(group).items()}
        logs = "".join(f"\n{each.name}:\n{each.log()[-1500:]}" for each in running)
        ids = [each.client_id for each in running]
        return f"not settled: {group.state}, {group.assignor}, {shares}; running {ids}{logs}"

    def verdict(self) -> Verdict:
        """Stops the writing, waits until everything is read, lets all members leave, and judges."""
        self._stop_writing()
        sent = [future.get(0) for future in self._written]
        written = {(each.topic, each.partition, each.offset) for each in sent}
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not written <= {each.place for each in self._readings()} and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for member in self.members:
            if not member.killed:
                member.leave()
        killed = {each.name for each in self.members if each.killed}
        return judge(written, self._readings(), killed, list(commits(self._kafka, self._group)))

    def _readings(self) -> list[Reading]:
        return [reading for each in self.members for reading in list(each.readings)]

    def trouble(self) -> list[str]:
        """What the members logged as warnings or errors, ours first."""
        found = [line for each in self.members for line in each.trouble()]
        return sorted(found, key=lambda line: not line.startswith(OURS.name))


Built = Callable[[Program], list[str]]
"""Builds a program if it is not built, and returns its command."""


def note(name: str, figures: Figures, verdict: Verdict, trouble: list[str], seconds: float) -> str:
    """The row of a cell in the table of all; also kept in ``build/clients/cells.tsv``."""
    row = [
        name,
        f"{verdict.records}",
        " ".join(f"{each:.1f}" for each in figures.stable),
        " ".join(f"{each:.1f}" for each in figures.reading),
        f"{verdict.repeated_after_kills}/{len(verdict.repeated)}",
        f"unread {len(verdict.unread)}, back {len(verdict.back)}, ahead {len(verdict.ahead)}, lines {len(trouble)}",
        f"{seconds:.0f} s",
    ]
    line = "\t".join(row)
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "cells.tsv").open("a") as table:
        table.write(line + "\n")
    return line


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], float]]:
    """Yields the seconds since the block began."""
    began = time.monotonic()
    yield lambda: time.monotonic() - began
