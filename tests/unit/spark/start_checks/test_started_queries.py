"""Queries of one application that share a group, without Spark: which are rejected, and which are warned of.

``tests/integration/test_traps.py`` has real plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.options.parsing import parse_options
from spark_group_source.spark.notifications.messages import source_key
from spark_group_source.spark.start_checks import started_queries
from spark_group_source.spark.start_checks.started_queries import StartedQueries

ORDERS = {"kafka.bootstrap.servers": "one:9092,two:9092", "kafka.group.id": "g", "subscribe": "orders"}
KEY = source_key(parse_options(ORDERS))


def without(name: str, **more: str) -> dict[str, str]:
    return {key: value for key, value in ORDERS.items() if key != name} | more


def sequence(items: list[Any]) -> Any:
    different = [item for number, item in enumerate(items) if item not in items[:number]]
    return SimpleNamespace(
        size=lambda: len(items), apply=items.__getitem__, distinct=lambda: sequence(different) if items else None
    )


@dataclass
class Node:
    """A node of Spark's plan, in its canonical form."""

    kind: str
    below: list[Node] = field(default_factory=list)
    own: tuple[object, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    source: str = ""

    def getClass(self) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(getSimpleName=lambda: self.kind)

    def children(self) -> Any:
        return sequence(self.below)

    def collectLeaves(self) -> Any:  # noqa: N802 - Spark's name
        return sequence(self.leaves())

    def leaves(self) -> list[Node]:
        return [leaf for child in self.below for leaf in child.leaves()] if self.below else [self]

    def canonicalized(self) -> Node:
        return self

    def productArity(self) -> int:  # noqa: N802 - Spark's name
        return len(self.own) + len(self.below)

    def productElement(self, number: int) -> object:  # noqa: N802 - Spark's name
        return [*self.own, *self.below][number]

    def sourceName(self) -> str:  # noqa: N802 - Spark's name
        return self.source

    def extraOptions(self) -> Any:  # noqa: N802 - Spark's name
        return SimpleNamespace(asCaseSensitiveMap=lambda: self.options)


def leaf(
    options: dict[str, str], number: int = 0, kind: str = "StreamingRelationV2", source: str = "kafka-group"
) -> Node:
    return Node(kind, own=(number,), options=options, source=source)


def join(*below: Node) -> Node:
    return Node("Join", list(below), ("Inner",))


def union(*below: Node) -> Node:
    return Node("Union", list(below), (False, False))


def query(plan: Node, name: str | None = "q", run: str = "run") -> Any:
    def text(value: str) -> Any:
        return SimpleNamespace(toString=lambda: value)

    execution = SimpleNamespace(analyzedPlan=lambda: plan)
    return SimpleNamespace(
        name=lambda: name, id=lambda: text("0b0a"), runId=lambda: text(run), streamingQuery=lambda: execution
    )


class Running(set[str]):
    """The runs that Spark has not ended, and what is known of them."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = StartedQueries(lambda: self, jvm=None)

    def start(self, plan: Node, name: str | None = "q", run: str = "run") -> None:
        self.add(run)
        self.queries.started(query(plan, name, run))

    def rejected(self, key: str = KEY) -> str:
        """What the next reader of this source hears."""
        rejection = self.queries.rejection(key)
        return rejection.happened if rejection else ""


@pytest.fixture
def running() -> Running:
    return Running()


PATTERN = without("subscribe", subscribePattern="ord.*")


@pytest.mark.parametrize(
    ("one", "other", "name", "says"),
    [
        (ORDERS, ORDERS, None, "2 sources of the query 0b0a share the group g: each would read only some of the"),
        (ORDERS, without("subscribe", subscribe="customers, orders"), "join", ""),
        (ORDERS, PATTERN, "join", ""),
        (PATTERN, PATTERN, "join", "only some of the partitions of pattern ord.*, and rows would be missing."),
        (ORDERS, ORDERS | {"kafka.bootstrap.servers": "two:9092"}, "join", ""),
        (ORDERS, ORDERS | {"KAFKA.GROUP.ID": "g", "kafka.client.id": "mine"}, "join", ""),
    ],
    ids=["no name", "a topic", "a pattern", "one pattern", "a server", "upper case"],
)
def test_a_join_of_sources_that_have_a_topic_of_a_group_in_common_is_rejected(
    running: Running, one: dict[str, str], other: dict[str, str], name: str | None, says: str
) -> None:
    running.start(join(leaf(one), leaf(other, 1)), name)
    says = says or "2 sources of the query join share the group g"
    assert says in running.rejected(source_key(parse_options(one)))
    assert says in running.rejected(source_key(parse_options(other)))


FIRST, ASSIGNED = leaf(ORDERS), without("subscribe", assign='{"orders": [0]}')
CUSTOMERS = without("subscribe", subscribe="customers")


@pytest.mark.parametrize(
    "plan",
    [
        FIRST,
        union(FIRST, FIRST),  # a DataFrame that occurs twice in a union is one source
        union(FIRST, leaf(ORDERS, 1)),
        union(Node("Filter", [FIRST], ("offset > 1",)), Node("Filter", [leaf(ORDERS, 1)], ("offset > 1",))),
        join(FIRST, leaf(ORDERS | {"kafka.group.id": "other"})),
        join(FIRST, leaf(CUSTOMERS)),
        join(leaf(without("subscribe", subscribePattern="a.*")), leaf(without("subscribe", subscribePattern="b.*"), 1)),
        join(FIRST, leaf(ORDERS | {"kafka.bootstrap.servers": "another-cluster:9092"})),
        join(leaf(ASSIGNED), leaf(ASSIGNED, 1)),
        join(FIRST, leaf(ORDERS, source="kafka")),
        join(FIRST, leaf(ORDERS, kind="LogicalRDD")),
        join(
            union(FIRST, leaf(ORDERS, 1)), union(*(leaf(without("subscribe", subscribe="u"), each) for each in (2, 3)))
        ),
    ],
)
def test_other_plans_are_not_rejected(running: Running, plan: Node, caplog: pytest.LogCaptureFixture) -> None:
    running.start(plan)
    for source in plan.leaves():
        if "assign" not in source.options:
            assert running.rejected(source_key(parse_options(source.options))) == ""
    assert caplog.messages == []


@pytest.mark.parametrize(
    "plan",
    [
        join(FIRST, leaf(ORDERS, 1)),
        union(Node("Filter", [FIRST], ("offset > 1",)), leaf(ORDERS, 1)),
        union(Node("Filter", [FIRST], ("offset > 1",)), Node("Filter", [leaf(ORDERS, 1)], ("offset > 2",))),
        union(FIRST, FIRST, leaf(ORDERS, 1)),
        union(*(Node("Aggregate", [leaf(ORDERS, each)], ("count",)) for each in (0, 1))),
        union(*(Node("Filter", [Node("Deduplicate", [leaf(ORDERS, each)])], ("offset > 1",)) for each in (0, 1))),
        join(union(FIRST, leaf(ORDERS, 1)), union(leaf(ORDERS, 2), leaf(ORDERS, 3))),
    ],
)
def test_a_plan_that_may_read_some_records_in_one_place_only_is_rejected(running: Running, plan: Node) -> None:
    running.start(plan)
    assert "sources of the query q share the group g" in running.rejected()


SELF_JOIN = join(FIRST, leaf(ORDERS, 1))


def test_only_readers_of_the_rejected_run_are_rejected(running: Running) -> None:
    assert running.rejected() == "", "a query in another session"
    running.start(SELF_JOIN, run="wrong")
    assert running.rejected()
    assert running.rejected()
    assert running.rejected() == "", "both of its readers have asked"
    running.start(SELF_JOIN, run="wrong again")
    running.clear()
    running.start(FIRST, run="right")
    assert running.rejected() == "", "the wrong query has ended"


def test_no_reader_is_rejected_while_it_may_be_that_of_another_query_and_the_wrong_query_is_warned_of(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.start(SELF_JOIN, run="wrong")
    running.start(FIRST, run="right")
    assert [running.rejected() for _ in range(3)] == ["", "", ""]
    assert caplog.messages == []
    for run in ("right", "wrong", "wrong"):
        running.queries.has_progress(run)
    (warning,) = caplog.messages
    assert warning.startswith("2 sources of the query q share the group g: each would read only some")


def test_queries_that_share_a_group_log_one_warning_for_each_later_one(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    running.start(FIRST, "a", "run a")
    running.start(leaf(ORDERS | {"kafka.group.id": "other"}), "other", "run other")
    running.start(SELF_JOIN, "wrong", "wrong run")
    assert caplog.messages == []
    running.start(leaf(PATTERN), "b", "run b")
    running.remove("run a")
    running.start(union(leaf(PATTERN), leaf(PATTERN, 1), leaf(CUSTOMERS)), None, "run c")
    assert [each.partition("), so each query reads")[0] for each in caplog.messages] == [
        "group g: the query b shares the partitions of pattern ord.* with other queries of this application (a",
        "group g: the query 0b0a shares the partitions of pattern ord.* with other queries of this application (b",
    ]
    assert "stop the query that its last run started: spark.streams.get('0b0a').stop(). If each" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({}, 1),
        ({"endingOffsets": "latest"}, 1),
        ({"endingOffsets": '{"orders": {"0": 5}}'}, 0),
        ({"endingTimestamp": "5"}, 0),
    ],
)
def test_a_stream_that_reads_a_batch_dataframe_without_a_fixed_end_is_warned_of(
    running: Running,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    warnings: int,
) -> None:
    batch: Any = leaf(without("kafka.group.id"), 1, "DataSourceV2Relation")
    batch.options = lambda: SimpleNamespace(asCaseSensitiveMap=lambda: without("kafka.group.id", **options))
    batch.table = lambda: SimpleNamespace(name=lambda: "Kafka-Group")
    monkeypatch.setattr(started_queries, "PLANS_EACH_ACTION", False)
    running.start(join(FIRST, batch))
    assert len([each for each in caplog.messages if "the query q reads orders with spark.read" in each]) == warnings
    assert len(caplog.messages) == warnings
