"""Checks a new query for sources that share a group, in the user's process."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from spark_group_source.group.settings import Subscription
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.settings import SourceOptions

log = logging.getLogger(__name__)

SOURCE = "kafka-group"


def warn_of_shared_sources(query: Any) -> None:
    """Warns if sources of a query share a group. ``query`` is the JVM's ``StreamingQuery``."""
    leaves = query.streamingQuery().analyzedPlan().collectLeaves().distinct()  # Spark creates a source for each
    sources = [
        leaf
        for leaf in (leaves.apply(number) for number in range(leaves.size()))
        if leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName().lower() == SOURCE
    ]
    if len(sources) < 2:  # most queries: their options need not be parsed here
        return
    options = [parse_options(dict(source.extraOptions().asCaseSensitiveMap())) for source in sources]
    for group_id, sharing in shared(options).items():
        log.warning(
            "group %s: %d sources of the query %s share this group: each reads only some of the partitions of %s, and a"
            " join misses rows. Use one load() for each source, each with its own kafka.group.id.",
            group_id,
            len(sharing),
            query.name() or query.id().toString(),
            sharing[0].group.subscription,
        )


def shared(sources: Iterable[SourceOptions]) -> Mapping[str, list[SourceOptions]]:
    """The sources that share partitions with another source, by group."""
    found: dict[str, list[SourceOptions]] = {}
    for pair in itertools.combinations(sources, 2):
        if _share(*pair):
            sharing = found.setdefault(pair[0].group.group_id, [])
            sharing += [source for source in pair if not any(source is other for other in sharing)]
    return found


def _share(one: SourceOptions, other: SourceOptions) -> bool:
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
