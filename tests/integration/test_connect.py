"""Spark Connect: a thin client, and a server that has the package."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_group_source import offsets_of_checkpoint, register
from spark_group_source.errors import CannotMigrate
from spark_group_source.lag.listener import LagListener
from spark_group_source.lag.model import LagReport
from spark_group_source.lag.progress_bar import progress_bar
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.ports import HOST, free_ports
from tests.integration.job_process import TIMEOUT_S, environment, kill, spark_submit
from tests.integration.query_process import eventually, source_options
from tests.integration.standing import fill

OLD_CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "spark-4.3" / "one"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Address of a Spark Connect server."""
    port, *_ = free_ports(1)
    listen = {"spark.connect.grpc.binding.port": port, "spark.connect.grpc.binding.address": HOST}
    command = [spark_submit(), "--master", "local[2]", "--class", SERVER, "spark-internal"]
    command[1:1] = [word for name, value in listen.items() for word in ("--conf", f"{name}={value}")]
    with (tmp_path / "server.log").open("wb") as log:
        running = subprocess.Popen(command, env=environment(), cwd=tmp_path, stdout=log, stderr=log)

    def answers() -> bool:
        assert running.poll() is None, (tmp_path / "server.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    try:
        eventually(answers, what="a Connect server")
        yield f"sc://{HOST}:{port}"
    finally:
        kill(running)


@pytest.mark.slow
def test_a_connect_client_streams_and_reads_batches_and_sees_lag_and_errors(
    kafka: EmbeddedKafka, server: str, tmp_path: Path, topic: Callable[..., str], group: str
) -> None:
    name = topic(partitions=4)
    everything = fill(kafka, name, 50)
    settings = {"remote": server, "options": source_options(kafka, name, group), "old_checkpoint": str(OLD_CHECKPOINT)}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(tmp_path / 'server.log').read_text()[-8000:]}"
    rows = ds.dataset(tmp_path / "output", format="parquet").to_table()
    assert sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)) == sorted(everything)
    assert "commits each batch when Spark plans the next one" in (tmp_path / "server.log").read_text()
    assert "bar 200 of 200" in done.stdout
    assert "lag " + " ".join(str((name, partition, 50)) for partition in range(4)) in done.stdout
    assert "batch 200" in done.stdout
    assert "typo" in done.stdout
    assert 'moved {"orders":{"0":9,"1":1},"*":-2}' in done.stdout
    assert f"not moved: [CANNOT_MIGRATE] {tmp_path} is not a checkpoint" in done.stdout
    assert kafka.group_state(group) == "Empty"
    assert set(kafka.lag(group, name).values()) == {0}


def main(place: str) -> None:
    """The client: reads the topic as a stream and as a batch query, and asks for something that is refused.

    The argument is a directory with ``settings.json``: the server's address and the source's options. Rows go to
    ``output``; what else it found is printed.
    """
    work = Path(place)
    settings = json.loads((work / "settings.json").read_text())
    options = settings["options"]
    spark = SparkSession.builder.remote(settings["remote"]).getOrCreate()
    register(spark)
    reports: list[LagReport] = []
    spark.streams.addListener(LagListener(reports.append))
    stream = spark.readStream.format("kafka-group").options(**options).load().select("partition", "offset")
    writer = stream.writeStream.format("parquet").option("path", str(work / "output"))
    query = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    with progress_bar(query, file=io.StringIO()) as bar:
        query.awaitTermination()
    print("bar", bar.n, "of", bar.total)
    eventually(lambda: reports and reports[-1].total == 0, what="a report of no lag")
    print("lag", *sorted((*each.tp, each.position) for each in reports[-1].partitions))
    batch_options = {name: value for name, value in options.items() if name != "kafka.group.id"}
    print("batch", spark.read.format("kafka-group").options(**batch_options).load().count())
    print("moved", offsets_of_checkpoint(spark, settings["old_checkpoint"]))
    try:
        offsets_of_checkpoint(spark, str(work))
    except CannotMigrate as error:
        print("not moved:", error)
    try:
        spark.readStream.format("kafka-group").options(**options, typo="1").load().schema  # noqa: B018 -- analyzes it
    except PySparkException as error:
        print("refused", str(error).replace("\n", " "))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
