"""The listener that a member notifies of its partitions."""

from __future__ import annotations

from typing import Protocol

from spark_group_source.clock import Deadline
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import Partitions


class RebalanceListener(Protocol):
    """The member's thread calls these methods in the order of events."""

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline) -> None:
        """These are owned from now on. The call delays heartbeats: it must return by the deadline."""

    def join_started(self) -> None:
        """This member sends JoinGroup."""

    def rebalance_completed(self) -> None:
        """This member is in a new generation, and knows its assignment."""

    def heartbeat_succeeded(self, me: Membership, deadline: Deadline) -> None:
        """A heartbeat succeeded, and no revocation is pending. Deadline as in :meth:`partitions_assigned`."""

    def partitions_revoked(self, partitions: Partitions, late: Partitions) -> None:
        """These are revoked; the batch that reads ``late`` ones did not end in time."""

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """These are lost: none of their offsets may be committed."""
