"""Fixtures for tests on a fake Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.wire.cluster import Cluster
from tests.fake import FakeKafka
from tests.unit.wire_options import wire_options


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Two brokers, and a topic of one partition."""
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", 1)
        yield running


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    with closing(Cluster(wire_options(fake))) as opened:
        yield opened
