"""The Kafka clients of one thread: threads share no socket."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.group.offsets import GroupOffsets
from spark_group_source.group.settings import GroupSettings, Timings
from spark_group_source.group.topics import Subscription
from spark_group_source.options.table import SourceOptions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """One thread's clients for the logs and for the group's offsets."""

    cluster: Cluster
    offsets: GroupOffsets

    @classmethod
    def connect(cls, wire: WireOptions, settings: GroupSettings, timings: Timings) -> KafkaClients:
        """Clients with connections of their own, which open on first use."""
        cluster = Cluster(wire)
        return cls(cluster, GroupOffsets(cluster, settings, timings))


def group_settings(options: SourceOptions) -> GroupSettings:
    """The settings of the query's member, or of a batch query's group."""
    return GroupSettings(
        group_id=options.group_id,
        subscription=Subscription(
            options.topics, options.topic_pattern, options.include_internal_topics, options.partitions
        ),
        consumer_protocol=options.consumer_protocol,
        remote_assignor=options.remote_assignor,
        assignors=options.assignors,
        instance_id=options.group_instance_id,
        static_leaves=options.leave_on_stop,
        session_timeout=options.session_timeout,
        # On a slow network a heartbeat just before the session ends would arrive too late.
        heartbeat_interval=min(options.heartbeat_interval, options.session_timeout / 2),
        rebalance_timeout=options.max_poll_interval,
        request_timeout=options.request_timeout,
        metadata_max_age=options.metadata_max_age,
        offset_fetch_timeout=options.offset_fetch_timeout,
        rack=options.rack,
        retry_backoff=options.retry_backoff,
        retry_backoff_max=options.retry_backoff_max,
    )
