"""The clients whose members share a group with a query of ours: how each is built and run, and what it can do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_group_source.testing.ivy import kafka_libs
from spark_group_source.testing.java import BRIEF, java_command

SOURCES = Path(__file__).parent
ROOT = SOURCES.parents[1]
BUILT = ROOT / "build" / "clients"
BUILD_TIMEOUT_S = 590.0

CLASSIC, CONSUMER = "classic", "consumer"


@dataclass(frozen=True)
class Program:
    """A client.

    Attributes:
        name: that of the client, also in client ids.
        tool: the command that it needs on the PATH.
        build: builds it, if it is not built yet, and returns its command.
        classic: the assignors that it has in the classic protocol, by the names that the group has for them.
        consumer: the brokers' assignors that it can ask for with KIP-848.
        patterns: whether it subscribes to a pattern of topics.
        static: the protocols in which it can be a static member that leaves for a while.
        usual: parts of lines that it logs as warnings or errors although nothing is wrong.
        faults: links to faults of its own, by which records are repeated, commits go back and errors are logged in
            groups with other clients. Its cells are red, and nothing of ours can mend them.
    """

    name: str
    tool: str
    build: Callable[[], list[str]]
    classic: tuple[str, ...]
    consumer: tuple[str, ...] = ()
    patterns: bool = True
    static: tuple[str, ...] = (CLASSIC, CONSUMER)
    usual: tuple[str, ...] = ()
    faults: str = ""

    def missing(self) -> str:
        """The reason why it cannot be built on this machine; empty if it can."""
        if shutil.which(self.tool) is None:
            return f"{self.name} needs {self.tool}, which is not on this machine"
        return ""


def _run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def _go(name: str) -> Callable[[], list[str]]:
    def build() -> list[str]:
        BUILT.mkdir(parents=True, exist_ok=True)
        _run(["go", "build", "-o", str(BUILT / name), f"./{name}"], SOURCES / "go")
        return [str(BUILT / name)]

    return build


def _python(name: str) -> Callable[[], list[str]]:
    def build() -> list[str]:
        environment, wanted = BUILT / "python", SOURCES / "python" / "requirements.txt"
        installed = environment / "installed.txt"
        if not installed.exists() or installed.read_text() != wanted.read_text():
            BUILT.mkdir(parents=True, exist_ok=True)
            _run([sys.executable, "-m", "venv", str(environment)], ROOT)
            pip = [
                str(environment / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            _run([*pip, "-r", str(wanted)], ROOT)
            installed.write_text(wanted.read_text())
        return [str(environment / "bin" / "python"), str(SOURCES / "python" / f"{name}_member.py")]

    return build


def _node(name: str) -> Callable[[], list[str]]:
    def build() -> list[str]:
        place = BUILT / "node"
        place.mkdir(parents=True, exist_ok=True)
        lock = (SOURCES / "node" / "package-lock.json").read_text()
        installed = place / "installed.json"
        if not installed.exists() or installed.read_text() != lock:
            for each in ("package.json", "package-lock.json"):
                shutil.copy(SOURCES / "node" / each, place)
            _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], place)
            installed.write_text(lock)
        # Node looks for packages beside the program.
        shutil.copy(SOURCES / "node" / f"{name}_member.js", place)
        return ["node", str(place / f"{name}_member.js")]

    return build


def _java() -> list[str]:
    source, place = SOURCES / "java" / "Member.java", BUILT / "java"
    built = place / "Member.class"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        place.mkdir(parents=True, exist_ok=True)
        _run(["javac", "-d", str(place), "-cp", f"{kafka_libs()}/*", str(source)], ROOT)
    # The newest client, whatever version the brokers have. Each line of its log is a warning or an error.
    level = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    command = java_command(kafka_libs(), "128m", "Member", [], BRIEF, level)
    command[command.index("-cp") + 1] += f":{place}"
    return command


def _ours() -> list[str]:
    return [sys.executable, "-m", "tests.clients.ours"]


OURS = Program(
    "ours", "python3", _ours, ("range", "roundrobin", "sticky", "cooperative-sticky"), ("uniform", "range"),
    usual=("other members have read a part of the batch that this query has just replayed",),  # after a kill
)  # fmt: skip

OTHERS = (
    Program("java", "javac", _java, ("range", "roundrobin", "sticky", "cooperative-sticky"), ("uniform", "range"),
            # A commit under way while the epoch changes, which it sends again: also two Java members log it. Brokers
            # from 4.3 on take it, see KIP-1251. And a stop, which wakes it up in its callback: KAFKA-18160.
            usual=("with stale member epoch error", "after onPartitionsAssigned callback failed")),
    Program("librdkafka", "python3", _python("confluent"), ("range", "roundrobin", "cooperative-sticky"),
            ("uniform", "range")),
    # With KIP-848 the leave of its static members lacks their instance id, so they return only after the session:
    # https://github.com/twmb/franz-go/blob/v1.22.3/pkg/kgo/consumer_group_848.go#L441
    Program("franz-go", "go", _go("franzgo"), ("range", "roundrobin", "sticky", "cooperative-sticky"),
            ("uniform", "range"), static=(CLASSIC,)),
    Program("sarama", "go", _go("sarama"), ("range", "roundrobin", "sticky", "cooperative-sticky"), patterns=False),
    Program("kafka-go", "go", _go("kafkago"), ("range", "roundrobin"), patterns=False, static=(),
            faults="https://github.com/segmentio/kafka-go/issues/1196, 1308 and 1398"),
    Program("kafka-python", "python3", _python("kafka_python"),
            ("range", "roundrobin", "sticky", "cooperative-sticky"),
            # How long a piece of its own work took, on a machine with two cores; and a leader that divides before it
            # knows the topic, which joins again once it does; and a lookup that its close() cancels:
            # https://github.com/dpkp/kafka-python/pull/2935
            usual=("kafka.net.selector Task", "No partition metadata for topic", "Metadata refresh: failed Cancelled")),
    Program("aiokafka", "python3", _python("aiokafka"), ("range", "roundrobin", "sticky"),
            usual=("Heartbeat failed for group", "rebalanc")),
    Program("kafkajs", "node", _node("kafkajs"), ("range", "roundrobin"), patterns=False, static=(),
            usual=("rebalanc",)),
)  # fmt: skip

BY_NAME = {each.name: each for each in (OURS, *OTHERS)}


def lag_judge() -> list[str]:
    """The command of the program that looks lag up as kadm and sarama do."""
    return _go("lag")()
