"""Registration of the source in Spark sessions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from spark_group_source.spark.source import register
from spark_group_source.spark.tasks import Application


class Session:
    """The parts of a Spark session that the registration uses."""

    def __init__(self, application_id: str) -> None:
        self.conf = {"spark.app.name": "orders", "spark.app.id": application_id}
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)


def registered(*sessions: Session) -> list[Application]:
    """The applications for which the calls register the source."""
    for each in sessions:
        register(each)  # type: ignore[arg-type]
    return [source.application for session in dict.fromkeys(sessions) for source in session.registered]


def test_a_session_gets_the_source_once_because_spark_would_warn() -> None:
    one = Session("local-1")
    assert registered(one, one, one) == [Application("orders", "local-1")]


def test_each_session_gets_the_source_with_its_own_application() -> None:
    one, other = Session("local-1"), Session("local-2")
    assert registered(one, other) == [Application("orders", "local-1"), Application("orders", "local-2")]
