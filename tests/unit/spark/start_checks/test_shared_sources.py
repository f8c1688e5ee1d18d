"""Which streams of one application certainly share partitions. ``tests/integration/test_traps.py`` has their plans."""

from __future__ import annotations

import pytest

from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.spark.start_checks.shared_sources import share


def options(servers: str, **given: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": servers, "kafka.group.id": "g", "subscribe": "t"} | given)


@pytest.mark.parametrize(
    ("servers", "others", "shared"),
    [
        ("b1:9092", "b1:9092", True),
        ("b1:9092", "B1:9092", True),
        ("b1:9092,b2:9092", "b3:9092,b2:9092", True),
        ("b1:9092", "b1:9093", False),
        ("b1:9092", "b2:9092", False),
    ],
)
def test_a_common_bootstrap_server_tells_a_common_cluster(servers: str, others: str, shared: bool) -> None:
    assert share(options(servers), options(others)) is shared
