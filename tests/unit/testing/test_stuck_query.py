"""A query that does not end is stopped, and the error says what it waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.errors import KafkaTimeoutError

from spark_group_source.testing.errors import StuckQuery
from spark_group_source.testing.kafka import GroupMember
from spark_group_source.testing.runs import await_end


def query(ends: bool | Exception) -> Mock:
    made = Mock(isActive=ends is False, status={"message": "Getting offsets from orders"})
    made.recentProgress = [{"batchId": 0, "numInputRows": 7}, {"batchId": 1, "numInputRows": 0}]
    made.awaitTermination.side_effect = [ends]
    return made


KAFKA: Any = SimpleNamespace(
    active_groups=lambda: ["reports"],
    members=lambda group: [GroupMember("id-1", "spark-1", 1), GroupMember("id-2", "forgotten", 2)],
    group_state=lambda group: "Stable",
    committed=lambda group: {("orders", 0): 5, ("orders", 1): 5},
    lag=lambda group, topic: {0: 0, 1: 3},
)
"""One group, behind in one partition."""


def test_a_query_that_ends_raises_no_error_and_one_that_fails_its_own() -> None:
    await_end(query(ends=True), KAFKA, 5.0)
    with pytest.raises(ZeroDivisionError):
        await_end(query(ends=ZeroDivisionError()), KAFKA, 5.0)


def test_a_query_that_does_not_end_is_stopped_and_the_error_names_its_members() -> None:
    stuck = query(ends=False)
    with pytest.raises(StuckQuery) as caught:
        await_end(stuck, KAFKA, 0.0)
    told = str(caught.value)
    stuck.stop.assert_called_once()
    assert stuck.awaitTermination.call_args.args[0] > 0, "Spark rejects 0"
    assert "It completed 1 batch(es) with 7 row(s), and its status is 'Getting offsets from orders'" in told
    assert "Group reports is Stable. Its members: spark-1 with 1 partition(s), forgotten with 2 partition(s)" in told
    assert "Its lag: 3 in orders-1." in told


def test_the_error_says_that_kafka_did_not_respond() -> None:
    silent = Mock(active_groups=Mock(side_effect=KafkaTimeoutError("nobody there")))
    with pytest.raises(StuckQuery, match="Kafka did not respond: KafkaTimeoutError"):
        await_end(query(ends=False), silent, 5.0)
