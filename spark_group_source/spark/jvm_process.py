"""The JVM that started this process: whether it lives, and whether it has begun to shut down."""

from __future__ import annotations

import os
import time
from pathlib import Path

from spark_group_source.clock import Deadline

PROC = Path("/proc")

SHUTDOWN_THREAD = "shutdown-hook-0"
"""The thread on which Hadoop's ``ShutdownHookManager`` runs Spark's shutdown hooks, whatever began the shutdown. Hadoop
creates it then, and never before. The system keeps 15 characters of a thread's name, and this name has 15."""

END_TIMEOUT = 5.0
"""Maximum seconds that a process waits for the end of the JVM after it has left its group."""

END_CHECK_INTERVAL = 0.05


class JvmProcess:
    """The process that started this one.

    Linux shows the threads of other processes. On other systems, a shutdown is noticed only once the JVM has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._tasks = PROC / f"{self.pid}/task"
        self._seen: frozenset[str] = frozenset()
        self._named: frozenset[str] = frozenset()
        self._begun = False

    def has_ended(self) -> bool:
        """Whether the JVM is gone, because another process is the parent now."""
        return os.getppid() != self.pid

    def has_begun_shutdown(self) -> bool:
        """Whether this or an earlier call has seen the JVM shutting down. Reads the names of new threads only."""
        try:
            threads = frozenset(os.listdir(self._tasks))
        except OSError:  # there is no /proc, or the JVM is gone
            return self._begun
        if any(self._name(thread) == SHUTDOWN_THREAD for thread in threads - self._named):
            self._begun = True
        # A thread gets its name after it has started, so two calls read each name.
        self._named, self._seen = self._seen & threads, threads
        return self._begun

    def await_end(self) -> None:
        """Waits until the JVM is gone, at most :data:`END_TIMEOUT`."""
        deadline = Deadline.after(END_TIMEOUT)
        while not self.has_ended() and not deadline.expired():
            time.sleep(END_CHECK_INTERVAL)

    def _name(self, thread: str) -> str:
        try:
            return (self._tasks / thread / "comm").read_text().rstrip("\n")
        except OSError:  # it has ended
            return ""
