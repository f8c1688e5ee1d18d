"""The source as a Spark session knows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spark_group_source.spark.input_partitions import Application
from spark_group_source.spark.source import register


class Session:
    """What is used of a Spark session."""

    def __init__(self, application_id: str) -> None:
        self.conf = {"spark.app.name": "orders", "spark.app.id": application_id}
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)


def registered(*sessions: Session) -> list[Application]:
    """The applications that each call registers the source for."""
    for each in sessions:
        register(each)  # type: ignore[arg-type]
    return [source.application for session in dict.fromkeys(sessions) for source in session.registered]


def test_a_session_that_knows_the_source_is_left_alone_since_spark_would_warn() -> None:
    one = Session("local-1")
    assert registered(one, one, one) == [Application("orders", "local-1")]


def test_each_session_is_told_of_the_source_and_of_its_own_application() -> None:
    one, other = Session("local-1"), Session("local-2")
    assert registered(one, other) == [Application("orders", "local-1"), Application("orders", "local-2")]
