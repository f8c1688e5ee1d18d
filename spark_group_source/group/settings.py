"""The settings of one member."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_group_source.group.current_coordinator import CurrentCoordinator
from spark_group_source.group.subscription import Subscription
from spark_group_source.wire.wire_options import WireOptions


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of one member. Times are in seconds.

    ``rebalance_timeout`` is how long the broker waits for members to rejoin (``max.poll.interval.ms``).
    ``static_leaves``: whether a static member leaves when its query stops, so that its partitions move at once.
    ``consumer_protocol``: the member has the group protocol of KIP-848. The coordinator then assigns by
    ``remote_assignor``, or by one that the brokers choose if it is ``None``. The session timeout is then a setting of
    the group or the brokers (``group.consumer.session.timeout.ms``), and ``session_timeout`` is the brokers' default,
    for brokers that do not return their setting.
    """

    group_id: str
    subscription: Subscription
    wire: WireOptions
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    static_leaves: bool = False
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 300.0
    offset_fetch_timeout: float = 5.0
    consumer_protocol: bool = False
    remote_assignor: str | None = None
    coordinator: CurrentCoordinator = field(default_factory=CurrentCoordinator, compare=False, repr=False)

    @property
    def heartbeat_timeout(self) -> float:
        """How long one heartbeat waits for its response: a third of a session leaves time for another heartbeat."""
        return min(self.wire.request_timeout, self.session_timeout / 3)

    @property
    def revocation_timeout(self) -> float:
        """How long a revocation may wait for the running batch, so that this member still rejoins in time.

        The broker's rebalance timeout starts with the rebalance, this one when a heartbeat reports the rebalance. The
        difference is below a session timeout, or the session would have ended. When the wait ends, a heartbeat may be
        pending. The session timeout and the heartbeat timeout are therefore subtracted: with the defaults 300 s - (45 s
        + 15 s) = 240 s. A batch needs some time: the result is at least half of the rebalance timeout.
        """
        return max(self.rebalance_timeout - self.session_timeout - self.heartbeat_timeout, self.rebalance_timeout / 2)

    def rebalance_timeout_for(self, seconds: float) -> float:
        """The minimum rebalance timeout in seconds with which a revocation may wait for ``seconds``."""
        return min(seconds + self.session_timeout + self.heartbeat_timeout, seconds * 2)
