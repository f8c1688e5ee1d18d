"""What an installed release must do on its own: run by ``make dist`` in an environment that holds it and nothing else.

python tests/smoke.py VERSION [--read]
"""

from __future__ import annotations

import os
import sys
from importlib import metadata, resources
from pathlib import Path


def main(version: str, *more: str) -> int:
    """Looks whether all of it is there; with ``--read`` also whether it reads a real Kafka and refuses a bad option."""
    import spark_group_source

    package = Path(spark_group_source.__file__).parent
    assert package.is_relative_to(sys.prefix), f"{package} is not what was installed into {sys.prefix}"
    assert version == spark_group_source.__version__ == metadata.version("spark_group_source")
    for name in ("py.typed", "DESIGN.md", "testing/broker.properties"):
        assert resources.files("spark_group_source").joinpath(name).is_file(), f"{name} is not in the release"
    if more == ("--read",):
        read()
    print(f"spark_group_source {version} works in {sys.prefix}, Python {sys.version.split()[0]}")
    return 0


def read() -> None:
    """Three records go through a Kafka and a Spark of this machine."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from spark_group_source import register
    from spark_group_source.testing import EmbeddedKafka

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.log.level", "ERROR").getOrCreate()
    register(spark)
    with EmbeddedKafka() as kafka:
        kafka.create_topic("smoke")
        kafka.produce("smoke", ["one", "two", "three"])
        source = spark.read.format("kafka-group").option("subscribe", "smoke")
        source = source.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        assert sorted(bytes(row.value) for row in source.load().collect()) == [b"one", b"three", b"two"]
        refused = ""
        try:
            source.option("startingOffset", "earliest").load()
        except PySparkException as error:
            refused = str(error)
        assert "[INVALID_OPTION]" in refused, refused
    spark.stop()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
