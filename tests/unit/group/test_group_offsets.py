"""How long the group's coordinator is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.events import Refused
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import TopicPartition
from spark_group_source.testing.fake import FakeKafka, Fault
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.settings import WireOptions

LONG = 90.0
TP = TopicPartition("t", 0)


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("t")
        yield running


def test_the_groups_offsets_are_waited_for_no_longer_than_their_timeout(fake: FakeKafka) -> None:
    cluster = Cluster(WireOptions((("127.0.0.1", fake.brokers[1].port),), "test"))
    settings = GroupSettings("g", Subscription(("t",)), offset_fetch_timeout=0.3)
    try:
        offsets = GroupOffsets(cluster, settings)
        fake.commit("g", {("t", 0): 7})
        found = offsets.committed([TP], Deadline.after(LONG))
        assert not isinstance(found, Refused)
        assert found[TP].offset == 7
        fake.next("OffsetFetch", Fault(silent=True))
        began = time.monotonic()
        refused = offsets.committed([TP], Deadline.after(LONG))
        assert isinstance(refused, Refused)
        assert "did not answer OffsetFetchRequest within " in refused.why
        assert time.monotonic() - began < LONG / 2
    finally:
        cluster.close()
