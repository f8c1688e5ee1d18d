"""Fixtures for tests of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_group_source.fetch import cluster_pool
from tests.fake import FakeKafka


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Two brokers, each the leader of a partition; closes what the tasks kept."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running
    for _, kept in cluster_pool._idle_clusters.values():
        kept.close()
    cluster_pool._idle_clusters.clear()
