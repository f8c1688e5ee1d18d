"""The process in which Spark runs a stream's reader, or plans a read: its log, and its end."""

from __future__ import annotations

import logging
import signal
import sys
import threading


def leave_on_sigterm() -> None:
    """Spark ends the runner with SIGTERM, twice: the first ends it in order, so that stop() is called."""
    if threading.current_thread() is not threading.main_thread():
        return

    def end(signum: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)


def log_to_stderr() -> None:
    """The runner's logging is not set up, and its stderr is the driver's: rebalances must be seen there."""
    package = logging.getLogger("spark_group_source")
    if package.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)
