"""Times of a member that follow from others."""

from __future__ import annotations

import pytest

from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription


def settings(rebalance: float, session: float, heartbeat: float, request: float = 30.0) -> GroupSettings:
    return GroupSettings(
        "g",
        Subscription(("t",)),
        rebalance_timeout=rebalance,
        session_timeout=session,
        heartbeat_interval=heartbeat,
        request_timeout=request,
    )


@pytest.mark.parametrize(
    ("given", "drain"),
    [
        (settings(300.0, 45.0, 3.0), 240.0),
        (settings(300.0, 45.0, 3.0, request=5.0), 250.0),
        (settings(600.0, 30.0, 10.0), 560.0),
        (settings(60.0, 45.0, 3.0), 30.0),
        (settings(1.0, 45.0, 3.0), 0.5),
        (settings(0.3, 0.2, 0.05), 0.15),
    ],
)
def test_a_drain_ends_before_the_broker_gives_the_member_up_and_always_has_some_time(
    given: GroupSettings, drain: float
) -> None:
    assert given.revocation_timeout == pytest.approx(drain)


@pytest.mark.parametrize("heartbeat", [1.0, 3.0, 15.0])
def test_a_rebalance_seen_as_late_as_can_be_is_joined_before_the_brokers_time_is_over(heartbeat: float) -> None:
    given = settings(300.0, 45.0, heartbeat)
    # The heartbeat that tells it is sent an interval, or half a session of other work, after the rebalance began.
    seen = max(given.heartbeat_interval, given.session_timeout / 2) + given.heartbeat_timeout
    drained = seen + given.revocation_timeout
    assert drained + given.heartbeat_timeout < given.rebalance_timeout
