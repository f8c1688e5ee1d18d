"""The listener that a member notifies of its partitions."""

from __future__ import annotations

from typing import Protocol

from spark_group_source.clock import Deadline
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import Partitions


class RebalanceListener(Protocol):
    """The member's thread calls these methods in the order of events; :meth:`uncommitted` is for any thread."""

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline) -> None:
        """These are owned from now on. The call delays heartbeats: it must return by the deadline."""

    def join_started(self) -> None:
        """This member sends JoinGroup."""

    def rebalance_completed(self) -> None:
        """This member is in a new generation, and knows its assignment."""

    def uncommitted(self) -> Partitions:
        """Partitions with pending commits, for which a revocation waits. It must return at once."""

    def retry_due(self, me: Membership) -> float:
        """When :meth:`retry` is to be called, in seconds of the clock; infinity if there is nothing to retry."""

    def retry(self, me: Membership, deadline: Deadline) -> None:
        """Retries failed commits, and lookups of start positions if no revocation is pending. The call delays
        heartbeats: it must return by the deadline."""

    def partitions_revoked(self, partitions: Partitions, in_flight: Partitions, uncommitted: Partitions) -> None:
        """These are revoked. The batch that reads ``in_flight`` ones did not end in time; what was completed of
        ``uncommitted`` ones could not be committed in time."""

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """These are lost: none of their offsets may be committed."""
