"""The connections that a Python worker keeps from one task to the next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from spark_group_source.clock import monotonic
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.wire_options import WireOptions

AUTH_RETRY_TIMEOUT = 60.0
"""How long a task in a new worker process retries a rejected authentication, in seconds. The driver has signed in with
the same settings, so a broker that rejects them is often still starting. One failed task attempt must not fail a query
that has run for weeks, so each attempt has this time."""

_PoolKey = tuple[int, WireOptions, str]

_idle_clusters: dict[_PoolKey, tuple[float, Cluster]] = {}


@contextlib.contextmanager
def pooled_cluster(options: WireOptions, cluster_id: str = "") -> Iterator[Cluster]:
    """A cluster for one task, kept for the next task. A failed task closes it, because its connections may be broken.

    Its brokers must belong to the cluster with this id. If the id is empty, they must belong to the cluster of the
    first broker that answers.

    A worker process runs one task at a time, in one thread. The process id is part of the key, because a forked worker
    must not use its parent's sockets.
    """
    key = (os.getpid(), options, cluster_id)
    _close_idle()
    _, cluster = _idle_clusters.pop(key, (0.0, None))
    if cluster is None:
        cluster = Cluster(options, AUTH_RETRY_TIMEOUT, ClusterIdentity(cluster_id))
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    # A worker would otherwise keep some MB for each connection of every query that it has served.
    cluster.release_buffers()
    _, other = _idle_clusters.pop(key, (0.0, None))
    if other is not None:
        # Only tests run two tasks at once.
        other.close()
    _idle_clusters[key] = (monotonic(), cluster)


def _close_idle() -> None:
    for key, (last_used, cluster) in list(_idle_clusters.items()):
        process_id, options, _ = key
        is_of_parent = process_id != os.getpid()
        if is_of_parent or monotonic() - last_used > options.max_idle:
            del _idle_clusters[key]
            cluster.close()
