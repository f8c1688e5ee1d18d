"""The methods of a query that its member calls when it gets, revokes or loses partitions."""

from __future__ import annotations

from typing import Protocol

from spark_group_source.clock import Deadline
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import Partitions


class RebalanceListener(Protocol):
    """The member's thread calls these methods in the order of events."""

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline) -> None:
        """These partitions are owned from now on. The call delays heartbeats, so it must return by the deadline."""

    def maintenance_due(self, me: Membership) -> float:
        """When :meth:`maintain_offsets` is to be called, in seconds of the clock; infinity if nothing is to be done."""

    def maintain_offsets(self, me: Membership, deadline: Deadline) -> None:
        """Looks up unresolved start positions, and commits and verifies offsets. The call delays heartbeats: it must
        return by the deadline, and before a pending revocation times out."""

    def partitions_revoked(self, partitions: Partitions) -> None:
        """These partitions are revoked, even if the running batch still reads them."""

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """These partitions are lost: none of their offsets may be committed."""
