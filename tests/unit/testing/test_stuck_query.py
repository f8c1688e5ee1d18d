"""A query that does not end is stopped, and the error says what it waited for."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from spark_group_source.testing.errors import StuckQuery
from spark_group_source.testing.rows import GroupMember
from spark_group_source.testing.spark import await_end


class Query:
    """As far as it is asked here."""

    status = {"message": "Getting offsets from orders"}  # noqa: RUF012
    recentProgress = [{"batchId": 0, "numInputRows": 7}, {"batchId": 1, "numInputRows": 0}]  # noqa: N815, RUF012

    def __init__(self, ends: bool | Exception) -> None:
        self._ends = ends
        self.isActive = ends is False

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        assert timeout > 0
        if isinstance(self._ends, Exception):
            raise self._ends
        return self._ends

    def stop(self) -> None:
        self.isActive = False


class Kafka:
    """One group, behind in one partition; or none that answers."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def active_groups(self) -> list[str]:
        if self._error:
            raise self._error
        return ["reports"]

    def members(self, group: str) -> list[GroupMember]:
        return [GroupMember("id-1", "spark-1", 1), GroupMember("id-2", "forgotten", 2)]

    def group_state(self, group: str) -> str:
        return "Stable"

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        return {("orders", 0): 5, ("orders", 1): 5}

    def lag(self, group: str, topic: str) -> dict[int, int]:
        return {0: 0, 1: 3}


def wait(query: Query, kafka: Kafka, timeout: float = 5.0) -> None:
    waiting: Any = await_end  # it asks for no more than these two can answer
    waiting(query, kafka, timeout)


def test_a_query_that_ends_raises_no_error_and_one_that_fails_its_own() -> None:
    wait(Query(ends=True), Kafka())
    with pytest.raises(ZeroDivisionError):
        wait(Query(ends=ZeroDivisionError()), Kafka())


def test_a_query_that_does_not_end_is_stopped_and_the_error_names_its_members() -> None:
    query = Query(ends=False)
    with pytest.raises(StuckQuery) as caught:
        wait(query, Kafka(), timeout=0.0)
    told = str(caught.value)
    assert not query.isActive
    assert "'Getting offsets from orders', after 1 batches with 7 rows" in told
    assert "Group reports is Stable, members are spark-1 with 1 partitions, forgotten with 2 partitions" in told
    assert "behind in orders-1 by 3." in told


def test_the_error_says_that_kafka_did_not_respond() -> None:
    with pytest.raises(StuckQuery, match="Kafka did not respond: KafkaTimeoutError"):
        wait(Query(ends=False), Kafka(KafkaTimeoutError("nobody there")))
