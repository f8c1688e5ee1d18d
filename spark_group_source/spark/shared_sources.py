"""Streams of one Spark application that share a group and topics: each reads only some of the partitions.

Two sources of one query must not, because a join would miss rows. The exception is a union that treats them alike: each
record passes it once, whichever of them reads it. Two queries may, to divide their work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from spark_group_source.group.subscription import Subscription
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions

SOURCE = "kafka-group"

ROW_BY_ROW = {
    *("Project", "Filter", "Union", "Generate", "Expand", "Sample", "SubqueryAlias", "View", "ResolvedHint"),
    *("EventTimeWatermark", "CollectMetrics", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
    *("TypedFilter", "MapElements", "MapPartitions", "DeserializeToObject", "SerializeFromObject"),
    *("MapInPandas", "MapInArrow", "PythonMapInArrow"),
}
"""Nodes of Spark's plans that treat each row without regard to others. Those that count, compare or limit rows, as
aggregations do, are not among them: a branch of a union would do so with only some of the rows."""


class StreamSource(NamedTuple):
    """A source of a streaming query."""

    relation: Any
    """The leaf of Spark's analyzed plan, an object of the JVM."""
    options: SourceOptions


def leaves(plan: Any) -> list[Any]:
    """The leaves of a plan, equal ones once: Spark creates a source for each."""
    return _items(plan.collectLeaves().distinct())


def stream_sources(plan: Any) -> list[StreamSource]:
    """The sources of this package in the analyzed plan of a streaming query."""
    return [StreamSource(leaf, _options(leaf.extraOptions())) for leaf in leaves(plan) if _is_stream(leaf)]


def batch_sources(plan: Any) -> list[SourceOptions]:
    """The options of the batch DataFrames of this package in a plan."""
    return [_options(leaf.options()) for leaf in leaves(plan) if _is_batch(leaf)]


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


def reads_each_record_once(plan: Any, sources: Sequence[StreamSource]) -> bool:
    """Whether these sources are branches of one union that treats them alike: whichever reads a record, it passes once.

    What the branches do is compared in Spark's canonical form, in which equal columns have equal ids. ``False`` means
    that this is not proven.
    """
    relations = [source.relation for source in sources]
    union = _lowest_common_node(plan, relations)
    if _kind(union) != "Union":
        return False
    branches = [branch for branch in _branches(union) if _reads_any(branch, relations)]
    occurrences = [leaf for leaf in _items(union.collectLeaves()) if leaf in relations]
    if not len(branches) == len(occurrences) == len(relations):
        return False  # one of them is read twice, or a branch joins two
    first, *others = [branch.canonicalized() for branch in branches]
    canonical = [relation.canonicalized() for relation in relations]
    return all(_are_alike(first, other, canonical) for other in others)


def _lowest_common_node(plan: Any, relations: Sequence[Any]) -> Any:
    """The lowest node of a plan above all of these leaves."""
    node = plan
    while True:
        below = [child for child in _items(node.children()) if _reads_any(child, relations)]
        if len(below) != 1:
            return node
        node = below[0]


def _branches(union: Any) -> list[Any]:
    """The branches of a union; those of a union directly below it count as its own."""
    found = []
    for child in _items(union.children()):
        found += _branches(child) if _kind(child) == "Union" else [child]
    return found


def _reads_any(node: Any, relations: Sequence[Any]) -> bool:
    return any(leaf in relations for leaf in _items(node.collectLeaves()))


def _are_alike(one: Any, other: Any, sources: Sequence[Any]) -> bool:
    """Whether two canonical plans do the same, if each of ``sources`` counts as equal to the others."""
    one, other = _without_selection_of_all(one), _without_selection_of_all(other)
    if one in sources:
        return other in sources
    if one == other:
        return True
    below, other_below = _items(one.children()), _items(other.children())
    if not below or len(below) != len(other_below) or _kind(one) != _kind(other):
        return False
    if not _treats_each_row_alone(one, below) or _own_parts(one, below) != _own_parts(other, other_below):
        return False
    return all(_are_alike(*pair, sources) for pair in zip(below, other_below, strict=True))


def _treats_each_row_alone(node: Any, children: Sequence[Any]) -> bool:
    """Whether a node gives the same rows wherever its input is divided; a join with a table does."""
    if _kind(node) == "Join":
        return sum(1 for child in children if child.isStreaming()) == 1
    return _kind(node) in ROW_BY_ROW


def _without_selection_of_all(node: Any) -> Any:
    """Without a projection on the columns that are there already, as ``unionByName`` adds it to one branch."""
    while _kind(node) == "Project" and node.projectList() == node.child().output():
        node = node.child()
    return node


def _own_parts(node: Any, children: Sequence[Any]) -> list[Any]:
    """What a node consists of but its children: expressions, and settings of its kind."""
    parts = [node.productElement(number) for number in range(node.productArity())]
    return [part for part in parts if part not in children]


def _is_stream(leaf: Any) -> bool:
    return _kind(leaf) == "StreamingRelationV2" and leaf.sourceName().lower() == SOURCE


def _is_batch(leaf: Any) -> bool:
    return _kind(leaf) == "DataSourceV2Relation" and leaf.table().name().lower() == SOURCE


def _options(options: Any) -> SourceOptions:
    return parse_options(dict(options.asCaseSensitiveMap()))


def _kind(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name


def _items(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]
