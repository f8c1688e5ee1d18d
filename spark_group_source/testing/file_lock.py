"""A lock between processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_group_source.clock import Deadline
from spark_group_source.testing.errors import EmbeddedKafkaError

POLL_S = 0.2


@contextmanager
def file_lock(path: Path, timeout: float) -> Iterator[None]:
    """Holds the lock on ``path`` (POSIX ``flock``); waits at most ``timeout`` seconds for another holder.

    Raises:
        EmbeddedKafkaError: another process still holds the lock at the deadline.
    """
    import fcntl  # not on Windows, where the rest of the package can be imported

    deadline = Deadline.after(timeout)
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if deadline.expired():
                    raise EmbeddedKafkaError(
                        f"Another process has held {path} for more than {timeout:.0f} s.",
                        "Check whether that process still downloads. If it hangs, end it.",
                    ) from error
            time.sleep(POLL_S)
        yield
