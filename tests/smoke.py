"""Checks an installed release: ``make dist`` runs it in an environment with the release and its dependencies only.

python tests/smoke.py VERSION [--read]
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path


def main(version: str, *more: str) -> int:
    """Checks the files and commands of the release; with ``--read`` also a read from a real Kafka."""
    import spark_group_source

    package = Path(spark_group_source.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not the release in {sys.prefix}"
    assert version == spark_group_source.__version__ == metadata.version("spark_group_source")
    schema = "group/consumer/ConsumerGroupHeartbeatRequest.json"
    for name in ("py.typed", "DESIGN.md", "messages.md", "testing/broker.properties", schema):
        assert resources.files("spark_group_source").joinpath(name).is_file(), f"{name} is not in the release"
    command = [sys.executable, "-m", "spark_group_source", "explain", "DATA_LOSS"]
    explained = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "failOnDataLoss" in explained, explained
    if more == ("--read",):
        read()
    print(f"spark_group_source {version} works in {sys.prefix}, Python {sys.version.split()[0]}")
    return 0


def read() -> None:
    """Reads three records from an embedded Kafka with a local Spark that found the source itself, as a batch query and
    as a stream, and checks that a bad option is an error.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from spark_group_source.testing import EmbeddedKafka

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    with EmbeddedKafka() as kafka:
        kafka.create_topic("smoke")
        kafka.produce("smoke", ["one", "two", "three"])
        options = {"subscribe": "smoke", "kafka.bootstrap.servers": kafka.bootstrap_servers}
        source = spark.read.format("kafka-group").options(**options)
        streamed = spark.readStream.format("kafka-group").options(**options, startingOffsets="earliest")
        streamed = streamed.option("kafka.group.id", "smoke")
        query = streamed.load().writeStream.format("memory").queryName("streamed").start()
        query.processAllAvailable()
        query.stop()
        for rows in (source.load(), spark.table("streamed")):
            assert sorted(bytes(row.value) for row in rows.collect()) == [b"one", b"three", b"two"]
        refused = ""
        try:
            source.option("startingOffset", "earliest").load()
        except PySparkException as error:
            refused = str(error)
        assert "[INVALID_OPTION]" in refused, refused
    spark.stop()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
