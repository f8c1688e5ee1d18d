"""Peak memory of Spark's Python workers and CPU time of Spark, from ``/proc``; None on systems without it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from pyspark.sql import SparkSession

PROC = Path("/proc")
DAEMON = b"pyspark.daemon"
TASKS = b"pyspark.worker\0"
"""The end of the command line of the daemon whose workers run tasks."""
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
            if found:
                peaks.append(int(found[1]) / 1024)
    return max(peaks, default=None)


def cpu_seconds(spark: SparkSession) -> float | None:
    """CPU time so far of an executor: Spark's JVM, which is the driver, too, and the Python workers of its tasks."""
    gateway = spark.sparkContext._gateway
    jvm = gateway and getattr(gateway, "proc", None)
    if jvm is None or not PROC.exists():
        return None
    parents, ticks = _parents(), _own_ticks(jvm.pid)
    for daemon in _children(jvm.pid, parents):
        if not _command(daemon).endswith(TASKS):
            continue
        # Workers that ended are in the daemon's times of children.
        ticks += sum(_ticks(daemon))
        for worker in _children(daemon, parents):
            ticks += _own_ticks(worker)
    return ticks / os.sysconf("SC_CLK_TCK")


def _workers() -> list[int]:
    """Children of the daemons that descend from this process; workers are forks with the command line of the daemon."""
    parents = _parents()
    workers = []
    for pid, parent in parents.items():
        if _is_daemon(parent) and _is_below(pid, os.getpid(), parents):
            workers.append(pid)
    return workers


def _children(pid: int, parents: dict[int, int]) -> list[int]:
    return [child for child, parent in parents.items() if parent == pid]


def _parents() -> dict[int, int]:
    parents = {}
    for process in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(process.name)] = int(_stat(process)[1])
    return parents


def _stat(process: Path) -> list[str]:
    """The fields after the name of the program, which is in parentheses and may contain some (man 5 proc)."""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _ticks(pid: int) -> list[int]:
    """The CPU time of a process, user and system, and that of its children that ended."""
    with contextlib.suppress(OSError):
        return [int(each) for each in _stat(PROC / str(pid))[11:15]]
    return []


def _own_ticks(pid: int) -> int:
    """The CPU time of a process without its children."""
    return sum(_ticks(pid)[:2])


def _is_daemon(pid: int) -> bool:
    return DAEMON in _command(pid)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
