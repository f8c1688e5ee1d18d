"""Ends child processes and removes their directory when the parent is gone, however it went.

Run as ``python watchdog.py DIRECTORY``. The parent writes ``+PID`` and ``-PID`` lines; the end of its pipe, which even
SIGKILL brings about, is the sign. (Linux' PR_SET_PDEATHSIG would follow the *thread* that started the child, and macOS
has nothing like it.)
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
    """The parent's side: tells a watchdog process of its own which children and which directory end with it."""

    def __init__(self, directory: Path) -> None:
        # -I and -S: nothing of the environment may keep it from starting or slow it down.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def watch(self, pid: int) -> None:
        """Ends ``pid`` when this process ends."""
        self._tell(f"+{pid}")

    def forget(self, pid: int) -> None:
        """``pid`` has ended by itself; its number may soon be another's."""
        self._tell(f"-{pid}")

    def close(self) -> None:
        """Ends what is still watched, and removes the directory, now."""
        pipe = self._process.stdin
        if pipe is not None:
            pipe.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        if pipe is not None:
            pipe.write(line + "\n")
            pipe.flush()


def main(directory: str) -> None:
    """The watchdog's own side: reads until the pipe ends, then ends what is left."""
    watched: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        (watched.add if line[0] == "+" else watched.discard)(pid)
    for pid in watched:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
