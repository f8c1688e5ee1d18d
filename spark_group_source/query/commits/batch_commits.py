"""Commits of completed batches, retries of failed commits, and the hourly renewal for assigned partitions.

All methods are for the query's thread.
"""

from __future__ import annotations

from spark_group_source.clock import Clock
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import BatchOffset
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.assigned_partitions import AssignedPartitions
from spark_group_source.query.commits.retry_timer import RetryTimer
from spark_group_source.query.kafka_clients import KafkaClients

RENEW_EVERY = 3600.0
"""Seconds between two commits of unchanged offsets, with ``assign`` only. If a group has no members, the brokers delete
each offset ``offsets.retention.minutes`` after its commit (default: 7 days)."""


class BatchCommits:
    """Commits what a query has completed, and reports that to its member."""

    def __init__(
        self,
        options: SourceOptions,
        assigned_partitions: AssignedPartitions,
        member: Member | ManualAssignment,
        clients: KafkaClients,
        clock: Clock,
    ) -> None:
        self._assigned_partitions = assigned_partitions
        self._ledger = assigned_partitions.ledger
        self._member = member
        self._clients = clients
        self._renewal = RetryTimer(RENEW_EVERY, clock) if options.partitions else None

    def start(self) -> None:
        """Renews the offsets of assigned partitions: the query may run for less than an hour."""
        if self._renew():
            self.commit()

    def commit(self) -> None:
        """Commits what is pending.

        Raises:
            GroupSourceError: the group refused this member for good, or :meth:`Committer.commit` raises.
        """
        self._assigned_partitions.committer.commit(self._member.snapshot(), self._clients)

    def close(self) -> None:
        """Commits what is pending, and what a late commit has moved back, a last time. It raises as :meth:`commit`."""
        self._assigned_partitions.verify(self._member.snapshot(), self._clients)
        self.commit()

    def batch_completed(self, end: BatchOffset) -> None:
        """Spark has completed the batch that ends at ``end``: counts and commits it.

        The member may be waiting for this batch before it revokes partitions.
        """
        counters = self._assigned_partitions.counters
        counters.batches += 1
        counters.offsets += sum(read.size for read in end.reads())
        self._ledger.completed()
        self._member.batch_completed()
        self.commit()

    def retry_pending(self, me: Membership) -> None:
        """Retries failed commits and unresolved start positions; renews assigned partitions when that is due."""
        self._renew()
        self._assigned_partitions.retry_pending(me, self._clients)

    def _renew(self) -> bool:
        """Makes the offsets of assigned partitions pending again, when that is due; returns whether it was."""
        due = self._renewal is not None and self._renewal.try_acquire()
        if due:
            self._ledger.renew()
        return due
