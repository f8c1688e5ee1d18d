"""Fixtures for tests of connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.reachability import ADDRESSES, EAGER, SERVERS
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.unit.wire_options import wire_options


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """The system may give a server the port of one that failed in an earlier test."""
    for remembered in (SERVERS, EAGER, ADDRESSES):
        remembered.clear()


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running


@pytest.fixture
def options(fake: FakeKafka) -> WireOptions:
    return wire_options(fake)


@pytest.fixture
def cluster(options: WireOptions) -> Iterator[Cluster]:
    with closing(Cluster(options)) as made:
        yield made
