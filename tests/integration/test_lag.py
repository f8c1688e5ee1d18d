"""Lag in sight: the listener, the progress bar and the report over real queries, and the how-to's own code."""

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
from pyspark.sql.streaming.query import StreamingQueryManager

from spark_group_source.lag.group_offsets_probe import GroupOffsetsProbe
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.progress_bar import progress_bar
from spark_group_source.lag.report import LagReport
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process
from tests.integration.query_process import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

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
    """Adds listeners for as long as the test lasts."""
    added: list[LagListener] = []

    def add(listener: LagListener) -> None:
        spark.streams.addListener(listener)
        added.append(listener)

    yield add
    for each in added:
        spark.streams.removeListener(each)


def stream(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("kafka-group").options(**options).load()


def test_kafkas_own_tool_shows_lag_and_owner_while_a_query_runs_idles_and_after_it_stopped(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    go_on, reading = threading.Event(), threading.Event()

    def hold(batch: DataFrame, number: int) -> None:
        reading.set()
        assert go_on.wait(DEADLINE)

    def lags() -> list[tuple[int | None, int | None, str | None]]:
        return [(each.current_offset, each.lag, each.client_id) for each in kafka.describe_group(group)]

    options = source_options(kafka, topic, group, **{"kafka.client.id": "to-lake"})
    query = stream(spark, options).writeStream.foreachBatch(hold).option("checkpointLocation", str(tmp_path)).start()
    try:
        assert reading.wait(DEADLINE)
        assert lags() == [(0, 10, "to-lake"), (0, 10, "to-lake")]
        go_on.set()
        eventually(lambda: set(kafka.committed(group, topic).values()) == {10})
        assert lags() == [(10, 0, "to-lake"), (10, 0, "to-lake")]
    finally:
        go_on.set()
        query.stop()
    eventually(lambda: kafka.group_state(group) == "Empty")
    kafka.produce(topic, ["more"] * 3, partition=1)
    assert lags() == [(10, 0, None), (10, 3, None)]
    with closing(GroupOffsetsProbe(options)) as look:
        assert [(each.position, each.lag) for each in look.sample().partitions()] == [(10, 0), (10, 3)]


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_prints_what_is_left_from_the_groups_offsets_on(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    writer = stream(spark, source_options(kafka, topic, group)).writeStream.format("noop").trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(tmp_path)).start().awaitTermination(DEADLINE)
    kafka.produce(topic, ["left"] * 3, partition=1)
    # Not -o stored with the group's id: that commits what was printed.
    for (_, partition), offset in kafka.committed(group, topic).items():
        where = ["kcat", "-C", "-b", kafka.bootstrap_servers, "-t", topic, "-p", str(partition), "-o", str(offset)]
        told = subprocess.run([*where, "-e", "-q"], capture_output=True, text=True, timeout=DEADLINE, check=True)
        assert told.stdout.split() == (["left"] * 3 if partition else [])


@pytest.mark.core
def test_a_look_tells_the_lag_of_an_available_now_run_to_its_end_and_a_bar_follows_it(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    topic: str,
    group: str,
    tmp_path: Path,
    listening: Callable[[LagListener], None],
) -> None:
    by_look: list[LagReport] = []
    options = source_options(kafka, topic, group, maxOffsetsPerTrigger="6")
    listening(LagListener(by_look.append, look=GroupOffsetsProbe(options), query_name=group))
    writer = stream(spark, options).writeStream.format("noop").queryName(group).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    with progress_bar(query, file=io.StringIO()) as bar:
        assert query.awaitTermination(DEADLINE)
    assert bar.n == bar.total == sum(each.numInputRows for each in query.recentProgress) > 0
    committed = kafka.committed(group, topic)  # PySpark 4.1 leaves the last batch of a run to the next one

    def told() -> bool:
        return {(*each.tp,): each.position for each in by_look[-1].partitions} == committed if by_look else False

    eventually(told)
    assert by_look[-1].total == 20 - sum(committed.values())
    assert {(each.query, each.group) for each in by_look} == {(group, group)}


def test_progress_tells_what_each_batch_left(
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
    foreign = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    both = foreign.union(frame.selectExpr("cast(value as string) as value"))
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


def test_the_how_tos_code_runs_as_it_stands(
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

    def noted(self: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add(self, listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", noted)
    names: dict[str, Any] = {"spark": spark}
    blocks = how_to(
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
        told = tmp_path / "orders.prom"
        eventually(lambda: told.exists() and "position_offset{" in told.read_text())
        # Again, now that the group has commits.
        exec(next(each for each in blocks if "look.sample()" in each), names)
    finally:
        for each in added:
            spark.streams.removeListener(each)
        if "collector" in names:
            REGISTRY.unregister(names["collector"])
    assert len(added) == 4
    assert f"{topic}-0 10 10 0" in capsys.readouterr().out


def how_to(places: dict[str, str]) -> list[str]:
    """The Python of docs/lag.md in order, with places of this test's own."""
    blocks = re.findall(r"```python\n(.*?)```", (REPOSITORY / "docs" / "lag.md").read_text(), re.DOTALL)
    for there, here in places.items():
        blocks = [each.replace(there, here) for each in blocks]
    return blocks


def test_the_report_names_a_running_query_and_its_partitions(
    spark: SparkSession, kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path
) -> None:
    options = source_options(kafka, topic, group, **{"kafka.client.id": "to-lake"})
    query = stream(spark, options).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        eventually(lambda: kafka.group_state(group) == "Stable" and len(kafka.committed(group, topic)) == 2)
        command = [sys.executable, str(REPOSITORY / "jobs" / "group_report.py"), "--seconds", "0.5"]
        where = ["--bootstrap-servers", kafka.bootstrap_servers, "--group", group, "--output", str(tmp_path / "r.html")]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        subprocess.run([*command, *where, "--interval", "0.2"], env=environment, timeout=DEADLINE, check=True)
    finally:
        query.stop()
    page = (tmp_path / "r.html").read_text()
    assert "Stable, 1 member(s) by cooperative-sticky" in page
    assert page.count("to-lake at 127.0.0.1") == 2
