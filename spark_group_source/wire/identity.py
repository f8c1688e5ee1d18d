"""Which cluster a query reads. All of the query's connections share this identity.

An address is not a broker. If a pod's IP is reused, a blue and a green deployment change places or a DNS record is
stale, the server at an address belongs to another cluster, which may have a topic of the same name. A query keeps to
the cluster of its checkpoint, or to the first cluster whose id a broker reported. A broker of any other cluster counts
as unavailable, and none of its answers is used. (KIP-1242 lets brokers check the same; kafka-python lacks it.)
"""

from __future__ import annotations

import logging
import threading

from spark_group_source.clock import Clock, LogEvery, monotonic
from spark_group_source.errors import OtherCluster
from spark_group_source.text import printable

log = logging.getLogger(__name__)

WARN_AGAIN = 600.0
"""Seconds between two warnings about one address of another cluster."""

MAX_WARNED = 100
"""Maximum number of addresses whose last warning is remembered. A forgotten address gets its next warning sooner."""

_MOST = 100
"""Maximum number of characters of an id in a message: a broker may report any text."""

_WHAT_TO_DO = (
    "Correct 'kafka.bootstrap.servers', or the address that the cluster's brokers advertise. To read another cluster"
    " instead, use a new checkpointLocation."
)


class ClusterIdentity:
    """The cluster of one query, one batch query or one task. Thread-safe.

    Args:
        cluster_id: the id of the cluster, if it is known before a broker reports it; empty if not.
    """

    def __init__(self, cluster_id: str = "", clock: Clock = monotonic) -> None:
        self._id = cluster_id
        self._clock = clock
        self._lock = threading.Lock()
        self._warnings: dict[str, LogEvery] = {}

    @property
    def id(self) -> str:
        """The cluster's id; empty until a broker reports one."""
        return self._id

    def expect(self, cluster_id: str) -> bool:
        """Makes this the right cluster, whatever brokers have reported before. An empty id has no effect.

        Returns:
            Whether the query has taken another cluster for the right one until now.
        """
        if not cluster_id:
            return False
        with self._lock:
            former, self._id = self._id, cluster_id
        return not _may_be_same(former, cluster_id)

    def check(self, reported: str | None, broker: str) -> None:
        """Checks the cluster id that a broker reports, and keeps the first one.

        A broker without an id may belong to any cluster: some proxies, and some servers other than Kafka, report none.

        Args:
            broker: names the broker in the error and the log.

        Raises:
            OtherCluster: the broker belongs to another cluster.
        """
        if not reported:
            return
        with self._lock:
            if not self._id:
                self._id = reported
            if _may_be_same(self._id, reported):
                return
            warning_due = self._warning_of(broker).try_acquire()
        ids = printable(reported, _MOST), printable(self._id, _MOST)
        if warning_due:
            log.warning(
                "broker %s belongs to cluster '%s', but this query reads cluster '%s': treating the broker as"
                " unavailable. Another cluster may have taken over the broker's address.",
                broker,
                *ids,
            )
        raise OtherCluster(
            f"Broker {broker} belongs to cluster '{ids[0]}', and this query reads cluster '{ids[1]}'.", _WHAT_TO_DO
        )

    def _warning_of(self, broker: str) -> LogEvery:
        warning = self._warnings.pop(broker, None)
        if warning is None:
            warning = LogEvery(WARN_AGAIN, self._clock)
        self._warnings[broker] = warning
        if len(self._warnings) > MAX_WARNED:
            del self._warnings[next(iter(self._warnings))]
        return warning


def _may_be_same(cluster_id: str, other: str) -> bool:
    """Whether two ids may belong to one cluster. An empty id is unknown and may belong to any.

    Case does not count: an id may be a host name (as of Azure Event Hubs), which a client may write in any case.
    """
    if not cluster_id or not other:
        return True
    return cluster_id.casefold() == other.casefold()
