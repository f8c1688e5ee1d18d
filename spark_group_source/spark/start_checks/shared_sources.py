"""Streams of one Spark application that share a group and topics: each reads only some of the partitions.

Two sources of one query must not, because a join would miss rows. The exception is a union that treats them alike: each
record passes it once, whichever of them reads it. Two queries may, to divide their work.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_group_source.group.subscription import Subscription
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.spark.start_checks.logical_plan import StreamSource


def sharing(sources: Iterable[StreamSource]) -> list[list[StreamSource]]:
    """The sources that share partitions with other sources: a list for each set of them."""
    found: list[list[StreamSource]] = []
    for source in sources:
        linked, separate = [source], []
        for each in found:
            if any(share(source.options, other.options) for other in each):
                linked += each
            else:
                separate.append(each)
        found = [*separate, linked]
    return [each for each in found if len(each) > 1]


def share(one: SourceOptions, other: SourceOptions) -> bool:
    """Whether two members with these options certainly share the partitions of a topic."""
    same_cluster = not set(one.wire.bootstrap_servers).isdisjoint(other.wire.bootstrap_servers)
    first, second = one.group.subscription, other.group.subscription
    members = not (first.partitions or second.partitions)  # assign needs no membership
    same_group = one.group.group_id == other.group.group_id
    return same_group and same_cluster and members and _overlap(first, second)


def _overlap(one: Subscription, other: Subscription) -> bool:
    """Whether both surely have a topic. Without a broker nothing is known of two different patterns."""
    if one.pattern is not None and other.pattern is not None:
        return one.pattern == other.pattern
    named, by_any = (one, other) if one.pattern is None else (other, one)
    return any(by_any.matches(topic) for topic in named.topics)
