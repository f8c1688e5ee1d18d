"""The jars of Spark's own Kafka source, for the comparison."""

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
# Scala and slf4j are Spark's.
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
    """Jars in the directory that SPARK_KAFKA_JARS names, or from Maven Central in the version of PySpark.

    Raises:
        BenchError: the directory lacks the connector, or it could not be fetched.
    """
    given = os.environ.get("SPARK_KAFKA_JARS")
    if given:
        jars = sorted(Path(given).glob("*.jar"))
        if not any(jar.name.startswith(ARTIFACT) for jar in jars):
            raise BenchError(f"SPARK_KAFKA_JARS names {given}, where no {ARTIFACT}-*.jar is.")
        return jars
    kept = cache_directory() / f"{ARTIFACT}-{pyspark.__version__}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _fetch(kept)
    return sorted(kept.glob("*.jar"))


def _fetch(kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=f".{kept.name}-") as work:
        module, partial = Path(work, "ivy.xml"), Path(work, "jars")
        module.write_text(MODULE.format(artifact=ARTIFACT, version=pyspark.__version__), encoding="utf-8")
        command = ivy_command(module, partial, kept.parent / "ivy")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
            said = (done.stdout + done.stderr)[-OUTPUT_TAIL:]
            # Ivy ends with 0 where a single artifact failed to download.
            whole = done.returncode == 0 and not any(word in done.stdout for word in ("FAILED DOWNLOADS", "UNRESOLVED"))
        except subprocess.TimeoutExpired:
            said, whole = f"nothing within {RESOLVE_TIMEOUT_S:.0f} s", False
        if not whole or not list(partial.glob(f"{ARTIFACT}-*.jar")):
            raise BenchError(
                f"Spark's own Kafka source ({ARTIFACT} {pyspark.__version__}) could not be fetched from Maven Central."
                f" Ivy said: {said}\nLet SPARK_KAFKA_JARS name a directory with its jars and those it needs"
                " (spark-token-provider-kafka-0-10, kafka-clients, commons-pool2), or measure without it: --only ours."
            )
        partial.rename(kept)
