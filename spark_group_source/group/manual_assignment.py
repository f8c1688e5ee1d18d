"""Manual assignment: the partitions that the option ``assign`` names, without membership in the group.

It has the methods of :class:`~spark_group_source.group.member.Member` that a query calls. The query does not join the
group, so partitions are never revoked, no heartbeats are sent, and no thread runs: the query makes all calls. Commits
carry no generation; the coordinator accepts them only while the group has no members.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import UNKNOWN_MEMBER_ID, GroupError
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import NO_MEMBERS
from spark_group_source.group.counters import Counters
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, Phase, RequestFailed
from spark_group_source.group.rebalance_listener import RebalanceListener
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import Partitions
from spark_group_source.wire.metadata import Topic

log = logging.getLogger(__name__)


class ManualAssignment:
    """The assigned partitions of one query. Created when it starts, closed when it ends, never used again."""

    time_since_heartbeat = rebalanced_at = None
    """No heartbeats are sent, and nothing is rebalanced."""
    has_assignment, last_failure = True, ""
    """The assignment is known from the start, and no request of a membership can fail."""

    def __init__(self, clients: KafkaClients, settings: GroupSettings, clock: Clock = monotonic) -> None:
        self.counters = Counters()
        self._clients = clients
        self._settings = settings
        self._clock = clock
        self._state = Membership(phase=Phase.STABLE)

    def start(self, topics: Mapping[str, Topic], listener: RebalanceListener) -> None:
        """Assigns the partitions; ``topics`` are their topics.

        Raises:
            GroupError: the group has members, or may not be described.
        """
        self._check_members()
        partitions = self._settings.subscription.partitions
        self._state = Membership(phase=Phase.STABLE, owned=dict.fromkeys(partitions, 0))
        log.info(
            "group %s: reading %d partition(s) of 'assign' without joining the group",
            self._settings.group_id,
            len(partitions),
        )
        listener.partitions_assigned(
            partitions, self._state, Deadline.after(self._settings.session_timeout, self._clock)
        )

    def _check_members(self) -> None:
        group = self._clients.offsets.describe(Deadline.after(self._settings.wire.request_timeout, self._clock))
        if isinstance(group, RequestFailed):
            if group.action is ErrorAction.FATAL:
                assert group.error is not None, "a fatal failure has an error"
                raise group.error
            # The query continues, as after any error that may pass: if the group has members, each commit fails.
            log.warning(
                "group %s: cannot check whether the group has members, which would make each commit fail: %s",
                self._settings.group_id,
                group.reason,
            )
        elif group.members_hidden:
            raise GroupError(
                f"The group '{self._settings.group_id}' has members, whose topics this principal may not describe.",
                f"{NO_MEMBERS}.",
                error_code=UNKNOWN_MEMBER_ID,
            )
        elif group.members:
            raise GroupError(
                f"The group '{self._settings.group_id}' has {group.clients}.",
                f"{NO_MEMBERS}.",
                error_code=UNKNOWN_MEMBER_ID,
            )

    def snapshot(self) -> Membership:
        """All partitions are owned."""
        return self._state

    def await_assignment(self, deadline: Deadline) -> bool:
        """The assignment is known at once."""
        return True

    def plan(self, partitions: Partitions, me: Membership) -> Partitions:
        """The next batch may read all partitions."""
        return partitions

    def commit_rejected(self, me: Membership, failure: RequestFailed, deadline: Deadline) -> None:
        """Does nothing, because no membership can be lost: the commit is retried."""

    def commits_changed(self) -> None:
        """Does nothing, because no revocation waits for a commit."""

    def close(self) -> None:
        """Closes the connections. Further calls do nothing."""
        self._clients.cluster.close()
