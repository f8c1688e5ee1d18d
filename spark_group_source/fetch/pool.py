"""Connections kept across the tasks of a reused Python worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from spark_group_source.clock import monotonic
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions

REFUSED_FOR = 60.0
"""Seconds for which a task in a new worker process retries a refused authentication. The driver was accepted with the
same settings, so a broker that refuses is often still starting. Each task attempt has this time, and one failed task
attempt must not cost a query that ran for weeks."""

_Kept = dict[tuple[int, WireOptions], tuple[float, Cluster]]
_kept: _Kept = {}


@contextlib.contextmanager
def cluster(options: WireOptions) -> Iterator[Cluster]:
    """A cluster for one task, kept for the next one unless the task failed: then its connections are in no known state.

    A worker process runs one task at a time, in one thread. The process id is part of the key, because a forked worker
    must not use its parent's sockets.
    """
    key = (os.getpid(), options)
    _close_idle()
    _, found = _kept.pop(key, (0.0, None))
    lent = found or Cluster(options, auth_retry_timeout=REFUSED_FOR)
    try:
        yield lent
    except BaseException:
        lent.close()
        raise
    # Some MB for each connection, which a worker that served many queries would keep for all of them.
    lent.release_buffers()
    _, other = _kept.pop(key, (0.0, None))
    if other is not None:
        # Two tasks at once, as only tests have them.
        other.close()
    _kept[key] = (monotonic(), lent)


def _close_idle() -> None:
    for key, (used, idle) in list(_kept.items()):
        if key[0] != os.getpid() or monotonic() - used > key[1].max_idle:
            del _kept[key]
            idle.close()
