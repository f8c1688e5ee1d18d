"""Lag and counters of real queries: the listener, the progress bar, the report, and the code of docs/monitoring.md."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import REGISTRY
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQueryManager

from spark_group_source.group.settings import Counters
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import LagReport
from spark_group_source.lag.progress_bar import progress_bar
from spark_group_source.lag.prometheus import PrometheusFile
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process
from tests.integration.query_process import source_options
from tests.integration.standing import partitions_per_member

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener
    from pyspark.sql.streaming.query import StreamingQuery

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE = 120
eventually = partial(query_process.eventually, deadline=DEADLINE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with ten records each."""
    name = kafka.create_topic(unique("topic"), partitions=2)
    for number in range(2):
        kafka.produce(name, ["x"] * 10, partition=number)
    return name


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Callable[[LagListener], None]]:
    """Adds listeners that the end of the test removes."""
    added: list[LagListener] = []

    def add(listener: LagListener) -> None:
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for each in added:
        spark.streams.removeListener(each)


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("kafka-group").options(**options).load()


def test_kafkas_tool_shows_lag_and_owner_of_running_idle_and_stopped_queries(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    may_end, reading = threading.Event(), threading.Event()

    def hold(batch: DataFrame, number: int) -> None:
        reading.set()
        assert may_end.wait(DEADLINE)

    def lags() -> list[tuple[int, int, str]]:
        lines = kafka.consumer_groups("--describe", "--group", group).splitlines()
        cells = sorted(line.split() for line in lines if topic in line.split())
        return [(int(each[3]), int(each[5]), each[8]) for each in cells]

    options = source_options(kafka, topic, group, **{"kafka.client.id": "to-lake"})
    query = stream(spark, options).writeStream.foreachBatch(hold).option("checkpointLocation", str(tmp_path)).start()
    try:
        assert reading.wait(DEADLINE)
        assert lags() == [(0, 10, "to-lake"), (0, 10, "to-lake")]
        may_end.set()
        eventually(lambda: set(kafka.committed(group, topic).values()) == {10})
        assert lags() == [(10, 0, "to-lake"), (10, 0, "to-lake")]
    finally:
        may_end.set()
        query.stop()
    eventually(lambda: kafka.group_state(group) == "Empty")
    kafka.produce(topic, ["more"] * 3, partition=1)
    assert lags() == [(10, 0, "-"), (10, 3, "-")]
    with closing(GroupLagClient(options)) as probe:
        assert [(each.position, each.lag) for each in probe.sample().partitions()] == [(10, 0), (10, 3)]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_continues_at_the_groups_committed_offsets(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    writer = stream(spark, source_options(kafka, topic, group)).writeStream.format("noop").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(DEADLINE)
    kafka.produce(topic, ["unread"] * 3, partition=1)
    # Not -o stored with the group's id: that commits the printed records.
    for (_, partition), offset in kafka.committed(group, topic).items():
        command = ["kcat", "-C", "-b", kafka.bootstrap_servers, "-t", topic, "-p", str(partition), "-o", str(offset)]
        printed = subprocess.run([*command, "-e", "-q"], capture_output=True, text=True, timeout=DEADLINE, check=True)
        assert printed.stdout.split() == (["unread"] * 3 if partition else [])


@pytest.mark.core
def test_a_probe_and_a_progress_bar_follow_an_available_now_run_to_its_end(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: str,
    group: str,
    tmp_path: Path,
    listening: Callable[[LagListener], None],
) -> None:
    reports: list[LagReport] = []
    options = source_options(kafka, topic, group, maxOffsetsPerTrigger="6")
    listening(LagListener(reports.append, client=GroupLagClient(options), query_name=group))
    writer = stream(spark, options).writeStream.format("noop").queryName(group).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with progress_bar(query, file=io.StringIO()) as bar:
        assert query.awaitTermination(DEADLINE)
    assert bar.n == bar.total == sum(each.numInputRows for each in query.recentProgress) > 0
    committed = kafka.committed(group, topic)  # PySpark 4.1 leaves the last batch of a run to the next one

    def is_complete() -> bool:
        return {(*each.tp,): each.position for each in reports[-1].partitions} == committed if reports else False

    eventually(is_complete)
    assert reports[-1].total == 20 - sum(committed.values())
    assert {(each.query, each.group) for each in reports} == {(group, group)}


def test_progress_shows_the_lag_after_each_batch(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: str,
    group: str,
    tmp_path: Path,
    listening: Callable[[LagListener], None],
) -> None:
    reports: list[LagReport] = []
    listening(LagListener(reports.append, query_name=group))
    frame = stream(spark, source_options(kafka, topic, group, maxOffsetsPerTrigger="8"))
    rate = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    both = rate.union(frame.selectExpr("cast(value as string) as value"))
    writer = both.writeStream.format("noop").queryName(group).option("checkpointLocation", str(tmp_path))
    query = writer.start()
    try:
        eventually(lambda: reports and reports[-1].partitions and reports[-1].total == 0)
    finally:
        query.stop()
    first = [next(each for each in reports if each.partitions and each.total == total) for total in (12, 4, 0)]
    assert [{(*each.tp,): each.lag for each in report.partitions} for report in first] == [
        {(topic, 0): 6, (topic, 1): 6},
        {(topic, 0): 2, (topic, 1): 2},
        {(topic, 0): 0, (topic, 1): 0},
    ]
    assert {each.source for each in reports} == {1}


@pytest.mark.skipif(not hasattr(DataSourceStreamReader, "reportLatestOffset"), reason="PySpark 4.1 has no counters")
def test_a_second_member_moves_the_counters_of_the_first_in_its_report_and_in_prometheus(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: str,
    group: str,
    tmp_path: Path,
    listening: Callable[[LagListener], None],
) -> None:
    reports: list[LagReport] = []
    metrics = tmp_path / "query.prom"
    listening(LagListener(PrometheusFile(metrics), reports.append, query_name=group))

    def start(name: str) -> StreamingQuery:
        writer = stream(spark, source_options(kafka, topic, group)).writeStream.format("noop").queryName(name)
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    def counters() -> Counters:
        found = reports[-1].counters
        assert found is not None
        return found

    queries = [start(group)]
    try:
        eventually(lambda: reports and reports[-1].total == 0 and len(reports[-1].partitions) == 2)
        assert (counters().revoked, counters().lost, counters().rebalances > 0) == (0, 0, True)
        queries.append(start("second"))
        eventually(lambda: partitions_per_member(kafka, group) == [1, 1])
        for number in range(2):
            kafka.produce(topic, ["more"], partition=number)
        eventually(lambda: counters().revoked == 1)
        assert (counters().revocation_timed_out, counters().lost, counters().failed_commits) == (0, 0, 0)
        assert f'kafka_group_source_revoked_partitions_total{{group="",query="{group}",source="0"}} 1.0' in (
            metrics.read_text()
        )
    finally:
        for query in queries:
            query.stop()


def test_the_code_of_the_lag_page_runs(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: str,
    group: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[StreamingQueryListener] = []
    add = StreamingQueryManager.addListener

    def record(self: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add(self, listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", record)
    names: dict[str, Any] = {"spark": spark}
    blocks = code_of_the_page(
        {
            "broker1:9092,broker2:9092": kafka.bootstrap_servers,
            "/var/lib/node_exporter/textfile": str(tmp_path),
            "/data": str(tmp_path),
            '"orders"': f'"{topic}"',
            '"orders-to-lake"': f'"{group}"',
        }
    )
    try:
        for block in blocks:
            exec(block, names)
        metrics = tmp_path / "orders.prom"
        eventually(lambda: metrics.exists() and "position_offset{" in metrics.read_text())
        # Again, now that the group has commits.
        exec(next(each for each in blocks if "client.sample()" in each), names)
    finally:
        for each in added:
            spark.streams.removeListener(each)
        if "collector" in names:
            REGISTRY.unregister(names["collector"])
    assert len(added) == 5
    assert f"{topic}-0 10 10 0" in capsys.readouterr().out


def code_of_the_page(replacements: dict[str, str]) -> list[str]:
    """The Python blocks of docs/monitoring.md in order, with paths and names of this test."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "monitoring.md").read_text(), re.DOTALL)
    for original, replacement in replacements.items():
        blocks = [each.replace(original, replacement) for each in blocks]
    return blocks


def test_the_report_names_a_running_query_and_its_partitions(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    options = source_options(kafka, topic, group, **{"kafka.client.id": "to-lake"})
    query = stream(spark, options).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        eventually(lambda: kafka.group_state(group) == "Stable" and len(kafka.committed(group, topic)) == 2)
        command = [sys.executable, "-m", "spark_group_source", "report", "--seconds", "0.5"]
        where = ["--bootstrap-servers", kafka.bootstrap_servers, "--group", group, "--output", str(tmp_path / "r.html")]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run([*command, *where, "--interval", "0.2"], env=environment, timeout=DEADLINE, check=True)
    finally:
        query.stop()
    page = (tmp_path / "r.html").read_text()
    assert "Stable, protocol classic, assignor cooperative-sticky, 1 member(s)" in page
    assert page.count("<td>to-lake</td>") == 3
