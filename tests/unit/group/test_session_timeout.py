"""When a member asks for its group's session timeout, and which one it assumes."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.consumer.session_timeout import NAMES, SessionTimeout
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import RequestFailed
from tests.unit.hand_clock import Hand

MAX_AGE = 300.0
NO_ANSWER = RequestFailed(ErrorAction.RETRY, "no response", unanswered=True)


class Coordinator:
    """Answers DescribeConfigs with ``configs``, by type of resource, or fails if ``failing`` is set."""

    broker_id = 1

    def __init__(self) -> None:
        self.configs: dict[int, str] = {}
        self.failing = False
        self.requests = 0

    def supports(self, api_key: int, version: int) -> bool:
        return True

    def call(self, request: Any, deadline: Deadline) -> Any:
        self.requests += 1
        if self.failing:
            return NO_ANSWER
        kind = request.resources[0].resource_type
        config = SimpleNamespace(name=NAMES[kind], value=self.configs.get(kind))
        return SimpleNamespace(results=[SimpleNamespace(configs=[config])])


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def timeout(clock: Hand) -> SessionTimeout:
    made = SessionTimeout("g", 45.0, MAX_AGE, clock)
    assert not made.is_due()
    made.joined()
    return made


def look_up(timeout: SessionTimeout, coordinator: Coordinator) -> float:
    assert timeout.is_due()
    timeout.look_up(coordinator, Deadline.after(90.0))  # type: ignore[arg-type]
    assert not timeout.is_due()
    return timeout.seconds


@pytest.mark.parametrize(
    ("configs", "seconds"), [({32: "3000", 4: "9000"}, 3.0), ({4: "9000"}, 9.0), ({}, 45.0)], ids=str
)
def test_the_groups_timeout_goes_before_that_of_the_brokers(
    timeout: SessionTimeout, coordinator: Coordinator, configs: dict[int, str], seconds: float
) -> None:
    coordinator.configs = configs
    assert look_up(timeout, coordinator) == seconds


def test_a_changed_timeout_is_known_after_a_metadata_age_or_a_join(
    timeout: SessionTimeout, coordinator: Coordinator, clock: Hand
) -> None:
    coordinator.configs = {32: "60000"}
    assert look_up(timeout, coordinator) == 60.0
    coordinator.configs = {32: "3000"}
    clock.now += MAX_AGE
    assert look_up(timeout, coordinator) == 3.0
    coordinator.configs = {32: "4000"}
    timeout.joined()
    assert look_up(timeout, coordinator) == 4.0


def test_a_lookup_without_an_answer_is_repeated_soon_and_less_often_with_each_failure(
    timeout: SessionTimeout, coordinator: Coordinator, clock: Hand
) -> None:
    coordinator.configs, coordinator.failing = {32: "3000"}, True
    waits = []
    for _ in range(12):
        assert look_up(timeout, coordinator) == 45.0
        failed_at = clock.now
        while not timeout.is_due():
            clock.now += 0.1
        waits.append(clock.now - failed_at)
    assert waits[0] < 2.0
    assert all(later > earlier for earlier, later in pairwise(waits[:8]))
    assert max(waits) < 2 * MAX_AGE
    coordinator.failing = False
    assert look_up(timeout, coordinator) == 3.0


def test_only_a_missing_permission_is_logged_and_once(
    timeout: SessionTimeout, coordinator: Coordinator, clock: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    coordinator.failing = True
    look_up(timeout, coordinator)
    assert not caplog.messages
    coordinator.failing = False
    for _ in range(2):
        clock.now += MAX_AGE
        look_up(timeout, coordinator)
    (line,) = caplog.messages
    assert "assuming 45 s. Reading it needs DESCRIBE_CONFIGS" in line
