"""Spark's logical plan of a query: its nodes, which are objects of the JVM, and the sources of this package in it."""

from __future__ import annotations

from typing import Any, NamedTuple

from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions

SOURCE = "kafka-group"


class StreamSource(NamedTuple):
    """A source of a streaming query."""

    relation: Any
    """The leaf of Spark's analyzed plan, an object of the JVM."""
    options: SourceOptions


def leaves(plan: Any) -> list[Any]:
    """The leaves of a plan without duplicates, because Spark creates one source for all equal leaves."""
    return items(plan.collectLeaves().distinct())


def stream_sources(plan: Any) -> list[StreamSource]:
    """The sources of this package in the analyzed plan of a streaming query."""
    sources = []
    for leaf in leaves(plan):
        if _is_stream(leaf):
            sources.append(StreamSource(leaf, _options(leaf.extraOptions())))
    return sources


def batch_sources(plan: Any) -> list[SourceOptions]:
    """The options of the batch DataFrames of this package in a plan."""
    sources = []
    for leaf in leaves(plan):
        if _is_batch(leaf):
            sources.append(_options(leaf.options()))
    return sources


def _is_stream(leaf: Any) -> bool:
    if kind(leaf) != "StreamingRelationV2":
        return False
    name: str = leaf.sourceName()
    return name.lower() == SOURCE


def _is_batch(leaf: Any) -> bool:
    if kind(leaf) != "DataSourceV2Relation":
        return False
    name: str = leaf.table().name()
    return name.lower() == SOURCE


def _options(options: Any) -> SourceOptions:
    return parse_options(dict(options.asCaseSensitiveMap()))


def kind(node: Any) -> str:
    """The name of a node's class, such as ``Union``."""
    name: str = node.getClass().getSimpleName()
    return name


def items(sequence: Any) -> list[Any]:
    """The items of a Scala sequence."""
    return [sequence.apply(number) for number in range(sequence.size())]
