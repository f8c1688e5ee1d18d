"""Partitions that a query owns for good, as ``assign`` names them: what stands in for a member where there is none.

It has the methods of :class:`~spark_group_source.group.member.Member` that a query calls. Nothing is joined, so nothing
is handed over, nobody heartbeats and there is no thread: all calls are the query's. Offsets are committed to the group
without a generation, which its coordinator takes only as long as the group has no members.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.error_codes import UNKNOWN_MEMBER_ID
from spark_group_source.errors import GroupError
from spark_group_source.group.counters import Timings
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import NO_MEMBERS, GroupOffsets
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership, Phase
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)


class ManualAssignment:
    """The assigned partitions of one query. Made when it starts, closed when it ends, never used again."""

    silence = None
    """There is no session in which anybody could be silent."""

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        listener: RebalanceListener,
        clock: Clock = monotonic,
        timings: Timings | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._offsets = GroupOffsets(cluster, settings, timings)
        self._state = Membership(phase=Phase.STABLE)

    def start(self, topics: Collection[str]) -> None:
        """Takes the partitions into possession; ``topics`` are those they lie in.

        Raises:
            GroupError: the group has members, or may not be described.
        """
        self._check_members()
        own = self._settings.subscription.partitions
        self._state = Membership(phase=Phase.STABLE, owned=dict.fromkeys(own, 0))
        log.info("group %s: reads %d assigned partition(s), as no member", self._settings.group_id, len(own))
        self._listener.partitions_assigned(
            own, self._state, Deadline.after(self._settings.session_timeout, self._clock)
        )

    def _check_members(self) -> None:
        found = self._offsets.describe(Deadline.after(self._settings.request_timeout, self._clock))
        if isinstance(found, RequestFailed):
            if found.action is ErrorAction.FATAL:
                assert found.error is not None, "what is fatal has an error"
                raise found.error
            # That heals, as any trouble with the group does; if there are members, each commit will say so.
            log.warning("group %s: whether it has members is not known: %s", self._settings.group_id, found.why)
        elif found.members:
            clients = ", ".join(f"{each.client_id} at {each.host}" for each in found.members[:10])
            raise GroupError(
                f"The group '{self._settings.group_id}' has {len(found.members)} member(s): {clients}.",
                f"{NO_MEMBERS}.",
                errno=UNKNOWN_MEMBER_ID,
            )

    def snapshot(self) -> Membership:
        """What is owned now: all of it."""
        return self._state

    def await_share(self, deadline: Deadline) -> bool:
        """Nobody has to be waited for."""
        return True

    def plan(self, partitions: Partitions, uncommitted: Partitions, me: Membership) -> Partitions:
        """The partitions that the next batch may read: all of them."""
        return partitions

    def commit_refused(self, me: Membership, refused: RequestFailed) -> None:
        """There is no membership to lose: a commit that is refused is tried again."""

    def batch_done(self, uncommitted: Partitions) -> None:
        """Nobody waits for a batch to end."""

    def close(self) -> None:
        """Closes the connections. Repeating it does no harm."""
        self._cluster.close()
