"""The JVM connector, ``format("kafka")``, with which some tests compare."""

from __future__ import annotations

import pytest
from benchmark.connector import connector_jars
from benchmark.errors import BenchError


def jvm_connector() -> str:
    """Its jars, as an argument of ``spark-submit --jars``; the test is skipped if they cannot be downloaded."""
    try:
        return ",".join(map(str, connector_jars()))
    except BenchError as error:
        pytest.skip(f'format("kafka") cannot be fetched from Maven Central: {error}')
