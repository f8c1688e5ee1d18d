"""Mistakes that are easy to miss, in real queries: errors and warnings. ``conftest.py`` fails other tests that log
some of these warnings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_group_source import register
from spark_group_source.spark.notifications import set_up
from spark_group_source.spark.start_checks import started_queries
from spark_group_source.spark.start_checks.logical_plan import stream_sources
from spark_group_source.spark.start_checks.shared_sources import sharing
from spark_group_source.spark.start_checks.unions import reads_each_record_once
from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Read, Stream
from tests.integration.query_process import PlainQuery, eventually, source_options
from tests.integration.standing import fill

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]
Warned = Callable[[], list[str]]
Run = Callable[..., Any]


@pytest.fixture
def name(kafka: EmbeddedKafka, topic: Callable[..., str]) -> str:
    """A topic of four partitions, with five records each."""
    created = topic(partitions=4)
    fill(kafka, created, 5)
    return created


@pytest.fixture
def load(spark: SparkSession, stream: Stream, name: str, group: str) -> Load:
    """Loads a stream of the topic: ``load()`` in the test's group, ``load(group)`` in another."""
    register(spark)  # not for the first time, as in a notebook whose cell runs again
    return lambda other=group: stream(name, **{"kafka.group.id": other})


@pytest.fixture
def run(group: str) -> Iterator[Run]:
    """Starts a query of a DataFrame, named as the test's group or otherwise; stops it at the end."""
    running = []

    def start(frame: DataFrame, name: str = group, **trigger: Any) -> Any:
        writer = frame.writeStream.format("noop").queryName(name)
        running.append(writer.trigger(**trigger or {"processingTime": "0 seconds"}).start())
        return running[-1]

    yield start
    for query in running:
        query.stop()


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Warned:
    """The warnings of this process, after the check of all queries that have started."""

    def drained() -> list[str]:
        set_up._listeners[-1].drain()
        return [each.getMessage() for each in caplog.records if each.name == started_queries.__name__]

    return drained


@pytest.mark.core
@pytest.mark.parametrize("trigger", [{}, {"availableNow": True}])
def test_a_stream_that_is_joined_with_itself_ends_before_it_joins_the_group_and_no_other_query_does(
    kafka: EmbeddedKafka, load: Load, run: Run, trigger: dict[str, Any], group: str, name: str, warned: Warned
) -> None:
    frame = load()
    query = run(frame.alias("left").join(frame.alias("right"), ["partition", "offset"]), **trigger)
    eventually(lambda: not query.isActive)
    error = str(query.exception())
    assert f"[INVALID_OPTION] 2 sources of the query {group} share the group {group}: each would read only" in error
    assert f"some of the partitions of {name}, and rows would be missing. Give each source its own group:" in error
    assert kafka.group_state(group) == "Dead"
    again = run(frame, **trigger)
    eventually(lambda: sum(each.numInputRows for each in again.recentProgress) == 20)
    assert warned() == []


@pytest.mark.core
def test_a_checkpoint_behind_the_output_directory_ends_the_query_before_rows_are_dropped(
    spark: SparkSession, kafka: EmbeddedKafka, load: Load, group: str, name: str, tmp_path: Path
) -> None:
    rows, begun = tmp_path / "rows", []

    def start(checkpoint: str, other: str = group, directory: Path = rows) -> Any:
        writer = load(other).writeStream.trigger(availableNow=True)
        begun.append(writer.option("checkpointLocation", str(tmp_path / checkpoint)).start(str(directory)))
        eventually(lambda: not begun[-1].isActive)
        return begun[-1].exception()

    assert start("first") is None
    assert spark.read.parquet(str(rows)).count() == 20
    error = str(start("second", "other"))
    assert f"[INVALID_OPTION] The checkpoint of the query {begun[-1].id} is new, but its output directory" in error
    assert f"{rows} has batches up to number 0. Spark's file sink would drop" in error
    assert kafka.group_state("other") == "Dead"
    assert start("third", "other", tmp_path / "new rows") is None
    assert spark.read.parquet(str(tmp_path / "new rows")).count() == 20

    shutil.copytree(tmp_path / "first", tmp_path / "backup")
    fill(kafka, name, 5)
    assert start("first") is None, "a restart"
    assert spark.read.parquet(str(rows)).count() == 40
    assert f"ends with batch 0, but its output directory file:{rows} has batches up to number 1." in str(
        start("backup")
    )


ALL = "SELECT * FROM"
EACH_RECORD_ONCE = [
    f"{ALL} a UNION ALL {ALL} b",
    f"{ALL} a UNION ALL ({ALL} b UNION ALL {ALL} c)",
    "SELECT offset + 1 AS o FROM a WHERE offset > 1 UNION ALL SELECT offset + 1 AS o FROM b WHERE offset > 1",
    f"{ALL} ({ALL} a UNION ALL {ALL} b) JOIN other USING (offset)",
    f"{ALL} a UNION {ALL} b",
    f"{ALL} a LEFT JOIN batch USING (offset) UNION ALL {ALL} b LEFT JOIN batch USING (offset)",
    "SELECT explode(sequence(0, offset)) FROM a UNION ALL SELECT explode(sequence(0, offset)) FROM b",
    "SELECT o, count(*) FROM (SELECT offset AS o FROM a UNION ALL SELECT offset AS o FROM b) GROUP BY o",
]
NOT_PROVEN = [
    f"{ALL} a JOIN a AS again USING (offset)",
    f"{ALL} a JOIN b USING (offset)",
    f"{ALL} a WHERE offset > 1 UNION ALL {ALL} b WHERE offset > 2",
    f"{ALL} a UNION ALL {ALL} b WHERE offset > 1",
    "SELECT key AS k FROM a UNION ALL SELECT value AS k FROM b",
    f"{ALL} a UNION ALL {ALL} a UNION ALL {ALL} b",
    f"{ALL} ({ALL} a UNION ALL {ALL} b) AS one JOIN ({ALL} a UNION ALL {ALL} b) AS two USING (offset)",
    f"{ALL} a JOIN other USING (offset) UNION ALL {ALL} b JOIN another USING (offset)",
    "SELECT key, count(*) FROM a GROUP BY key UNION ALL SELECT key, count(*) FROM b GROUP BY key",
    "SELECT DISTINCT key FROM a UNION ALL SELECT DISTINCT key FROM b",
    f"({ALL} a LIMIT 5) UNION ALL ({ALL} b LIMIT 5)",
]
ONE_EACH = [f"{ALL} a", f"{ALL} a UNION ALL {ALL} a WHERE offset > 1", f"{ALL} a JOIN other USING (offset)"]


def test_which_plans_read_each_record_once(spark: SparkSession, load: Load) -> None:
    for view in ("a", "b", "c"):
        load().createOrReplaceTempView(view)
    for view in ("other", "another"):
        load("right").createOrReplaceTempView(view)
    spark.range(5).toDF("offset").createOrReplaceTempView("batch")

    def shared(query: str) -> list[bool]:
        """Whether each set of sources that share a group is proven to read each record once."""
        plan = spark.sql(query)._jdf.queryExecution().analyzed()
        return [reads_each_record_once(plan, each) for each in sharing(stream_sources(plan))]

    assert {query: shared(query) for query in ONE_EACH} == {query: [] for query in ONE_EACH}
    assert {query: shared(query) for query in EACH_RECORD_ONCE} == {query: [True] for query in EACH_RECORD_ONCE}
    assert [query for query in NOT_PROVEN if all(shared(query))] == []
    two = [load().unionByName(load()) for _ in range(2)]
    for union in (two[0], two[0].unionByName(two[1])):
        plan = union._jdf.queryExecution().analyzed()
        assert reads_each_record_once(plan, stream_sources(plan))


@pytest.mark.core
def test_a_union_of_sources_that_share_a_group_reads_each_record_once(load: Load, read: Read, warned: Warned) -> None:
    reader = read(load().union(load()))
    eventually(lambda: len(reader.places) >= 20)
    assert sorted(reader.places) == [(partition, offset) for partition in range(4) for offset in range(5)]
    assert warned() == []


@pytest.mark.core
def test_sources_of_different_topics_may_share_a_group(
    kafka: EmbeddedKafka, load: Load, stream: Stream, topic: Callable[..., str], read: Read, warned: Warned
) -> None:
    other = topic(partitions=4)
    fill(kafka, other, 5)
    joined = load().join(stream(other).select("partition", "offset"), ["partition", "offset"])
    reader = read(joined)
    eventually(lambda: len(reader.places) == 20)
    assert warned() == []


@pytest.mark.core
def test_two_queries_of_one_load_log_one_warning_that_names_both(
    load: Load, run: Run, group: str, name: str, warned: Warned
) -> None:
    frame = load()
    run(frame, "first")
    run(load(f"{group}-other"), "other")
    assert warned() == []
    run(frame, "second")
    (warning,) = warned()
    others = "other queries of this application (first)"
    assert warning.startswith(f"group {group}: the query second shares the partitions of {name} with {others}")


@pytest.mark.core
def test_a_stream_that_reads_a_batch_dataframe_logs_a_warning_unless_that_has_an_end(
    spark: SparkSession, kafka: EmbeddedKafka, load: Load, run: Run, group: str, name: str, warned: Warned
) -> None:
    def joined_with_batch(**options: str) -> DataFrame:
        batch = spark.read.format("kafka-group").options(**source_options(kafka, name, group, **options)).load()
        return load().join(batch.select("offset"), "offset")

    run(joined_with_batch(endingOffsets=f'{{"{name}":{{"0":1,"1":1,"2":1,"3":1}}}}'), "with an end")
    assert warned() == []
    run(joined_with_batch(**{"kafka.group.id": f"{group}-other"}), group).stop()
    if not started_queries.PLANS_EACH_ACTION:
        assert [each for each in warned() if f"the query {group} reads {name} with spark.read: Spark looks up" in each]


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
