"""One node of an embedded Kafka as a child process: its properties, its data, its log and its signals."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.java import BRIEF, java_command
from spark_group_source.testing.watchdog import Watchdog

LOG_LENGTH = 4000

STOP_TIMEOUT_S = 20.0

FORMAT_TIMEOUT_S = 60.0

_formatted: dict[Path, tuple[Path, bytes]] = {}
"""By the directory of Kafka's jars, the name and content of the file that StorageTool writes for a new cluster.

It is the same for all clusters, and a copy is faster than the tool."""


class PortTaken(EmbeddedKafkaError):
    """Another process took a port before the broker could bind it; other ports may be free."""


class BrokerProcess:
    """A node that is both broker and controller, or before Kafka 3.3 a broker that keeps its metadata in ZooKeeper.

    Args:
        directory: only for this node; holds its properties, its data and its log.
        properties: the complete ``server.properties``.
    """

    def __init__(
        self,
        node_id: int,
        directory: Path,
        properties: Mapping[str, str],
        libs: Path,
        heap: str,
        jvm_flags: Sequence[str],
        watchdog: Watchdog,
        main: str = "kafka.Kafka",
    ) -> None:
        self.node_id = node_id
        self._log = directory / "broker.log"
        self._properties = directory / "server.properties"
        self._data = directory / "data"
        self._libs = libs
        self._heap = heap
        self._jvm_flags = jvm_flags
        self._watchdog = watchdog
        self._main = main
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)
        lines = {**properties, "log.dirs": str(self._data)}
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")

    @property
    def pid(self) -> int | None:
        """The process id, or ``None`` if the process does not run."""
        if self._process is None:
            return None
        if self._process.poll() is not None:
            return None
        return self._process.pid

    def format(self, cluster_id: str) -> None:
        """Creates the data directory. Call this once per node.

        Raises:
            EmbeddedKafkaError: Kafka's StorageTool failed; the text holds its output.
        """
        if self._libs in _formatted:
            name, features = _formatted[self._libs]
            (self._data / name).parent.mkdir(parents=True)
            (self._data / name).write_bytes(features)
            (self._data / "meta.properties").write_text(
                f"version=1\ncluster.id={cluster_id}\nnode.id={self.node_id}\n", encoding="utf-8"
            )
            return
        arguments = ["format", "-t", cluster_id, "-c", str(self._properties)]
        command = java_command(self._libs, self._heap, "kafka.tools.StorageTool", arguments, BRIEF)
        completed = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
        if completed.returncode != 0:
            raise _format_error(command[0], completed.stdout + completed.stderr)
        [file] = self._data.rglob("*.checkpoint")
        _formatted[self._libs] = file.relative_to(self._data), file.read_bytes()

    def start(self) -> None:
        """Starts the process and returns before it is ready."""
        command = java_command(self._libs, self._heap, self._main, [str(self._properties)], *self._jvm_flags)
        with self._log.open("ab") as log:
            # In a session of its own, Ctrl-C reaches only the test program, which then stops its brokers in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._watchdog.watch(self._process.pid)

    def check_alive(self) -> None:
        """Raises:
        PortTaken: the process ended because it could not bind a port.
        EmbeddedKafkaError: the process ended for another reason; the text holds its log.
        """
        if self._process is None:
            return
        if self._process.poll() is None:
            return
        log = self.log_from_first_error()
        happened = f"Broker {self.node_id} ended with exit code {self._process.returncode}. Its log says: {log}"
        if "Address already in use" in log:
            raise PortTaken(happened)
        raise EmbeddedKafkaError(happened)

    def log_from_first_error(self) -> str:
        """Returns the log from its first error on, or the end of the log if there is no error.

        Returns at most :data:`LOG_LENGTH` characters. The end of the log would not show the error, because a broker
        that stops after an error logs many more lines.
        """
        text = self._log.read_text(encoding="utf-8", errors="replace")
        error = re.search(r"^.* (?:ERROR|FATAL) .*$|^.*Exception.*$", text, re.MULTILINE)
        if error is None:
            return self.log_tail()
        return text[error.start() :][:LOG_LENGTH].strip()

    def log_tail(self) -> str:
        """Returns the end of the log."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_LENGTH))
            return log.read().decode(errors="replace").strip()

    def terminate(self) -> None:
        """Starts an orderly shutdown (SIGTERM)."""
        self.resume()
        self._signal(signal.SIGTERM)

    def wait(self, deadline: Deadline) -> None:
        """Waits until the process ends; kills it at the deadline."""
        if self._process is None:
            return
        try:
            self._process.wait(deadline.remaining())
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._watchdog.forget(self._process.pid)

    def kill(self) -> None:
        """Ends the process at once (SIGKILL), like a crash."""
        self._signal(signal.SIGKILL)
        self.wait(Deadline.after(STOP_TIMEOUT_S))

    def pause(self) -> None:
        """Suspends the process (SIGSTOP): connections stay open, but the broker does not respond."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the process after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _format_error(java: str, output: str) -> EmbeddedKafkaError:
    for line in output.splitlines():
        if "UnsupportedClassVersionError" in line:
            return EmbeddedKafkaError(
                f"{java} is too old for this Kafka: {line.strip()}.",
                "Install Java 17 or later, which Spark also needs, and set JAVA_HOME to its directory.",
            )
    return EmbeddedKafkaError(f"Kafka's StorageTool failed: {output[-LOG_LENGTH:]}")
