"""The settings of tasks, besides those of their connections."""

from __future__ import annotations

from dataclasses import dataclass

MAX_REQUEST_BYTES = 2**29
"""Maximum size in bytes that a fetch requests, whatever the options say. A connection receives at most 2**30 bytes, and
a response may exceed the requested size by one record batch."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a query's tasks read; some settings also hold for the driver's lookups. Sizes in bytes, times in seconds.

    A field is the place ``fetch.<field>`` of an option in ``options/table.py``. A task carries the whole object to its
    executor, so a new field needs no other code.

    ``fetch_max_bytes`` is the size of a fetch response, which bounds the memory of a task; only a larger single record
    batch exceeds it. ``max_partition_fetch_bytes`` is the part of a response that one partition may take; ``None`` for
    the whole response. A broker waits for ``min_bytes``, up to ``max_wait``. A task fails after ``poll_timeout``
    without progress.
    """

    read_committed: bool = False
    check_crcs: bool = True
    fail_on_data_loss: bool = True
    fetch_max_bytes: int = 12 * 2**20
    max_partition_fetch_bytes: int | None = None
    min_bytes: int = 1
    max_wait: float = 0.5
    poll_timeout: float = 120.0

    @property
    def max_bytes(self) -> int:
        """Maximum size of a Fetch request (``MaxBytes`` in the protocol)."""
        return min(self.fetch_max_bytes, MAX_REQUEST_BYTES)

    @property
    def partition_max_bytes(self) -> int:
        """Maximum size of one partition in a Fetch request (``PartitionMaxBytes`` in the protocol)."""
        if not self.max_partition_fetch_bytes:
            return self.max_bytes
        return min(self.max_bytes, self.max_partition_fetch_bytes)
