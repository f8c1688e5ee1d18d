"""The leaders that one client of a cluster knows, for a new client.

A query's driver has just asked the leaders for their offsets when it plans a batch. With these leaders a task sends its
first fetch without a lookup, which takes four round trips on a new connection. If leaders have changed by then, or an
address leads elsewhere from the host of the task, the task looks up the leaders itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kafka.protocol.api_key import ApiKey

from spark_group_source.offsets import TopicPartition
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Broker, Metadata, Topic


def known_leaders(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Metadata:
    """The partitions that a client may fetch from their leaders without a lookup, and the brokers that have them.

    A topic is left out if its id is unknown, or if the leader of one of the partitions does not compare topic ids in a
    fetch: then only a lookup shows that the topic was recreated. A topic is also left out if a partition has no leader,
    or if ``cluster`` has no connection to the leader.
    """
    numbers: dict[str, list[int]] = defaultdict(list)
    for tp in partitions:
        numbers[tp.topic].append(tp.partition)
    kept = cluster.kept(numbers)
    topics: dict[str, Topic] = {}
    brokers: dict[int, Broker] = {}
    for name, topic in kept.topics.items():
        wanted = topic.part(numbers[name])
        if topic.id and not topic.error and _may_be_fetched(wanted, numbers[name], cluster):
            topics[name] = wanted
            brokers |= _brokers_of(wanted, kept)
    return Metadata(brokers, topics)


def _may_be_fetched(topic: Topic, numbers: Iterable[int], cluster: Cluster) -> bool:
    """Whether the leaders of these partitions are known, and compare topic ids in a fetch."""
    for number in numbers:
        leader = topic.partitions.get(number)
        if leader is None:
            return False
        if not cluster.supports(leader, ApiKey.Fetch, versions.FETCH_BY_TOPIC_ID):
            return False
    return True


def _brokers_of(topic: Topic, kept: Metadata) -> dict[int, Broker]:
    """The brokers that have these partitions: a leader may name a follower to fetch from."""
    ids: set[int | None] = set(topic.partitions.values())
    for replicas in topic.replicas.values():
        ids.update(replicas)
    return {broker_id: broker for broker_id, broker in kept.brokers.items() if broker_id in ids}
