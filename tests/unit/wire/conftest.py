"""Fixtures for tests of connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import WakeupPipe
from tests.fake import FakeKafka
from tests.unit.wire_options import wire_options


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running


@pytest.fixture
def cluster(fake: FakeKafka) -> Iterator[Cluster]:
    made = Cluster(wire_options(fake))
    yield made
    made.close()


@pytest.fixture
def wakeup() -> Iterator[WakeupPipe]:
    pipe = WakeupPipe()
    yield pipe
    pipe.close()
