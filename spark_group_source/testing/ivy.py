"""Downloads Kafka's own jars from Maven Central with the Ivy that PySpark ships, once per version.

The jars stay in ``SPARK_GROUP_SOURCE_CACHE`` (or ``XDG_CACHE_HOME``, or ``~/.cache``). If Maven Central is
unreachable, ``SPARK_GROUP_SOURCE_KAFKA_LIBS`` may name the ``libs`` directory of an unpacked Kafka download instead.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import tempfile
from pathlib import Path

from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.file_lock import file_lock
from spark_group_source.testing.java import java

log = logging.getLogger(__name__)

KAFKA_VERSION = "4.1.1"
"""The default version of the embedded Kafka."""

RESOLVE_TIMEOUT_S = 300.0
"""Timeout of one run of Ivy. 45 jars with 43 MB take about 40 s over an ordinary connection."""

ATTEMPTS = 3

OUTPUT_TAIL = 2000

# kafka_2.13 includes everything that kafka-tools needs for the group commands, so the 30 jars of the tools stay out.
# slf4j-simple: Kafka's POM names no logging backend, and without a backend a broker dies without a log.
MODULE = """<ivy-module version="2.0">
  <info organisation="spark-group-source" module="embedded-kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_{scala}" rev="{version}" conf="default->default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{version}" conf="default->default" transitive="false"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>{more}
  </dependencies>
</ivy-module>
"""

ZOOKEEPER = '<dependency org="org.apache.zookeeper" name="zookeeper" rev="3.5.9" conf="default->default"/>'
"""For Kafka before 2.4, whose own ZooKeeper does not run on Java 17."""


def kafka_libs(version: str = KAFKA_VERSION) -> Path:
    """Returns the directory with the jars of Kafka's broker and tools; downloads them if they are missing.

    Several processes may call this at once: one downloads, and the others wait for it.

    Raises:
        EmbeddedKafkaError: Java or Ivy is missing, or the download failed or took too long.
    """
    configured = os.environ.get("SPARK_GROUP_SOURCE_KAFKA_LIBS")
    if configured:
        return Path(configured)
    libs = cache_directory() / f"kafka-{version}"
    if libs.is_dir():
        return libs
    libs.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(libs.parent / f"kafka-{version}.lock", RESOLVE_TIMEOUT_S * ATTEMPTS):
        if not libs.is_dir():
            _fetch(version, libs)
    return libs


def cache_directory() -> Path:
    """Returns the directory that keeps downloaded jars between runs."""
    configured = os.environ.get("SPARK_GROUP_SOURCE_CACHE")
    if configured:
        return Path(configured).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    if not base:
        base = "~/.cache"
    return Path(base).expanduser() / "spark-group-source"


def ivy_jar() -> Path:
    """Returns Ivy's jar from ``SPARK_HOME`` or from PySpark.

    Raises:
        EmbeddedKafkaError: neither contains the jar.
    """
    homes = _spark_homes()
    for home in homes:
        for jar in sorted(Path(home, "jars").glob("ivy-*.jar")):
            return jar
    searched = "PySpark, which is not installed"
    if homes:
        searched = ", ".join(homes)
    raise EmbeddedKafkaError(
        f"No ivy-*.jar was found in the jars of {searched}.",
        "Install the full pyspark package (not pyspark-client), or set SPARK_GROUP_SOURCE_KAFKA_LIBS to"
        " the libs directory of an unpacked Kafka download.",
    )


def _spark_homes() -> list[str]:
    homes = []
    if "SPARK_HOME" in os.environ:
        homes.append(os.environ["SPARK_HOME"])
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.submodule_search_locations is not None:
        homes += spark.submodule_search_locations
    return homes


def ivy_command(module: Path, libs: Path, cache: Path) -> list[str]:
    """Returns the command that resolves ``module`` (an ivy.xml) and copies its jars into ``libs``.

    ``-types jar bundle``: otherwise Ivy leaves out jars that are OSGi bundles, such as scala-logging.
    ``-confs default``: with ``runtime`` Ivy leaves out the broker's own jar.
    """
    return [
        *(java(), "-jar", str(ivy_jar())),
        *("-cache", str(cache)),
        *("-ivy", str(module)),
        *("-confs", "default"),
        *("-types", "jar", "bundle"),
        *("-retrieve", f"{libs}/[artifact]-[revision].[ext]"),
    ]


def fetch_jars(module: str, jars: Path, needed: str, attempts: int = ATTEMPTS) -> str:
    """Downloads all jars of an Ivy module into a new directory, or creates none. One process may do so at a time.

    Ivy caches downloaded files, so a second attempt continues where the first ended. The directory gets its name only
    after the last jar, so an interrupted download never passes for a complete one.

    Args:
        module: the text of an ivy.xml.
        jars: the directory, which does not exist yet. Its parent does.
        needed: a pattern that matches a jar of every complete download.
        attempts: how often Ivy runs until it succeeds.

    Returns:
        The error of the last attempt, or an empty text after a success.
    """
    failure = ""
    with tempfile.TemporaryDirectory(dir=jars.parent, prefix=f".{jars.name}-") as work:
        description = Path(work, "ivy.xml")
        description.write_text(module, encoding="utf-8")
        partial = Path(work, "jars")
        command = ivy_command(description, partial, jars.parent / "ivy")
        for attempt in range(1, attempts + 1):
            failure = _run(command)
            if not failure and list(partial.glob(needed)):
                partial.rename(jars)
                return ""
            log.warning("cannot download %s (attempt %d of %d)", jars.name, attempt, attempts)
    return failure or f"it retrieved no {needed}"


def _fetch(version: str, libs: Path) -> None:
    log.warning("downloading Kafka %s once from Maven Central into %s: 43 MB, about 40 s", version, libs)
    failure = fetch_jars(_ivy_module(version), libs, "kafka_2.1*.jar")
    if failure:
        raise EmbeddedKafkaError(
            f"Kafka {version} could not be downloaded from Maven Central in {ATTEMPTS} attempts. Ivy said: {failure}",
            "Check the connection to repo1.maven.org (Java reads a proxy from JAVA_TOOL_OPTIONS), or set"
            " SPARK_GROUP_SOURCE_KAFKA_LIBS to the libs directory of an unpacked Kafka download.",
        )


def _ivy_module(version: str) -> str:
    numbers = tuple(int(each) for each in version.split("."))
    if numbers < (2, 4):
        return MODULE.format(version=version, scala="2.12", more=ZOOKEEPER)
    return MODULE.format(version=version, scala="2.13", more="")


def _run(command: list[str]) -> str:
    """Runs Ivy; returns the error, or an empty text after a success."""
    try:
        completed = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RESOLVE_TIMEOUT_S, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return f"no result within {RESOLVE_TIMEOUT_S:.0f} s"
    tail = completed.stdout[-OUTPUT_TAIL:].strip()
    if completed.returncode != 0:
        return f"exit code {completed.returncode}: {tail}"
    # Ivy exits with 0 even if a single artifact failed to download.
    if "FAILED DOWNLOADS" in completed.stdout or "UNRESOLVED" in completed.stdout:
        return tail
    return ""
