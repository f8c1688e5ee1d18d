"""Peak memory of Spark's Python workers, from ``/proc``; there is none to tell where that is missing."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

PROC = Path("/proc")
DAEMON = b"pyspark.daemon"
FORGET_PEAK = "5"
"""What ``clear_refs`` takes for: the peak starts anew at the present size (man 5 proc)."""


def forget_peaks() -> None:
    """Lets :func:`peak_mib` tell the peak from now on."""
    for pid in _workers():
        # A worker may end at any time.
        with contextlib.suppress(OSError):
            (PROC / str(pid) / "clear_refs").write_text(FORGET_PEAK)


def peak_mib() -> float | None:
    """Peak resident memory of the largest worker that lives, in MiB; what it shares with others included.

    Workers outlive a query by a minute, so asking right after it misses none.
    """
    peaks = []
    for pid in _workers():
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", (PROC / str(pid) / "status").read_text())
            peaks += [int(found[1]) / 1024] if found else []
    return max(peaks, default=None)


def _workers() -> list[int]:
    """Children of those daemons that descend from this process; workers are forks and have the daemon's command."""
    parents = _parents()
    return [pid for pid, parent in parents.items() if _is_daemon(parent) and _is_mine(pid, parents)]


def _parents() -> dict[int, int]:
    parents = {}
    for each in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name of the program stands in parentheses, and may hold any of them.
            parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _is_daemon(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return DAEMON in (PROC / str(pid) / "cmdline").read_bytes()
    return False


def _is_mine(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != os.getpid():
        pid = parents[pid]
    return pid == os.getpid()
