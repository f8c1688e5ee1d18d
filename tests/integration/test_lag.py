"""Lag and counters of real queries: the listener, the progress bar, the report, and the code of docs/monitoring.md."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from prometheus_client import REGISTRY
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQueryManager

from spark_group_source.group.counters import Counters
from spark_group_source.lag.client import GroupLagClient
from spark_group_source.lag.group_report import snapshot, text
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import LagReport
from spark_group_source.lag.progress_bar import progress_bar
from spark_group_source.lag.prometheus import PrometheusFile
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration import query_process
from tests.integration.conftest import Read, Stream
from tests.integration.job_process import JOBS
from tests.integration.query_process import source_options
from tests.integration.standing import fill, partitions_per_member

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE = 120
Start = Callable[..., "StreamingQuery"]
eventually = partial(query_process.eventually, deadline=DEADLINE)


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with ten records each."""
    name = kafka.create_topic(unique("topic"), partitions=2)
    fill(kafka, name, 10)
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


def table(printed: str) -> list[list[str]]:
    """The cells of a table: its titles, then the rows, sorted."""
    titles, *rows = [line.split() for line in printed[printed.index("GROUP") :].splitlines()]
    return [titles, *sorted(rows)]


@pytest.fixture
def start(topic: str, group: str, stream: Stream, tmp_path: Path) -> Start:
    """Starts a query of the test's topic and group into nothing: ``start(available_now, **options)``."""

    def begin(name: str = group, available_now: bool = False, **options: str) -> StreamingQuery:
        writer = stream(topic, **options).writeStream.format("noop").queryName(name)
        writer = writer.option("checkpointLocation", str(tmp_path / name))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    return begin


def test_kafkas_tool_shows_lag_and_owner_of_running_idle_and_stopped_queries(
    kafka: EmbeddedKafka, topic: str, group: str, stream: Stream, read: Read
) -> None:
    def lags() -> list[tuple[int, int, str]]:
        """What Kafka's tool prints, which is what ``lag`` prints before its last column."""
        titles, *cells = table(kafka.consumer_groups("--describe", "--group", group))
        with closing(GroupLagClient(source_options(kafka, topic, group))) as client:
            printed = table(text(snapshot(client).partitions(group)))
        assert [row[:-1] for row in printed] == [titles, *cells]
        assert printed[0][-1] == "AGE-SECONDS"
        return [(int(each[3]), int(each[5]), each[8]) for each in cells]

    reader = read(stream(topic, **{"kafka.client.id": "to-lake"}), held=True)
    eventually(lambda: reader.read_by_held)
    assert lags() == [(0, 10, "to-lake"), (0, 10, "to-lake")]
    reader.may_end.set()
    eventually(lambda: set(kafka.committed(group, topic).values()) == {10})
    reader.stop()
    eventually(lambda: kafka.group_state(group) == "Empty")
    kafka.produce(topic, ["more"] * 3, partition=1)
    assert lags() == [(10, 0, "-"), (10, 3, "-")]
    with closing(GroupLagClient(source_options(kafka, topic, group))) as probe:
        assert [(each.position, each.lag) for each in probe.sample().partitions()] == [(10, 0), (10, 3)]


@pytest.mark.core
def test_a_probe_and_a_progress_bar_follow_an_available_now_run_to_its_end(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start, listening: Callable[[LagListener], None]
) -> None:
    reports: list[LagReport] = []
    client = GroupLagClient(source_options(kafka, topic, group))
    listening(LagListener(reports.append, client=client, query_name=group))
    query = start(available_now=True, maxOffsetsPerTrigger="6")
    with progress_bar(query, file=io.StringIO()) as bar:
        assert query.awaitTermination(DEADLINE)
    assert bar.n == bar.total == sum(each.numInputRows for each in query.recentProgress) > 0
    committed = kafka.committed(group, topic)  # PySpark 4.1 leaves the last batch of a run to the next one

    def is_complete() -> bool:
        return {(*each.tp,): each.position for each in reports[-1].partitions} == committed if reports else False

    eventually(is_complete)
    assert reports[-1].total == 20 - sum(committed.values())
    assert {(each.query, each.group) for each in reports} == {(group, group)}


@pytest.mark.skipif(not hasattr(DataSourceStreamReader, "reportLatestOffset"), reason="PySpark 4.1 has no counters")
def test_a_second_member_moves_the_counters_of_the_first_in_its_report_and_in_prometheus(
    kafka: EmbeddedKafka, topic: str, group: str, tmp_path: Path, start: Start, listening: Callable[[LagListener], None]
) -> None:
    reports: list[LagReport] = []
    metrics = tmp_path / "query.prom"
    listening(LagListener(PrometheusFile(metrics), reports.append, query_name=group))

    def counters() -> Counters:
        found = reports[-1].counters
        assert found is not None
        return found

    queries = [start()]
    try:
        eventually(lambda: reports and reports[-1].total == 0 and len(reports[-1].partitions) == 2)
        assert (counters().revoked, counters().lost, counters().rebalances > 0) == (0, 0, True)
        queries.append(start("second"))
        eventually(lambda: partitions_per_member(kafka, group) == [1, 1])
        fill(kafka, topic, 1)
        eventually(lambda: counters().revoked == 1)
        assert (counters().revocation_timed_out, counters().lost, counters().failed_commits) == (0, 0, 0)
        revoked = f'kafka_group_source_revoked_partitions_total{{group="{group}",query="{group}",source="0"}} 1.0'
        assert revoked in metrics.read_text()
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
) -> None:
    names: dict[str, Any] = {"spark": spark}
    page = (JOBS.parent / "docs" / "monitoring.md").read_text()
    for original, replacement in (
        ("broker1:9092,broker2:9092", kafka.bootstrap_servers),
        ("/var/lib/node_exporter/textfile", str(tmp_path)),
        ("/data", str(tmp_path)),
        ('"orders"', f'"{topic}"'),
        ('"orders-to-lake"', f'"{group}"'),
    ):
        page = page.replace(original, replacement)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    add = StreamingQueryManager.addListener
    with mock.patch.object(StreamingQueryManager, "addListener", autospec=True, side_effect=add) as added:
        try:
            for block in blocks:
                exec(block, names)
            metrics = tmp_path / "orders.prom"
            eventually(lambda: metrics.exists() and "position_offset{" in metrics.read_text())
            # Again, now that the group has commits.
            exec(next(each for each in blocks if "client.sample()" in each), names)
        finally:
            for call in added.call_args_list:
                spark.streams.removeListener(call.args[1])
            if "collector" in names:
                REGISTRY.unregister(names["collector"])
    assert added.call_count == 5
    assert f"{topic}-0 10 10 0" in capsys.readouterr().out
