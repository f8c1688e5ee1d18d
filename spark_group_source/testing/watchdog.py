"""Ends child processes and removes their directory when the parent process ends, even after SIGKILL.

Run as ``python watchdog.py DIRECTORY``. The parent writes ``+PID`` and ``-PID`` lines. When the parent ends, its pipe
closes. (Linux' PR_SET_PDEATHSIG would follow the *thread* that started the child, and macOS has no such signal.)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Watchdog:
    """The parent's side: starts a watchdog process and sends it the process ids of the children."""

    def __init__(self, directory: Path) -> None:
        # -I and -S: the environment must neither prevent the start nor slow it down.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        """Makes the watchdog end ``pid`` when this process ends."""
        self._send(f"+{pid}")

    def forget(self, pid: int) -> None:
        """Stops watching ``pid``, which has ended; another process may soon get the same id."""
        self._send(f"-{pid}")

    def close(self) -> None:
        """Ends all watched processes and removes the directory now."""
        pipe = self._process.stdin
        if pipe is not None:
            pipe.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            pipe.write(line + "\n")
            pipe.flush()


def main(directory: str) -> None:
    """Runs in the watchdog: reads until the pipe closes, then ends the remaining processes."""
    watched: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        if line.startswith("+"):
            watched.add(pid)
        else:
            watched.discard(pid)
    for pid in watched:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
