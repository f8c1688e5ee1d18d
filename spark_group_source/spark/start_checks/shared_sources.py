"""Streams of one Spark application that share a group and topics: each reads only some of the partitions.

Two sources of one query must not share partitions, because a join would miss rows. The exception is a union that treats
both sources alike: each record passes the union once, whichever source reads it. Two queries may share partitions to
divide their work.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_group_source.group.subscription import Subscription
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.spark.start_checks.logical_plan import StreamSource


def sharing(sources: Iterable[StreamSource]) -> list[list[StreamSource]]:
    """The sources that share partitions with each other: one list for each set of such sources."""
    found: list[list[StreamSource]] = []
    for source in sources:
        linked, separate = [source], []
        for group in found:
            if shares_with_any(source.options, _options(group)):
                linked += group
            else:
                separate.append(group)
        found = [*separate, linked]
    return [group for group in found if len(group) > 1]


def _options(sources: Iterable[StreamSource]) -> list[SourceOptions]:
    return [source.options for source in sources]


def shares_with_any(one: SourceOptions, others: Iterable[SourceOptions]) -> bool:
    """Whether a member with these options certainly shares the partitions of a topic with any of the others."""
    return any(share(one, other) for other in others)


def share(one: SourceOptions, other: SourceOptions) -> bool:
    """Whether two members with these options certainly share the partitions of a topic."""
    if one.group.group_id != other.group.group_id:
        return False
    clusters_may_differ = _servers(one).isdisjoint(_servers(other))
    if clusters_may_differ:
        return False
    first, second = one.group.subscription, other.group.subscription
    if first.partitions or second.partitions:  # assign needs no membership
        return False
    return _overlap(first, second)


def _servers(options: SourceOptions) -> set[tuple[str, int]]:
    """The bootstrap servers, in lower case: host names have no case."""
    return {(host.lower(), port) for host, port in options.wire.bootstrap_servers}


def _overlap(one: Subscription, other: Subscription) -> bool:
    """Whether both certainly have a topic in common. Without a broker, the topics of two different patterns are
    unknown."""
    if one.pattern is None:
        return _matches_any(other, one.topics)
    if other.pattern is None:
        return _matches_any(one, other.topics)
    return one.pattern == other.pattern


def _matches_any(subscription: Subscription, topics: Iterable[str]) -> bool:
    return any(subscription.matches(topic) for topic in topics)
