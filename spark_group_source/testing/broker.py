"""One Kafka node as a child process: its directory, its log, its signals."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.java import BRIEF, java
from spark_group_source.testing.watchdog import Watchdog

LOG_LENGTH = 4000
STOP_TIMEOUT_S = 20.0
FORMAT_TIMEOUT_S = 60.0


class PortTaken(EmbeddedKafkaError):
    """Another process took a port between its choice and its use; others may be free."""


def java_command(libs: Path, heap: str, main: str, arguments: Sequence[str], *flags: str) -> list[str]:
    """The command that runs one of Kafka's main classes with the jars in ``libs``; its log goes to stderr.

    Serial collection and a small heap: a broker for tests must not take the cores from what is tested.
    """
    logging = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
    return [java(), f"-Xmx{heap}", "-XX:+UseSerialGC", *flags, *logging, "-cp", f"{libs}/*", main, *arguments]


class Broker:
    """A node that is broker and controller.

    Args:
        directory: the node's own; holds its properties, its data and its log.
        properties: the whole of ``server.properties``.
    """

    def __init__(
        self, node_id: int, directory: Path, properties: Mapping[str, str], libs: Path, heap: str, watchdog: Watchdog
    ) -> None:
        self.node_id = node_id
        self._log = directory / "broker.log"
        self._properties = directory / "server.properties"
        self._libs = libs
        self._heap = heap
        self._watchdog = watchdog
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        lines = {**properties, "log.dirs": str(directory / "data")}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def format(self, cluster_id: str) -> None:
        """Makes the data directory, once in the node's life.

        Raises:
            EmbeddedKafkaError: Kafka's StorageTool refused, with what it said.
        """
        arguments = ["format", "-t", cluster_id, "-c", str(self._properties)]
        command = java_command(self._libs, self._heap, "kafka.tools.StorageTool", arguments, BRIEF)
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise _refusal(command[0], done.stdout + done.stderr)

    def start(self) -> None:
        """Starts the process; it is not ready yet when this returns."""
        command = java_command(self._libs, self._heap, "kafka.Kafka", [str(self._properties)])
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C is for the program that tests, which then stops its brokers in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._watchdog.watch(self._process.pid)

    def check_alive(self) -> None:
        """Raises:
        PortTaken: it ended because it could not bind.
        EmbeddedKafkaError: it ended for another reason, which its log tells.
        """
        if self._process is None or self._process.poll() is None:
            return
        told = self.log_of_trouble()
        kind = PortTaken if "Address already in use" in told else EmbeddedKafkaError
        raise kind(f"Broker {self.node_id} ended with exit code {self._process.returncode}. Its log says: {told}")

    def log_of_trouble(self) -> str:
        """What the node logged from its first error on, or last where there is none; a stop logs much after it."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        trouble = re.search(r"^.* (?:ERROR|FATAL) .*$|^.*Exception.*$", text, re.MULTILINE)
        return text[trouble.start() :][:LOG_LENGTH].strip() if trouble else self.log_tail()

    def log_tail(self) -> str:
        """The end of what the node logged."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_LENGTH))
            return log.read().decode(errors="replace").strip()

    def terminate(self) -> None:
        """Asks it to stop in order (SIGTERM)."""
        self.resume()
        self._signal(signal.SIGTERM)

    def wait(self, deadline: Deadline) -> None:
        """Waits for its end; kills it where that takes longer than the deadline."""
        if self._process is None:
            return
        try:
            self._process.wait(deadline.remaining())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watchdog.forget(self._process.pid)

    def kill(self) -> None:
        """Ends it at once (SIGKILL), as a crash would."""
        self._signal(signal.SIGKILL)
        self.wait(Deadline.after(STOP_TIMEOUT_S))

    def pause(self) -> None:
        """Stands it still (SIGSTOP): connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _refusal(java: str, told: str) -> EmbeddedKafkaError:
    for line in told.splitlines():
        if "UnsupportedClassVersionError" in line:
            return EmbeddedKafkaError(
                f"{java} is too old for this Kafka: {line.strip()}.",
                "Install Java 17 or later, which Spark needs too, and let JAVA_HOME name it.",
            )
    return EmbeddedKafkaError(f"Kafka's StorageTool failed: {told[-LOG_LENGTH:]}")
