"""Warnings about mistakes that are easy to miss, of real queries. ``conftest.py`` fails other tests that log them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from spark_group_source import register
from spark_group_source.spark import notifications, shared_sources
from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Stream
from tests.integration.query_process import PlainQuery, eventually
from tests.integration.standing import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[[str], "DataFrame"]
Shape = Callable[[Load, str], "DataFrame"]
Run = Callable[..., Any]


@pytest.fixture
def name(kafka: EmbeddedKafka, topic: Callable[..., str]) -> str:
    """A topic of four partitions, with five records each."""
    created = topic(partitions=4)
    fill(kafka, created, 5)
    return created


@pytest.fixture
def run(spark: SparkSession, stream: Stream, name: str, group: str) -> Iterator[Run]:
    """Starts a query of the topic, with the DataFrame that a function makes; stops it at the end."""
    running = []
    register(spark)  # not for the first time, as in a notebook whose cell runs again

    def start(shape: Shape, **trigger: Any) -> Any:
        frame = shape(lambda group: stream(name, **{"kafka.group.id": group}), group)
        writer = frame.writeStream.format("noop").queryName(group)
        running.append(writer.trigger(**trigger or {"processingTime": "0 seconds"}).start())
        return running[-1]

    yield start
    for query in running:
        query.stop()


def with_itself(load: Load, group: str) -> DataFrame:
    frame = load(group)
    return frame.alias("left").join(frame.alias("right"), ["partition", "offset"])


def derived(load: Load, group: str) -> DataFrame:
    frame = load(group)
    return frame.join(frame.filter("offset > 1").select("partition", "offset"), ["partition", "offset"])


def two_loads(load: Load, group: str) -> DataFrame:
    return load(group).union(load(group))


@pytest.mark.core
@pytest.mark.trap
@pytest.mark.parametrize(
    ("shape", "trigger"), [(with_itself, {}), (derived, {}), (two_loads, {}), (two_loads, {"availableNow": True})]
)
def test_sources_of_one_query_that_share_a_group_log_one_warning_at_its_start(
    run: Run, shape: Shape, trigger: dict[str, Any], group: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(shape, **trigger)
    warning = f"group {group}: 2 sources of the query {group} share this group: each reads only some"
    eventually(lambda: warning in caplog.text)
    assert f"of the partitions of {name}, and a join misses rows" in caplog.text
    assert caplog.text.count(warning) == 1


def twice_in_a_union(load: Load, group: str) -> DataFrame:
    frame = load(group)
    return frame.union(frame)


def two_groups(load: Load, group: str) -> DataFrame:
    return load(group).join(load(f"{group}-right"), ["partition", "offset"])


@pytest.mark.core
@pytest.mark.parametrize(("shape", "sources"), [(twice_in_a_union, 1), (two_groups, 2)])
def test_a_query_whose_sources_read_everything_logs_no_warning(
    run: Run, shape: Shape, sources: int, caplog: pytest.LogCaptureFixture
) -> None:
    query = run(shape)
    eventually(lambda: query.lastProgress is not None and query.lastProgress["sources"][0]["endOffset"])
    assert len(query.lastProgress["sources"]) == sources
    notifications._listeners[-1].drain()
    assert not [each for each in caplog.records if each.name == shared_sources.__name__]


@pytest.mark.core
@pytest.mark.trap
def test_a_batch_longer_than_a_revocation_waits_is_repeated_by_another_member_and_logs_a_warning(
    name: str, plain: Callable[..., PlainQuery]
) -> None:
    short = {"kafka.max.poll.interval.ms": "4000"}
    slow = plain(name, "slow", "read 0", **short).reaches("read 0")
    other = plain(name, "other", **short)
    eventually(lambda: len(other.places()) == 10, what="the repetition of two partitions")
    assert set(other.places()) < set(slow.places())
    slow.go_on("read 0")
    slow.until(lambda: "the next owner repeat the batch" in slow.log(), what="the warning")
    (line,) = [line for line in slow.log().splitlines() if ": a batch took " in line]
    assert " WARNING " in line
    assert "but a revocation waits for at most 2 s" in line
    assert "kafka.max.poll.interval.ms (now 4000) above " in line
