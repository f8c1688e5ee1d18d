"""The permission READ on each topic of a query. A topic that may not be read now is left out, and the others are
read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from spark_group_source.clock import Backoff, Clock, Deadline
from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, RetriableError
from spark_group_source.grace import Permission
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import Partitions, TopicPartition, topics_of, without_topics
from spark_group_source.query.topics import unreadable
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, permissions_of
from spark_group_source.wire.wire_options import WireOptions

log = logging.getLogger(__name__)

CHECK_BACKOFF, CHECK_BACKOFF_MAX = 1.0, 10.0
"""Seconds between two checks of topics that may not be read: at first, and at most."""

CHECK_TIMEOUT = 5.0
"""Maximum seconds for one check."""


class TopicPermissions:
    """Tracks which topics of one query may not be read now. Any thread may call it, with a cluster of its own.

    A topic that a pattern matches is left out for as long as READ on it is missing. Otherwise anybody who creates a
    matching topic could fail the query. For a topic that ``subscribe`` or ``assign`` names, the rule of
    :mod:`spark_group_source.grace` applies.
    """

    def __init__(self, subscription: Subscription, wire: WireOptions, clock: Clock) -> None:
        self._optional = subscription.pattern is not None
        self._principal = principal_of(wire)
        self._clock = clock
        self._lock = threading.Lock()
        self._permissions: dict[str, Permission] = {}
        self._checked: set[str] = set()
        self._denied: set[str] = set()
        self._backoff = Backoff(CHECK_BACKOFF, CHECK_BACKOFF_MAX)
        self._check_at = float("-inf")

    @property
    def denied(self) -> frozenset[str]:
        """The topics that may not be read now. Caller: any thread."""
        with self._lock:
            return frozenset(self._denied)

    @property
    def left_out(self) -> frozenset[str]:
        """The denied topics that a pattern matches, and that the query may therefore leave out."""
        if not self._optional:
            return frozenset()
        return self.denied

    def check_start(self, topics: Mapping[str, Topic], cluster: Cluster) -> None:
        """Checks READ on all topics when the query starts, including topics whose partitions other members own. Sends a
        request only for topics whose permissions the metadata ``topics`` does not contain.

        If the group assigns such a topic to this query later, and READ on it is missing just then, the permission has
        worked before, so the query does not fail at once. :meth:`without_denied` checks the topic again then, because
        tasks could not leave the topic out of a batch.

        Raises:
            TopicError: ``subscribe`` or ``assign`` names a topic that may not be read.
        """
        permitted = permissions_of(topics)
        self.record(set(permitted), permitted)
        unknown = topics.keys() - permitted
        if unknown:
            self._check(unknown, cluster, Deadline.after(CHECK_TIMEOUT, self._clock))

    def without_denied(
        self, partitions: Collection[TopicPartition], cluster: Cluster, deadline: Deadline | None = None
    ) -> Partitions:
        """Returns those of ``partitions`` whose topics may be read.

        Asks a broker about each topic once. Asks again about denied topics, each time after a backoff.

        Raises:
            TopicError: a topic may not be read, and a retry is useless.
        """
        due = self.due(topics_of(partitions))
        if due:
            if deadline is None:
                deadline = Deadline.after(CHECK_TIMEOUT, self._clock)
            self._check(due, cluster, deadline.at_most(CHECK_TIMEOUT))
        denied = self.denied
        if not denied:
            return frozenset(partitions)
        return without_topics(partitions, denied)

    def without_left_out(
        self, partitions: Collection[TopicPartition], cluster: Cluster, deadline: Deadline | None = None
    ) -> Partitions:
        """Checks the topics as :meth:`without_denied` does. Returns those of ``partitions`` whose topics are not
        :attr:`left_out`.

        Partitions of a denied topic that ``subscribe`` or ``assign`` names stay: without them the read is incomplete.

        Raises:
            TopicError: a topic may not be read, and a retry is useless.
        """
        self.without_denied(partitions, cluster, deadline)
        return without_topics(partitions, self.left_out)

    def record_denied(self, topics: Iterable[str]) -> None:
        """Notes that a broker denied a request about these topics: a commit, a fetch or a lookup.

        Raises:
            TopicError: a retry is useless.
        """
        for topic in sorted(topics):
            with self._lock:
                if topic not in self._denied:
                    self._backoff.reset()
                    self._check_at = self._clock() + self._backoff.next()
                self._denied.add(topic)
                permission = self._permission(topic)
            permission.record_denied(unreadable(topic, TOPIC_AUTHORIZATION_FAILED, ""))

    def record_granted(self, topics: Iterable[str]) -> None:
        """Notes that a broker has accepted a request that needs READ on these topics."""
        with self._lock:
            for topic in set(topics):
                self._denied.discard(topic)
                self._permission(topic).record_granted()

    def due(self, topics: set[str]) -> set[str]:
        """Those topics whose permission is to be checked now: each topic once, and a denied topic again after a
        backoff. Counts them as checked. Caller: any thread, which passes the answer to :meth:`record`."""
        with self._lock:
            due = topics - self._checked - self._denied
            self._checked |= due  # once: later, a request that needs the permission fails if it is missing
            if self._denied and self._clock() >= self._check_at:
                due |= self._denied
                self._check_at = self._clock() + self._backoff.next()
            return due

    def _check(self, topics: set[str], cluster: Cluster, deadline: Deadline) -> None:
        try:
            permitted = cluster.may_read(topics, deadline)
        except RetriableError as error:
            log.debug("cannot determine whether %s may be read: %s", ", ".join(sorted(topics)), error)
            return
        self.record(topics, permitted)

    def record(self, topics: set[str], permitted: Mapping[str, bool]) -> None:
        """Notes what a broker has answered about these topics; ``permitted`` leaves out topics that the broker does not
        know.

        Raises:
            TopicError: a topic may not be read, and a retry is useless.
        """
        granted = {topic for topic, may_read in permitted.items() if may_read}
        unknown = topics - permitted.keys()
        with self._lock:
            self._denied -= unknown  # a request that needs the permission fails if it is missing
        self.record_granted(granted & topics)
        self.record_denied((permitted.keys() & topics) - granted)

    def _permission(self, topic: str) -> Permission:
        """The permission on a topic. The caller holds the lock."""
        if topic not in self._permissions:
            name = f"READ on topic '{topic}'"
            self._permissions[topic] = Permission(name, self._principal, optional=self._optional, clock=self._clock)
        return self._permissions[topic]


def principal_of(wire: WireOptions) -> str:
    """The principal of these settings as Kafka names it by default; empty if only the brokers know it."""
    if wire.sasl is None or not wire.sasl.username:
        return ""
    return f"User:{wire.sasl.username}"
