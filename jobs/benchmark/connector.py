"""The jars of Spark's ``format("kafka")``, for the comparison."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pyspark

from benchmark.errors import BenchError
from spark_group_source.testing.ivy import RESOLVE_TIMEOUT_S, cache_directory, ivy_command

ARTIFACT = "spark-sql-kafka-0-10_2.13"
OUTPUT_TAIL = 1500
# Spark has its own Scala and slf4j.
MODULE = """<ivy-module version="2.0">
  <info organisation="spark-group-source" module="jvm-connector"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.spark" name="{artifact}" rev="{version}" conf="default->default">
      <exclude org="org.scala-lang"/><exclude org="org.slf4j"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def connector_jars() -> list[Path]:
    """The jars in the directory of SPARK_KAFKA_JARS, or from Maven Central in the version of PySpark.

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
    cached = cache_directory() / f"{ARTIFACT}-{pyspark.__version__}"
    if not cached.is_dir():
        cached.parent.mkdir(parents=True, exist_ok=True)
        _fetch(cached)
    return sorted(cached.glob("*.jar"))


def _fetch(cached: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cached.parent, prefix=f".{cached.name}-") as work:
        module, partial = Path(work, "ivy.xml"), Path(work, "jars")
        module.write_text(MODULE.format(artifact=ARTIFACT, version=pyspark.__version__), encoding="utf-8")
        command = ivy_command(module, partial, cached.parent / "ivy")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
            output = (done.stdout + done.stderr)[-OUTPUT_TAIL:]
            # Ivy returns 0 if a single download fails.
            complete = done.returncode == 0 and not any(
                word in done.stdout for word in ("FAILED DOWNLOADS", "UNRESOLVED")
            )
        except subprocess.TimeoutExpired:
            output, complete = f"nothing within {RESOLVE_TIMEOUT_S:.0f} s", False
        if not complete or not list(partial.glob(f"{ARTIFACT}-*.jar")):
            raise BenchError(
                f"Ivy could not download Spark's Kafka source ({ARTIFACT} {pyspark.__version__}) from Maven Central:"
                f" {output}\nSet SPARK_KAFKA_JARS to a directory with its jar and the jars that it needs"
                " (spark-token-provider-kafka-0-10, kafka-clients, commons-pool2), or run with --only ours."
            )
        partial.rename(cached)
