"""Checks whether a union of sources that share a group still passes each record exactly once.

The group assigns each partition to only one of the sources. That makes no difference if all branches of the union do
the same to each record, whichever source has read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_group_source.spark.start_checks.logical_plan import StreamSource, items, kind

ROW_BY_ROW = {
    *("Project", "Filter", "Union", "Generate", "Expand", "Sample", "SubqueryAlias", "View", "ResolvedHint"),
    *("CollectMetrics", "Repartition", "RepartitionByExpression", "RebalancePartitions"),
    *("TypedFilter", "MapElements", "MapPartitions", "DeserializeToObject", "SerializeFromObject"),
    *("MapInPandas", "MapInArrow", "PythonMapInArrow"),
}
"""Nodes of Spark's plans that treat each row without regard to others. Nodes that count, compare or limit rows, such as
aggregations, are not listed: in a branch of a union, they would see only some of the rows. Nor is a watermark: that of
a branch whose source owns no partition would hold back the watermark of the query."""


def reads_each_record_once(plan: Any, sources: Sequence[StreamSource]) -> bool:
    """Whether these sources are branches of one union that treats them alike. If so, each record passes the union once,
    whichever source reads it.

    The branches are compared in Spark's canonical form, in which equal columns have equal ids. ``False`` means that
    this is not proven.
    """
    relations = [source.relation for source in sources]
    union = _lowest_common_node(plan, relations)
    if kind(union) != "Union":
        return False
    branches = [branch for branch in _branches(union) if _reads_any(branch, relations)]
    a_branch_joins_two = len(branches) < len(relations)
    if a_branch_joins_two or _reads_one_twice(union, relations):
        return False
    first, *others = _canonical(branches)
    canonical_sources = _canonical(relations)
    return all(_are_alike(first, other, canonical_sources) for other in others)


def _canonical(nodes: Sequence[Any]) -> list[Any]:
    return [node.canonicalized() for node in nodes]


def _lowest_common_node(plan: Any, relations: Sequence[Any]) -> Any:
    """The lowest node of a plan above all of these leaves."""
    node = plan
    while True:
        below = [child for child in items(node.children()) if _reads_any(child, relations)]
        if len(below) != 1:
            return node
        node = below[0]


def _branches(union: Any) -> list[Any]:
    """The branches of a union, including those of a union below it: ``unionByName`` puts a projection between them."""
    found = []
    for child in items(union.children()):
        below = _without_selection_of_all(child)
        if kind(below) == "Union":
            found += _branches(below)
        else:
            found.append(child)
    return found


def _reads_one_twice(union: Any, relations: Sequence[Any]) -> bool:
    occurrences = 0
    for leaf in items(union.collectLeaves()):
        if leaf in relations:
            occurrences += 1
    return occurrences > len(relations)


def _reads_any(node: Any, relations: Sequence[Any]) -> bool:
    return any(leaf in relations for leaf in items(node.collectLeaves()))


def _are_alike(one: Any, other: Any, sources: Sequence[Any]) -> bool:
    """Whether two canonical plans do the same to each row, if all of ``sources`` count as equal."""
    one, other = _without_selection_of_all(one), _without_selection_of_all(other)
    if one in sources:
        return other in sources
    if one == other:
        return True
    below, other_below = items(one.children()), items(other.children())
    is_leaf = not below
    if is_leaf or len(below) != len(other_below):
        return False
    if kind(one) != kind(other) or not _treats_each_row_alone(one, below):
        return False
    if _own_parts(one, below) != _own_parts(other, other_below):
        return False
    return all(_are_alike(*pair, sources) for pair in zip(below, other_below, strict=True))


def _treats_each_row_alone(node: Any, children: Sequence[Any]) -> bool:
    """Whether a node returns the same rows however its input is divided, as a join with a table does."""
    if kind(node) == "Join":
        streams = [child for child in children if child.isStreaming()]
        return len(streams) == 1
    return kind(node) in ROW_BY_ROW


def _without_selection_of_all(node: Any) -> Any:
    """Returns the plan below a projection that keeps all columns, such as ``unionByName`` adds to one branch."""
    while kind(node) == "Project":
        selects_all = node.projectList() == node.child().output()
        if not selects_all:
            break
        node = node.child()
    return node


def _own_parts(node: Any, children: Sequence[Any]) -> list[Any]:
    """The parts of a node without its children: expressions, and settings of its kind."""
    parts = []
    for number in range(node.productArity()):
        part = node.productElement(number)
        if part not in children:
            parts.append(part)
    return parts
