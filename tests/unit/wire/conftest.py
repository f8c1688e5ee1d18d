"""Fixtures for tests of connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake import FakeKafka


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=2) as running:
        running.create_topic("t", partitions=2)
        yield running
