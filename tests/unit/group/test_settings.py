"""Timeouts of a member that depend on other settings."""

from __future__ import annotations

import pytest

from spark_group_source.group.settings import GroupSettings, Subscription
from spark_group_source.wire.settings import WireOptions


def settings(rebalance: float, session: float, heartbeat: float, request: float = 30.0) -> GroupSettings:
    return GroupSettings(
        "g",
        Subscription(("t",)),
        WireOptions((), request_timeout=request),
        rebalance_timeout=rebalance,
        session_timeout=session,
        heartbeat_interval=heartbeat,
    )


@pytest.mark.parametrize(
    ("member", "timeout"),
    [
        (settings(300.0, 45.0, 3.0), 240.0),
        (settings(300.0, 45.0, 3.0, request=5.0), 250.0),
        (settings(600.0, 30.0, 10.0), 560.0),
        (settings(60.0, 45.0, 3.0), 30.0),
        (settings(1.0, 45.0, 3.0), 0.5),
        (settings(0.3, 0.2, 0.05), 0.15),
    ],
)
def test_the_revocation_timeout_ends_before_the_brokers_rebalance_timeout(
    member: GroupSettings, timeout: float
) -> None:
    assert member.revocation_timeout == pytest.approx(timeout)


@pytest.mark.parametrize("seconds", [1.0, 20.0, 60.0, 61.0, 241.0, 10_000.0])
def test_the_rebalance_timeout_for_a_batch_is_the_least_that_waits_for_it(seconds: float) -> None:
    needed = settings(300.0, 45.0, 3.0).rebalance_timeout_for(seconds)
    assert settings(needed, 45.0, 3.0).revocation_timeout == pytest.approx(seconds)


@pytest.mark.parametrize("heartbeat", [1.0, 3.0, 15.0])
def test_a_member_rejoins_in_time_even_if_it_learns_of_the_rebalance_late(heartbeat: float) -> None:
    member = settings(300.0, 45.0, heartbeat)
    # The heartbeat that reports the rebalance is sent an interval, or half a session of other work, after its start.
    seen = max(member.heartbeat_interval, member.session_timeout / 2) + member.heartbeat_timeout
    revoked = seen + member.revocation_timeout
    assert revoked + member.heartbeat_timeout < member.rebalance_timeout
