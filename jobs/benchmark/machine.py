"""The machine and the versions, for ``bench.json``."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import spark_group_source
from spark_group_source.testing.ivy import KAFKA_VERSION

PACKAGES = ("pyspark", "kafka-python", "numpy", "pyarrow")


def describe(jars: list[Path]) -> dict[str, Any]:
    """Processor, memory, load and versions; ``jars`` are the jars of the JVM source."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_before": load(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "spark_group_source": spark_group_source.__version__,
        **{name: version(name) for name in PACKAGES},
        "jvm_source": [jar.name for jar in jars],
    }


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())
    if found is None:
        return platform.processor()
    return found[1]
