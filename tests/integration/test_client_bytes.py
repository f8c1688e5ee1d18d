"""The recorded bytes of Kafka's own client, with which unit tests compare ours, are still those that it writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from spark_group_source.testing.ivy import kafka_libs
from spark_group_source.testing.java import BRIEF, java

PROGRAM = Path(__file__).with_name("ClientBytes.java")
RECORDED = Path(__file__).parents[1] / "java_bytes.json"


def test_recorded_bytes_equal_those_of_kafkas_client() -> None:
    command = [java(), BRIEF, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{kafka_libs()}/*", str(PROGRAM)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert json.loads(printed) == json.loads(RECORDED.read_text(encoding="utf-8"))
