"""The ``java`` command that Spark uses, and commands that run Kafka's classes with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from spark_group_source.testing.errors import EmbeddedKafkaError

BRIEF = "-XX:TieredStopAtLevel=1"
"""For short-lived Java processes, which take about half of the CPU time without the second compiler."""


def java() -> str:
    """Returns the ``java`` command that Spark uses: from ``JAVA_HOME`` if it is set, otherwise from the ``PATH``.

    Raises:
        EmbeddedKafkaError: Java is missing.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        command = shutil.which("java", path=str(Path(home) / "bin"))
        reason = f"JAVA_HOME is {home}, without bin/java"
    else:
        command = shutil.which("java")
        reason = "JAVA_HOME is not set and the PATH has no java"
    if command is None:
        raise EmbeddedKafkaError(
            f"Java was not found: {reason}.",
            "Install Java 17 or later, which Spark also needs, or set JAVA_HOME to its directory"
            " (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17).",
        )
    return command


def java_command(libs: Path, heap: str, main: str, arguments: Sequence[str], *flags: str) -> list[str]:
    """Returns the command that runs one of Kafka's main classes with the jars in ``libs``; it logs to stderr.

    Uses serial garbage collection and a small heap, so that the broker leaves the cores to the tests.
    """
    logging = ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS"]
    return [java(), f"-Xmx{heap}", "-XX:+UseSerialGC", *flags, *logging, "-cp", f"{libs}/*", main, *arguments]
