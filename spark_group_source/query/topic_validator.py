"""Checks, when a query starts, that its topics exist and may be described."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import (
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    GroupSourceError,
    TopicError,
)
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import TopicPartition, topics_of
from spark_group_source.query.topics import raise_or_skip_deleted, unreadable
from spark_group_source.spelling import nearest
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, denied_topics
from spark_group_source.wire.stale_metadata import EveryBroker, unknown_to_all

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lacking:
    """The topics and partitions that a query needs and a lookup has not found.

    Attributes:
        errors: the error codes of topics that must exist.
        partitions: the assigned partitions that do not exist, of topics without an error.
    """

    errors: dict[str, int]
    partitions: set[TopicPartition]


START_TIMEOUT = 20.0
"""Maximum seconds until brokers and topics are found; then the query fails."""

WARN_AFTER = 5.0
"""Seconds without an answer from any broker until a warning is logged."""

UNKNOWN_TOPIC_TIMEOUT = 3.0
"""How many seconds an unknown topic may take to become known: a new topic reaches the brokers one by one."""

RETRY_INTERVAL = 0.2
"""Seconds between two lookups of the topics."""

LAST_LOOKUP = 1.0
"""Minimum seconds for another lookup. With less time, a lookup would fail as if no broker answered, and its error would
explain less than the last response."""


class TopicValidator:
    """Looks up the topics of a subscription until all exist, or the timeout has passed."""

    def __init__(self, cluster: Cluster, subscription: Subscription, fail_on_data_loss: bool, clock: Clock) -> None:
        self._cluster = cluster
        self._every_broker = EveryBroker(cluster, with_permissions=True)
        self._subscription = subscription
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._hidden: set[str] = set()

    @property
    def confirmed(self) -> bool:
        """Whether enough brokers have answered the last lookup to determine which topics and partitions exist now."""
        return self._every_broker.confirmed

    def find(self, logged: Iterable[TopicPartition]) -> dict[str, Topic]:
        """The topics to read. ``logged`` are the partitions that the query read before its restart.

        Raises:
            BrokerUnavailable: no broker answered in time.
            TopicError: a topic or an assigned partition does not exist, or may not be described.
            DataLoss: a topic or partition that was read before was deleted, and ``failOnDataLoss`` is true.
        """
        read_before = frozenset(logged)
        deadline = Deadline.after(START_TIMEOUT, self._clock)
        unknown_until = deadline.at_most(UNKNOWN_TOPIC_TIMEOUT)
        while True:
            may_be_unknown = not unknown_until.expired()
            topics = self._find_topics(deadline)
            lacking = self._lacking(topics, read_before, deadline)
            if not lacking.errors and not lacking.partitions:
                return topics
            if self._is_final(lacking, deadline, may_be_unknown):
                break
            time.sleep(RETRY_INTERVAL)
        self._raise_or_skip(lacking, read_before, deadline)
        return topics

    def _is_final(self, lacking: Lacking, deadline: Deadline, may_be_unknown: bool) -> bool:
        """Whether another lookup of the topics would find no more than the last one.

        Args:
            may_be_unknown: a new topic may not have reached the brokers yet.
        """
        error_codes = lacking.errors.values()
        if TOPIC_AUTHORIZATION_FAILED in error_codes:
            return True
        if may_be_unknown:
            return False
        if deadline.remaining() <= RETRY_INTERVAL + LAST_LOOKUP:
            return True
        if LEADER_NOT_AVAILABLE in error_codes:
            return False
        unknown = set(lacking.partitions)
        for name, error_code in lacking.errors.items():
            if error_code == UNKNOWN_TOPIC_OR_PARTITION:
                unknown.add(TopicPartition(name, 0))
        # The lookup ends before the deadline: a silent broker must leave time to ask the others again.
        return unknown_to_all(self._cluster, unknown, deadline.at_most(WARN_AFTER)) == unknown

    def _lacking(
        self, topics: Mapping[str, Topic], read_before: frozenset[TopicPartition], deadline: Deadline
    ) -> Lacking:
        errors: dict[str, int] = {}
        for name in self._required(read_before):
            topic = topics.get(name)
            if topic is None:
                errors[name] = UNKNOWN_TOPIC_OR_PARTITION
            elif topic.error:
                errors[name] = topic.error
        missing: set[TopicPartition] = set()
        for tp in self._subscription.partitions:
            if tp.topic not in errors and tp.partition not in topics[tp.topic].partitions:
                missing.add(tp)
        return Lacking(self._without_hidden(errors, deadline), missing)

    def deleted(self, topics: Mapping[str, Topic], logged: Iterable[TopicPartition]) -> set[str]:
        """Subscribed topics that the query has read, and that are no longer among ``topics``."""
        deleted: set[str] = set()
        for name in self._matching(topics_of(logged)):
            if name not in topics or topics[name].error:
                deleted.add(name)
        return deleted - self._hidden

    def _without_hidden(self, errors: dict[str, int], deadline: Deadline) -> dict[str, int]:
        """Removes topics that the pattern matches but this client may not describe now, because they were not deleted.

        The list of all topics leaves them out. Asked for such a topic by name, a broker answers that the permission is
        missing.
        """
        if self._subscription.pattern is None:
            return errors
        if not errors:
            return errors
        found = self._cluster.metadata(sorted(errors), deadline).topics
        hidden = denied_topics(found)
        if hidden - self._hidden:
            log.warning("this query may no longer describe %s, and continues with its other topics", names(hidden))
        self._hidden = hidden
        return {name: error_code for name, error_code in errors.items() if name not in hidden}

    def _find_topics(self, deadline: Deadline) -> dict[str, Topic]:
        """The topics that any broker knows. Logs errors long before the timeout, because an address may be wrong."""
        try:
            return self._subscription.find(self._every_broker, deadline.at_most(WARN_AFTER))
        except BrokerUnavailable as error:
            if deadline.expired():
                raise
            log.warning(
                "no broker has answered yet; the query fails in %.0f s if none does: %s",
                deadline.remaining(),
                error.happened,
            )
        return self._subscription.find(self._every_broker, deadline)

    def _required(self, read_before: frozenset[TopicPartition]) -> list[str]:
        """The topics that must exist: named topics, and topics that were read before and that the subscription still
        matches."""
        topics_read = topics_of(read_before)
        return sorted({*self._subscription.topics, *self._matching(topics_read)})

    def _matching(self, topics: Iterable[str]) -> list[str]:
        """Those of these topics that the query subscribes to."""
        return [name for name in topics if self._subscription.matches(name)]

    def _raise_or_skip(self, lacking: Lacking, read_before: frozenset[TopicPartition], deadline: Deadline) -> None:
        """Raises the first error, or warns of deleted topics and partitions if ``failOnDataLoss`` is false."""
        deleted = self._deleted_of(lacking, read_before)
        for name, error_code in lacking.errors.items():
            if name not in deleted:
                raise self._unreadable(name, error_code, deadline)
        never_read = lacking.partitions - read_before
        if never_read:
            raise TopicError(
                f"{len(never_read)} assigned partition(s) do not exist: {names(never_read)}.",
                "Correct 'assign', or add partitions to the topic.",
                error_code=UNKNOWN_TOPIC_OR_PARTITION,
            )
        raise_or_skip_deleted(deleted, self._fail_on_data_loss)
        raise_or_skip_deleted(lacking.partitions, self._fail_on_data_loss)

    def _unreadable(self, name: str, error_code: int, deadline: Deadline) -> TopicError:
        if error_code == LEADER_NOT_AVAILABLE:
            return unreadable(name, error_code, "Check its partitions and leaders.")
        action = f"Correct '{self._option()}', or create the topic."
        return unreadable(name, error_code, action, self._nearest_topic(name, deadline))

    def _nearest_topic(self, name: str, deadline: Deadline) -> str | None:
        """The topic that a misspelled name means, if this client may describe it. To a client without permissions, a
        broker answers that a permission is missing, whether the topic exists or not."""
        try:
            topics = self._cluster.metadata(None, deadline.at_most(WARN_AFTER)).topics
        except GroupSourceError:  # the error of the topic says more
            return None
        others = [each.name for each in topics.values() if each.name != name and not each.internal]
        return nearest(name, others)

    def _deleted_of(self, lacking: Lacking, read_before: frozenset[TopicPartition]) -> set[str]:
        """Unknown topics that the query has read, and that were therefore deleted."""
        topics_read = topics_of(read_before)
        if read_before and not self._fail_on_data_loss:
            topics_read |= lacking.errors.keys()  # another member may have read them
        return {name for name in topics_read if lacking.errors.get(name) == UNKNOWN_TOPIC_OR_PARTITION}

    def _option(self) -> str:
        """The option that names the topics."""
        if self._subscription.partitions:
            return "assign"
        return "subscribe"
