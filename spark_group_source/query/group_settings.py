"""Turns a user's options into the settings of the group."""

from __future__ import annotations

from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.topics import Subscription
from spark_group_source.options.table import SourceOptions


def group_settings(options: SourceOptions) -> GroupSettings:
    """The settings of the query's member, or of a batch read's group."""
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
