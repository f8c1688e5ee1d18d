"""The topics that a query is to read, looked up before it begins."""

from __future__ import annotations

import time
from collections.abc import Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION, describe
from spark_group_source.errors import TopicError
from spark_group_source.group.subscription import Subscription
from spark_group_source.wire.cluster import Cluster, Topic

START_TIMEOUT = 20.0
"""Seconds in which brokers and topics must have been seen before the query fails."""

TOPIC_PATIENCE = 3.0
"""Seconds in which a topic that is not known may still become known: brokers learn of new ones one by one."""

POLL = 0.2
"""Seconds between two looks for a topic that is not known."""


def existing_topics(subscription: Subscription, cluster: Cluster, clock: Clock) -> Mapping[str, Topic]:
    """The topics subscribed to, by name, once brokers had time to learn of them.

    Raises:
        BrokerUnavailable: no broker answered in time.
        TopicError: one that is named does not exist or may not be described.
    """
    deadline = Deadline.after(START_TIMEOUT, clock)
    patience = deadline.at_most(TOPIC_PATIENCE)
    while True:
        topics = subscription.find(cluster, deadline)
        bad = {
            name: topics[name].error if name in topics else UNKNOWN_TOPIC_OR_PARTITION
            for name in subscription.topics
            if name not in topics or topics[name].error
        }
        if not bad:
            return topics
        if patience.expired() or TOPIC_AUTHORIZATION_FAILED in bad.values():
            break
        time.sleep(POLL)
    name, errno = next(iter(bad.items()))
    raise TopicError(
        f"Topic '{name}' cannot be read: the brokers answer {describe(errno)}.",
        "Grant the principal DESCRIBE and READ on it."
        if errno == TOPIC_AUTHORIZATION_FAILED
        else "Create it, or correct 'subscribe'.",
        errno=errno,
    )
