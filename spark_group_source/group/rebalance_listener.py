"""Who is told what happens to a membership."""

from __future__ import annotations

from typing import Protocol

from spark_group_source.clock import Deadline
from spark_group_source.group.state import Membership
from spark_group_source.offsets import Partitions


class RebalanceListener(Protocol):
    """Is told of partitions, on the member's thread, in the order in which it happens."""

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline) -> None:
        """These are owned from now on. Heartbeats wait for this call: it must end by the deadline."""

    def joining(self) -> None:
        """This member asks to join."""

    def rebalanced(self) -> None:
        """This member is in a new generation, and knows its share of it."""

    def heard(self, me: Membership, deadline: Deadline) -> None:
        """The group has answered a heartbeat, and nothing is to be given up. The deadline is as in :meth:`gained`."""

    def revoked(self, partitions: Partitions, late: Partitions) -> None:
        """These are given up in order; the batch that read ``late`` ones did not end in time."""

    def lost(self, partitions: Partitions, why: str) -> None:
        """These were taken away: nothing of them may be committed."""
