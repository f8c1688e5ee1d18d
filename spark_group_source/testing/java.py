"""The Java that PySpark would use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from spark_group_source.testing.errors import EmbeddedKafkaError

BRIEF = "-XX:TieredStopAtLevel=1"
"""For a Java process that lives a minute: without the second compiler it takes about half of the CPU time."""


def java() -> str:
    """The ``java`` command: of ``JAVA_HOME`` where that is set, otherwise of the ``PATH``, as Spark chooses it.

    Raises:
        EmbeddedKafkaError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if not found:
        where = f"JAVA_HOME is {home}, without bin/java" if home else "JAVA_HOME is not set and the PATH has none"
        raise EmbeddedKafkaError(
            f"Java was not found: {where}.",
            "Install Java 17 or later, which Spark needs too, or let JAVA_HOME name it"
            " (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17).",
        )
    return found
