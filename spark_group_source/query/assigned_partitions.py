"""A query's share of its group, as the member tells of it: partitions come, find their start and are committed, and go.

Two threads meet here, the member's and the query's. Each brings its own :class:`KafkaClients`: no socket is shared.
What they share is in three objects, each with a lock of its own: the ledger, the committer, and when to try again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.counters import Counters
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.state import Membership
from spark_group_source.listing import names
from spark_group_source.offsets import BatchOffset, Offsets, Partitions
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.commits.committer import Committer
from spark_group_source.query.commits.retry import Retry
from spark_group_source.query.commits.shared_ledger import SharedLedger
from spark_group_source.query.kafka_clients import KafkaClients
from spark_group_source.query.starting_offsets.resolver import StartOffsetResolver

log = logging.getLogger(__name__)

RESOLVE_REST, RESOLVE_REST_MAX = 4.0, 30.0
"""Start positions that no leader tells are looked for again after this many times what the last try took, up to so many
seconds, where the query has other partitions to read: they wait meanwhile."""


class AssignedPartitions:
    """The partitions that a query owns. Is the member's listener; ``ledger`` and ``committer`` are the query's too."""

    def __init__(
        self,
        options: SourceOptions,
        member_side: KafkaClients,
        facts: Mapping[str, str] | None = None,
        clock: Clock = monotonic,
        no_member: Callable[[Membership, RequestFailed], None] = lambda me, refused: None,
    ) -> None:
        """``facts`` stand in the metadata of commits where ``commitMetadata`` is on.

        ``no_member`` is called where the coordinator refuses a commit because it does not know the member any more.

        ``rebalanced_at`` is when the present generation began, in monotonic seconds.
        """
        self.counters = Counters()
        self.rebalanced_at: float | None = None
        self.ledger = SharedLedger()
        self._retry = Retry(options.commit_retry_interval, clock)
        self.committer = Committer(options, self.ledger, self.counters, self._retry, facts or {}, no_member)
        self._starts = StartOffsetResolver(options, self.ledger)
        self._options = options
        self._clock = clock
        self._group_id = options.group_id
        self._member_side = member_side

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline | None = None) -> None:
        """Finds where newly owned partitions start, and commits it. Caller: the member's thread."""
        self.ledger.partitions_assigned(partitions)
        self.resolve(partitions, me, self._member_side, deadline)

    def heartbeat_succeeded(self, me: Membership, deadline: Deadline | None = None) -> None:
        """Tries again what failed when partitions were gained: the query may be busy. Caller: the member's thread."""
        if self.ledger.unresolved(me) or self.ledger.unstarted(me):
            self.mend(me, self._member_side, deadline)

    def join_started(self) -> None:
        """This member asks to join. Caller: the member's thread."""
        self.counters.joins += 1

    def rebalance_completed(self) -> None:
        """This member is in a new generation. Caller: the member's thread."""
        self.counters.rebalances += 1
        self.rebalanced_at = self._clock()

    def partitions_revoked(self, partitions: Partitions, late: Partitions) -> None:
        """Forgets partitions given up. Caller: the member's thread."""
        log.info("group %s: revoked %s", self._group_id, names(partitions))
        self.counters.revoked += len(partitions)
        self.counters.revoked_late += len(late)
        if late:
            log.warning(
                "group %s: the batch that reads %s did not end within the revocation timeout; the next owner repeats"
                " it. Raise kafka.max.poll.interval.ms or make batches smaller with maxOffsetsPerTrigger.",
                self._group_id,
                names(late),
            )
        self.ledger.dropped(partitions)

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """Forgets partitions that were taken away. Caller: the member's thread."""
        log.warning("group %s: lost %s: %s", self._group_id, names(partitions), reason)
        self.counters.lost += len(partitions)
        self.ledger.dropped(partitions)

    def restore(
        self, logged: BatchOffset, existing: Partitions, access: KafkaClients, *, replayed: bool = False
    ) -> None:
        """Begins at the checkpoint, with the partitions ``existing`` now: see :meth:`StartOffsetResolver.restore`.

        Caller: the query, before the member starts.
        """
        self._starts.restore(logged, existing, access, replayed=replayed)

    def decide(self, existing: Partitions, access: KafkaClients) -> None:
        """Decides where a new query starts: see :meth:`StartOffsetResolver.decide`. Caller: the query."""
        self._starts.decide(existing, access)

    def mend(self, me: Membership, access: KafkaClients, deadline: Deadline | None = None) -> None:
        """Tries again what failed, start positions and commits, ``groupCommit.retryIntervalMs`` after the last try.

        Where start positions keep others from being read, it is more. Caller: both threads; what one of them tries, the
        other does not.
        """
        unresolved = self.ledger.unresolved(me)
        if not (unresolved or self.ledger.uncommitted()) or not self._retry.due():
            return
        if unresolved:
            self.resolve(unresolved, me, access, deadline)  # and commits
        else:
            self.committer.commit(me, access, deadline)
            self._retry.later()

    def resolve(
        self, partitions: Partitions, me: Membership, access: KafkaClients, deadline: Deadline | None = None
    ) -> None:
        """Finds where partitions start, and commits that, so that a crash before their first batch skips nothing.

        What cannot be found now is logged, and stays unresolved for another try. With a ``deadline`` all of it is
        over by then.
        """
        began = self._clock()
        most = self._starts.timeout
        deadline = deadline or Deadline.after(most + self._options.commit_timeout)
        with self.ledger.claimed(partitions) as claim:
            try:
                if claim.partitions:
                    # The last third is the commit's: what was found by then is not to wait for the query's next try.
                    self._starts.find(claim, access, deadline.at_most(min(most, deadline.remaining() * 2 / 3)))
            except GroupSourceError as error:
                # A topic may be deleted between its assignment and now: the next rebalance takes it away.
                if not error.retriable and getattr(error, "errno", None) != UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                log.warning("group %s: no start position for %s: %s", self._group_id, names(claim.partitions), error)
        self.committer.commit(me, access, deadline)
        rest = min((self._clock() - began) * RESOLVE_REST, RESOLVE_REST_MAX)
        others = self.ledger.unresolved(me) and self.ledger.positions(me) and not self.ledger.uncommitted()
        self._retry.later(rest if others else 0.0)

    def start_over(self, topics: Collection[str], me: Membership, access: KafkaClients) -> None:
        """Reads topics made anew from the beginning of their logs, whatever was read or committed. Caller: the query.

        What this query logged of their partitions means nothing any more, also of those that others own now. Where
        nobody tells the beginning now, it stays unresolved, and the group's commit is passed over then as well.
        """
        partitions = frozenset(tp for tp in me.readable if tp.topic in topics)
        try:
            starts = self._starts.beginnings(partitions, access)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("group %s: no start position for %s: %s", self._group_id, names(partitions), error)
            starts = {}
        self.ledger.start_over(topics, partitions, starts)
        self.committer.commit(me, access)

    def go_back(self, ends: Offsets, me: Membership, access: KafkaClients) -> None:
        """Goes on at these offsets, which lie before what was read and committed. Caller: the query."""
        self.ledger.go_back(ends)
        self.committer.commit(me, access)
