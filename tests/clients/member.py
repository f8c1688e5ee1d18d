"""A running member of a group, of any client: what it says, and its log."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from spark_group_source.offsets import TopicPartition
from tests.clients.judge import Reading
from tests.clients.programs import ROOT, Program

STOP_TIMEOUT_S = 30.0
"""How long a member may take to leave."""

TROUBLE = re.compile(r"\b(WARN|WARNING|ERROR|ERR|FATAL|CRITICAL|Traceback|panic)\b")
"""What marks a line of a log that an operator looks at."""


class Member:
    """One start of a client.

    Attributes:
        name: that of this start.
        client_id: the same, but for a static member that of its instance, which every start of it has.
        killed: whether it was killed, so that what it read may be read again.
    """

    def __init__(self, program: Program, command: list[str], name: str, settings: Mapping[str, str], log: Path) -> None:
        """``settings`` are the arguments of the client, without its client id."""
        self.program, self.name, self.killed = program, name, False
        self.client_id = settings["instance"] or name
        self.readings: list[Reading] = []
        self.owned: frozenset[TopicPartition] = frozenset()
        """What it said last that it owns; kafka-go does not say."""
        self._log = log
        arguments = [f"{key}={value}" for key, value in settings.items()]
        with log.open("wb") as opened:
            self._process = subprocess.Popen(
                [*command, *arguments, f"client={self.client_id}"],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=opened,
                text=True,
            )
        assert self._process.stdout is not None
        self._thread = threading.Thread(target=self._listen, args=[self._process.stdout], daemon=True)
        self._thread.start()

    def _listen(self, said: IO[str]) -> None:
        with said:
            for line in said:
                what, _, rest = line.rstrip("\n").partition(" ")
                if what == "read":
                    topic, partition, offset, at_ms = rest.split()
                    self.readings.append(Reading(self.name, (topic, int(partition), int(offset)), int(at_ms)))
                elif what == "assigned":
                    self.owned = _partitions(rest)

    def read_since(self, at_ms: int) -> set[TopicPartition]:
        """The partitions of which it has read records since then."""
        found = set()
        for reading in reversed(list(self.readings)):
            if reading.at_ms < at_ms:
                break
            found.add(TopicPartition(*reading.place[:2]))
        return found

    def check(self) -> None:
        """Fails if it has ended by itself."""
        ended = self._process.poll()
        assert ended is None, f"{self.name} has ended with {ended}: {self.log()[-3000:]}"

    def leave(self) -> None:
        """SIGTERM, and its end."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT_S)
        self._thread.join()

    def kill(self) -> None:
        """Kill -9: it says nothing more."""
        self.killed = True
        self.end()

    def end(self) -> None:
        """Ends it if it runs."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def log(self) -> str:
        """Its stderr."""
        return self._log.read_text(errors="replace")

    def trouble(self) -> list[str]:
        """The lines of its log with a warning or an error, but those that its client always logs."""
        found = []
        for line in self.log().splitlines():
            is_usual = any(each in line for each in self.program.usual)
            if TROUBLE.search(line) and not is_usual:
                found.append(f"{self.name}: {line}")
        return found


def _partitions(text: str) -> frozenset[TopicPartition]:
    found = []
    for each in text.split(","):
        if each:
            topic, number = each.rsplit(":", 1)
            found.append(TopicPartition(topic, int(number)))
    return frozenset(found)


def now_ms() -> int:
    """As the members stamp their records."""
    return time.time_ns() // 1_000_000
