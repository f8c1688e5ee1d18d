"""The jars of Spark's ``format("kafka")``, for the comparison."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from benchmark.errors import BenchError
from spark_group_source.testing.file_lock import file_lock
from spark_group_source.testing.ivy import RESOLVE_TIMEOUT_S, cache_directory, fetch_jars

ARTIFACT = "spark-sql-kafka-0-10_2.13"
FALLBACK = "4.2.0"
"""For a PySpark whose connector the repository does not have yet: this one also runs on Spark 4.3."""
# What Spark itself has.
MODULE = """<ivy-module version="2.0">
  <info organisation="spark-group-source" module="jvm-connector"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.spark" name="{artifact}" rev="{version}" conf="default->default">
      <exclude org="org.scala-lang"/><exclude org="org.scala-lang.modules"/><exclude org="org.slf4j"/>
      <exclude org="org.apache.hadoop"/><exclude module="spark-tags_2.13"/>
      <exclude module="lz4-java"/><exclude module="snappy-java"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def connector_jars() -> list[Path]:
    """The jars in the directory of SPARK_KAFKA_JARS, or from Maven Central in the version of PySpark, or ``FALLBACK``.

    The jars stay in the cache of the embedded Kafka. Several processes may call this at once: one downloads, and the
    others wait for it.

    Raises:
        BenchError: the directory lacks the connector, or the download failed.
    """
    directory = os.environ.get("SPARK_KAFKA_JARS")
    if directory:
        jars = sorted(Path(directory).glob("*.jar"))
        if not any(jar.name.startswith(ARTIFACT) for jar in jars):
            raise BenchError(
                f"SPARK_KAFKA_JARS is {directory}, which has no {ARTIFACT}-*.jar. Set it to a directory with this jar."
            )
        return jars
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    places = [cache / f"{ARTIFACT}-{version}" for version in dict.fromkeys((pyspark.__version__, FALLBACK))]
    with file_lock(cache / f"{ARTIFACT}.lock", len(places) * RESOLVE_TIMEOUT_S):
        return sorted(_fetched(places).glob("*.jar"))


def _fetched(places: list[Path]) -> Path:
    """The first of the directories that exists or that a download can fill."""
    for place in places:
        if place.is_dir():
            return place
    failures = []
    for place in places:
        version = place.name.removeprefix(f"{ARTIFACT}-")
        failure = fetch_jars(MODULE.format(artifact=ARTIFACT, version=version), place, f"{ARTIFACT}-*.jar", attempts=1)
        if not failure:
            return place
        failures.append(f"{version}: {failure}")
    raise BenchError(
        f"Ivy could not download Spark's Kafka source ({ARTIFACT}) from Maven Central. {' '.join(failures)}\nSet"
        " SPARK_KAFKA_JARS to a directory with its jar and the jars that it needs (spark-token-provider-kafka-0-10,"
        " kafka-clients, commons-pool2), or run with --only ours."
    )
