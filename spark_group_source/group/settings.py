"""What a member needs to know about itself and its group."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.group.subscription import Subscription


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of one member. Times are in seconds.

    ``rebalance_timeout`` is how long the broker waits for members to give partitions up (``max.poll.interval.ms``).
    ``static_leaves``: whether a static member leaves when its query stops, so that its partitions move at once.
    ``rack`` is what a leader is told that assigns partitions by where their replicas are.
    """

    group_id: str
    subscription: Subscription
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    static_leaves: bool = False
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 300.0
    request_timeout: float = 30.0
    metadata_max_age: float = 300.0
    offset_fetch_timeout: float = 5.0
    rack: str | None = None
    retry_backoff: float = 0.1
    retry_backoff_max: float = 1.0

    @property
    def heartbeat_timeout(self) -> float:
        """How long one heartbeat waits for its answer: a third of a session leaves time for another one."""
        return min(self.request_timeout, self.session_timeout / 3)

    @property
    def revocation_timeout(self) -> float:
        """How long a running batch may hold up a hand-over: the broker must still see this member join in time.

        The broker's time runs from when the rebalance begins, this member's from when a heartbeat tells it. Between the
        two lie a heartbeat interval, or the half session that start positions may take, and the wait for an answer:
        less than a session, or the session would have ended. When the drain ends, one more heartbeat may be under way.
        That much is taken off: with the defaults 300 s - (45 s + 15 s) = 240 s. Where that would leave less than half
        of the rebalance timeout it is half, since a batch needs some time.
        """
        return max(
            self.rebalance_timeout - self.session_timeout - self.heartbeat_timeout,
            self.rebalance_timeout / 2,
        )
