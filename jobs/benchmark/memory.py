"""Peak memory of Spark's Python workers, from ``/proc``; None on systems without it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

PROC = Path("/proc")
DAEMON = b"pyspark.daemon"
RESET_PEAK = "5"
"""The value for ``clear_refs`` that resets the peak to the current size (man 5 proc)."""


def reset_peaks() -> None:
    """Resets the peaks that :func:`peak_mib` returns."""
    for pid in _workers():
        # A worker may end at any time.
        with contextlib.suppress(OSError):
            (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)


def peak_mib() -> float | None:
    """Peak resident memory of the largest running worker in MiB, including shared memory.

    Workers run for a minute after a query, so a call directly after the query misses none.
    """
    peaks = []
    for pid in _workers():
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", (PROC / str(pid) / "status").read_text())
            peaks += [int(found[1]) / 1024] if found else []
    return max(peaks, default=None)


def _workers() -> list[int]:
    """Children of the daemons that descend from this process; workers are forks with the command line of the daemon."""
    parents = _parents()
    return [pid for pid, parent in parents.items() if _is_daemon(parent) and _is_mine(pid, parents)]


def _parents() -> dict[int, int]:
    parents = {}
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name of the program is in parentheses, and may contain some.
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _is_daemon(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return DAEMON in (PROC / str(pid) / "cmdline").read_bytes()
    return False


def _is_mine(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
