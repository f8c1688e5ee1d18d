"""The bytes of records that the broker has sent to clients, from its own metrics (JMX)."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from benchmark.errors import BenchError
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import BRIEF, java_command
from spark_group_source.testing.ports import HOST, free_ports

TOOL = "org.apache.kafka.tools.JmxTool"
HEAP = "64m"
ERROR_TAIL = 2000
JVM_OPTIONS = "JAVA_TOOL_OPTIONS"
JMX = "-Dcom.sun.management.jmxremote"


@contextlib.contextmanager
def jmx_port() -> Iterator[int]:
    """Makes a broker that starts in this block serve JMX at the port."""
    (port,) = free_ports(1)
    flags = [f"{JMX}.port={port}", f"{JMX}.rmi.port={port}", f"{JMX}.host={HOST}", f"-Djava.rmi.server.hostname={HOST}"]
    flags += [f"{JMX}.authenticate=false", f"{JMX}.ssl=false"]
    before = os.environ.get(JVM_OPTIONS)
    os.environ[JVM_OPTIONS] = " ".join([*filter(None, [before]), *flags])
    try:
        yield port
    finally:
        # Spark's JVM would want the same port.
        del os.environ[JVM_OPTIONS]
        if before is not None:
            os.environ[JVM_OPTIONS] = before


def bytes_sent(kafka: EmbeddedKafka, port: int, topic: str) -> int:
    """Bytes of record batches of a topic in all fetch responses so far, with records that a client then dropped.

    Raises:
        BenchError: the broker has sent none, or Kafka's tool failed.
    """
    bean = f"kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic={topic}"
    arguments = ["--jmx-url", f"service:jmx:rmi:///jndi/rmi://{HOST}:{port}/jmxrmi", "--object-name", bean]
    arguments += ["--attributes", "Count", "--one-time", "--report-format", "tsv"]
    done = subprocess.run(
        java_command(kafka.libs, HEAP, TOOL, arguments, BRIEF), capture_output=True, text=True, check=False
    )
    fields = done.stdout.split()
    if done.returncode or not fields or not fields[-1].isdecimal():
        raise BenchError(f"Kafka's JmxTool failed for topic {topic}: {(done.stdout + done.stderr)[-ERROR_TAIL:]}")
    return int(fields[-1])
