"""ManualAssignment partitions on a real Kafka: what its coordinator takes from a query that is no member."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_group_source.errors import GroupError
from spark_group_source.offsets import BatchOffset
from spark_group_source.query.driver import Driver
from spark_group_source.testing.kafka import EmbeddedKafka
from tests.drivers import drivers

Start = Callable[..., Driver]


@pytest.fixture
def topic(kafka: EmbeddedKafka, unique: Callable[[str], str]) -> str:
    """A topic of two partitions with five records each."""
    name = kafka.create_topic(unique("topic"), partitions=2)
    for number in range(2):
        kafka.produce(name, [f"v{record}" for record in range(5)], partition=number)
    return name


@pytest.fixture
def start(kafka: EmbeddedKafka, group: str) -> Iterator[Start]:
    base = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group,
        "startingOffsets": "earliest",
        "kafka.client.id": "tests",
    }
    with drivers(base) as begin:
        yield begin


def test_offsets_of_assigned_partitions_are_committed_to_a_group_without_members(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start
) -> None:
    query = start(assign=f'{{"{topic}": [1]}}')
    assert kafka.committed(group, topic) == {(topic, 1): 0}
    end = query.plan_batch(BatchOffset(), None)
    assert [(each.partition, each.start, each.end) for each in end.reads()] == [(1, 0, 5)]
    assert query.plan_batch(end, None) is end
    assert kafka.committed(group, topic) == {(topic, 1): 5}
    assert kafka.group_state(group) == "Empty"


def test_a_group_with_members_fails_manual_assignment_at_the_start_and_rejects_later_commits(
    kafka: EmbeddedKafka, topic: str, group: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    query = start(assign=f'{{"{topic}": [1]}}')
    start(subscribe=topic)
    end = query.plan_batch(BatchOffset(), None)
    assert query.plan_batch(end, None) is end
    assert "25 (UNKNOWN_MEMBER_ID): the group has members" in caplog.text
    with pytest.raises(GroupError, match=r"has 1 member\(s\): test at 127.0.0.1"):
        start(assign=f'{{"{topic}": [1]}}')
