"""Checks that the topics and partitions of a subscription exist when a query starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, BrokerUnavailable, TopicError, describe
from spark_group_source.errors import UNKNOWN_TOPIC_OR_PARTITION as UNKNOWN
from spark_group_source.group.topics import EveryBroker, Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.query.planning.deletion import raise_or_skip_deleted
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster, Topic

log = logging.getLogger(__name__)

START_TIMEOUT = 20.0
"""Maximum seconds until brokers and topics are found; then the query fails."""

WARN_AFTER = 5.0
"""Seconds without an answer from any broker until the log says so."""

UNKNOWN_TOPIC_TIMEOUT = 3.0
"""How many seconds an unknown topic may take to become known: brokers learn of a new topic one by one."""

RETRY_INTERVAL = 0.2
"""Seconds between two lookups of the topics."""


class TopicValidator:
    """Looks up the topics of a subscription until all exist, or the timeout has passed."""

    def __init__(self, cluster: Cluster, subscription: Subscription, fail_on_data_loss: bool, clock: Clock) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock

    def find(self, logged: Iterable[TopicPartition]) -> dict[str, Topic]:
        """The topics to read. ``logged`` are the partitions that the query read before its restart.

        Raises:
            BrokerUnavailable: no broker answered in time.
            TopicError: a topic or an assigned partition does not exist, or may not be described.
            DataLoss: one that was read before was deleted, and ``failOnDataLoss`` is true.
        """
        read_before = frozenset(logged)
        deadline = Deadline.after(START_TIMEOUT, self._clock)
        unknown_until = deadline.at_most(UNKNOWN_TOPIC_TIMEOUT)
        asked_all = False
        while True:
            topics = self._look_up(deadline)
            if unknown_until.expired():
                asked_all = True
                topics = self._subscription.find(EveryBroker(self._cluster), deadline)
            required = self._required(read_before)
            errors = {name: topics[name].error if name in topics else UNKNOWN for name in required}
            errors = {name: errno for name, errno in errors.items() if errno}
            missing = {
                tp
                for tp in self._subscription.partitions
                if tp.topic not in errors and tp.partition not in topics[tp.topic].partitions
            }
            if not errors and not missing:
                return topics
            if asked_all or TOPIC_AUTHORIZATION_FAILED in errors.values():
                break
            time.sleep(RETRY_INTERVAL)
        self._raise_or_skip(errors, missing, read_before)
        return topics

    def deleted(self, topics: Mapping[str, Topic], logged: Iterable[TopicPartition]) -> set[str]:
        """Subscribed topics that the query has read, and that are no longer among ``topics``."""
        subscribed = filter(self._subscription.matches, {tp.topic for tp in logged})
        return {name for name in subscribed if name not in topics or topics[name].error}

    def _look_up(self, deadline: Deadline) -> dict[str, Topic]:
        """The topics that exist. Logs a wrong address long before the timeout."""
        try:
            return self._subscription.find(self._cluster, deadline.at_most(WARN_AFTER))
        except BrokerUnavailable as error:
            if deadline.expired():
                raise
            log.warning(
                "no broker has answered yet; the query fails in %.0f s if none does: %s",
                deadline.remaining(),
                error.happened,
            )
        return self._subscription.find(self._cluster, deadline)

    def _required(self, read_before: frozenset[TopicPartition]) -> list[str]:
        """Topics that must exist: those named, and those read before that the subscription still matches."""
        topics_read = {tp.topic for tp in read_before}
        return sorted({*self._subscription.topics, *filter(self._subscription.matches, topics_read)})

    def _raise_or_skip(
        self, errors: dict[str, int], missing: set[TopicPartition], read_before: frozenset[TopicPartition]
    ) -> None:
        """Raises the first error, or warns of deleted topics and partitions if ``failOnDataLoss`` is false."""
        topics_read = {tp.topic for tp in read_before}
        if read_before and not self._fail_on_data_loss:
            topics_read |= errors.keys()  # perhaps by another member
        deleted = {name for name, errno in errors.items() if errno == UNKNOWN and name in topics_read}
        for name, errno in errors.items():
            if name not in deleted:
                raise TopicError(
                    f"Topic '{name}' cannot be read: the brokers answer {describe(errno)}.",
                    "Grant the principal DESCRIBE and READ on it."
                    if errno == TOPIC_AUTHORIZATION_FAILED
                    else f"Create it, or correct '{'assign' if self._subscription.partitions else 'subscribe'}'.",
                    errno=errno,
                )
        if never_read := missing - read_before:
            raise TopicError(
                f"{len(never_read)} assigned partition(s) do not exist: {names(never_read)}.",
                "Correct 'assign', or add partitions to the topic.",
                errno=UNKNOWN,
            )
        raise_or_skip_deleted(deleted, self._fail_on_data_loss)
        raise_or_skip_deleted(missing, self._fail_on_data_loss)
