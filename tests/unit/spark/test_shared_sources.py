"""Sources of one query that share a group: Spark's plans as py4j shows them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.spark.notifications import warn_of_shared_sources
from spark_group_source.spark.source import GroupSource

ORDERS = {"kafka.bootstrap.servers": "one:9092,two:9092", "kafka.group.id": "g", "subscribe": "orders"}


class Leaves:
    """A Scala ``Seq``."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._leaves = leaves

    def distinct(self) -> Leaves:
        return Leaves([leaf for number, leaf in enumerate(self._leaves) if leaf not in self._leaves[:number]])

    def size(self) -> int:
        return len(self._leaves)

    def apply(self, number: int) -> Any:
        return self._leaves[number]


def leaf(options: dict[str, str], kind: str = "StreamingRelationV2", source: str = GroupSource.name()) -> Any:
    return SimpleNamespace(
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: kind),
        sourceName=lambda: source,
        extraOptions=lambda: SimpleNamespace(asCaseSensitiveMap=lambda: options),
    )


def query(*leaves: Any, name: str | None = "join") -> Any:
    plan = SimpleNamespace(collectLeaves=lambda: Leaves(leaves))
    execution = SimpleNamespace(analyzedPlan=lambda: plan)
    identity = SimpleNamespace(toString=lambda: "0b0a")
    return SimpleNamespace(name=lambda: name, id=lambda: identity, streamingQuery=lambda: execution)


def without(name: str, **more: str) -> dict[str, str]:
    return {key: value for key, value in ORDERS.items() if key != name} | more


def test_sources_of_one_query_in_one_group_log_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_shared_sources(query(leaf(ORDERS), leaf(ORDERS), leaf(ORDERS)))
    (line,) = caplog.messages
    assert line.startswith("group g: 3 sources of the query join share this group: each reads only some of the")
    assert "partitions of orders, and a join misses rows" in line


def test_a_query_without_a_name_is_named_by_its_id(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_shared_sources(query(leaf(ORDERS), leaf(ORDERS), name=None))
    assert "2 sources of the query 0b0a share" in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        without("subscribe", subscribe="customers, orders"),
        without("subscribe", subscribePattern="ord.*"),
        ORDERS | {"kafka.bootstrap.servers": "two:9092"},
        ORDERS | {"KAFKA.GROUP.ID": "g", "kafka.client.id": "mine"},
    ],
)
def test_sources_that_have_a_topic_of_a_group_in_common_log_a_warning(
    caplog: pytest.LogCaptureFixture, other: dict[str, str]
) -> None:
    warn_of_shared_sources(query(leaf(ORDERS), leaf(other)))
    warn_of_shared_sources(query(leaf(other), leaf(ORDERS)))
    assert caplog.text.count("2 sources of the query join share") == 2


def test_sources_are_found_however_the_format_is_spelled(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_shared_sources(query(leaf(ORDERS, source="Kafka-Group"), leaf(ORDERS)))
    assert "2 sources of the query join share" in caplog.text


def test_sources_of_one_pattern_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    pattern = without("subscribe", subscribePattern="ord.*")
    warn_of_shared_sources(query(leaf(pattern), leaf(pattern)))
    assert "some of the partitions of pattern ord.*, and" in caplog.text


ASSIGNED = without("subscribe", assign='{"orders": [0]}')
FIRST = leaf(ORDERS)


@pytest.mark.parametrize(
    "leaves",
    [
        [FIRST],
        [FIRST, FIRST],  # a DataFrame that occurs twice in a union is one source
        [FIRST, leaf(ORDERS | {"kafka.group.id": "other"})],
        [FIRST, leaf(without("subscribe", subscribe="customers"))],
        [FIRST, leaf(without("subscribe", subscribePattern="cust.*"))],
        [leaf(without("subscribe", subscribePattern="a.*")), leaf(without("subscribe", subscribePattern="b.*"))],
        [FIRST, leaf(ORDERS | {"kafka.bootstrap.servers": "another-cluster:9092"})],
        [leaf(ASSIGNED), leaf(ASSIGNED)],
        [FIRST, leaf(ORDERS, source="kafka")],
        [FIRST, leaf(ORDERS, kind="LogicalRDD")],
    ],
)
def test_other_sources_log_nothing(caplog: pytest.LogCaptureFixture, leaves: list[Any]) -> None:
    warn_of_shared_sources(query(*leaves))
    assert caplog.messages == []
