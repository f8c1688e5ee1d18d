"""What a member needs to know about itself and its group."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.group.subscription import Subscription


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of one member. Times are in seconds.

    ``rebalance_timeout`` is how long the broker waits for members to give partitions up (``max.poll.interval.ms``).
    """

    group_id: str
    subscription: Subscription
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 300.0
    request_timeout: float = 30.0
    metadata_max_age: float = 300.0
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0

    @property
    def drain_timeout(self) -> float:
        """How long a running batch may hold up a hand-over: the broker must still see this member join in time."""
        return max(self.rebalance_timeout - 2 * self.heartbeat_interval, self.rebalance_timeout / 2)
