"""What a query is to read must be there when it starts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.error_codes import TOPIC_AUTHORIZATION_FAILED, describe
from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION as UNKNOWN
from spark_group_source.errors import BrokerUnavailable, TopicError
from spark_group_source.group.subscription import Subscription
from spark_group_source.listing import names
from spark_group_source.offsets import TopicPartition
from spark_group_source.query.planning.end_offsets import continue_without
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic

log = logging.getLogger(__name__)

START_TIMEOUT = 20.0
"""Seconds in which brokers and topics must have been seen before the query fails."""

SILENT = 5.0
"""Seconds after which somebody who waits for the query to start is told why it does not."""

TOPIC_PATIENCE = 3.0
"""Seconds in which a topic that is not known may still become known: brokers learn of new ones one by one."""

PAUSE = 0.2
"""Seconds between two looks at the topics."""


class TopicValidator:
    """Looks for the topics and partitions of a subscription until all are there, or time is up."""

    def __init__(self, cluster: Cluster, subscription: Subscription, fail_on_data_loss: bool, clock: Clock) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock

    def topics(self, logged: Iterable[TopicPartition]) -> dict[str, Topic]:
        """The topics to read. ``logged`` are the partitions that the query read before it was restarted.

        Raises:
            BrokerUnavailable: no broker answered in time.
            TopicError: a topic or an assigned partition does not exist, or may not be described.
            DataLoss: one that was read before does not exist any more, and ``failOnDataLoss`` is true.
        """
        before = frozenset(logged)
        deadline = Deadline.after(START_TIMEOUT, self._clock)
        patience = deadline.at_most(TOPIC_PATIENCE)
        while True:
            topics = self._find(deadline)
            errors = {name: topics[name].error if name in topics else UNKNOWN for name in self._named(before)}
            errors = {name: errno for name, errno in errors.items() if errno}
            absent = {
                tp
                for tp in self._subscription.partitions
                if tp.topic not in errors and tp.partition not in topics[tp.topic].partitions
            }
            if not errors and not absent:
                return topics
            if patience.expired() or TOPIC_AUTHORIZATION_FAILED in errors.values():
                break
            time.sleep(PAUSE)
        self._judge(errors, absent, before)
        return topics

    def gone(self, topics: Mapping[str, Topic], logged: Iterable[TopicPartition]) -> set[str]:
        """Topics that the query has read and is still to read, and that are not among ``topics`` any more."""
        wanted = filter(self._subscription.matches, {tp.topic for tp in logged})
        return {name for name in wanted if name not in topics or topics[name].error}

    def _find(self, deadline: Deadline) -> dict[str, Topic]:
        """The topics there are; a wrong address is logged long before the time is up."""
        try:
            return self._subscription.find(self._cluster, deadline.at_most(SILENT))
        except BrokerUnavailable as error:
            if deadline.expired():
                raise
            log.warning(
                "no broker has answered yet; the query fails in %.0f s if none does: %s",
                deadline.remaining(),
                error.happened,
            )
        return self._subscription.find(self._cluster, deadline)

    def _named(self, before: frozenset[TopicPartition]) -> list[str]:
        """Topics that must be there: those named, and those read before that the pattern still asks for."""
        return sorted({*self._subscription.topics, *filter(self._subscription.matches, {tp.topic for tp in before})})

    def _judge(self, errors: dict[str, int], absent: set[TopicPartition], before: frozenset[TopicPartition]) -> None:
        """Raises what is wrong, or says what has been lost."""
        read = {tp.topic for tp in before}
        if before and not self._fail_on_data_loss:
            read |= errors.keys()  # perhaps by another member
        lost = {name for name, errno in errors.items() if errno == UNKNOWN and name in read}
        for name, errno in errors.items():
            if name not in lost:
                raise TopicError(
                    f"Topic '{name}' cannot be read: the brokers answer {describe(errno)}.",
                    "Grant the principal DESCRIBE and READ on it."
                    if errno == TOPIC_AUTHORIZATION_FAILED
                    else f"Create it, or correct '{'assign' if self._subscription.partitions else 'subscribe'}'.",
                    errno=errno,
                )
        if absent - before:
            raise TopicError(
                f"{len(absent - before)} assigned partition(s) do not exist: {names(absent - before)}.",
                "Correct 'assign', or add partitions to the topic.",
                errno=UNKNOWN,
            )
        continue_without(lost, self._fail_on_data_loss)
        continue_without(absent, self._fail_on_data_loss)
