"""A member's heartbeats, and how long they keep the session.

Heartbeats normally go over the connection of the other membership requests. While a JoinGroup or SyncGroup is pending
there, they are sent on a second connection.
"""

from __future__ import annotations

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.group.classic.events import HeartbeatSucceeded
from spark_group_source.group.classic.handshake import ClassicMembership
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.coordinator_client import WhileWaiting
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed, Tick
from spark_group_source.group.membership import NO_GENERATION, Membership
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership


class Heartbeats:
    """Sends the heartbeats of one member. All methods are for the member's thread.

    ``session_ends`` is when the session ends according to the last successful request: one session timeout after it was
    sent, in the clock's seconds.
    """

    def __init__(
        self,
        requests: MembershipRequests,
        shared: SharedMembership[ClassicMembership],
        settings: GroupSettings,
        clock: Clock,
        wakeup: Wakeup,
    ) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self._requests = requests
        self._shared = shared
        self._settings = settings
        self._clock = clock
        self._wakeup = wakeup
        self.session_ends = 0.0

    def note_sync_sent(self) -> None:
        """Notes when the session ends if the SyncGroup that is sent now succeeds."""
        self.session_ends = self._clock() + self._settings.session_timeout

    def send(self, me: Membership, *, join_or_sync_pending: bool = False) -> RequestFailed | None:
        """Sends a heartbeat, and extends the session if the coordinator knows ``me``; ``None`` if it succeeded."""
        session_ends = self._clock() + self._settings.session_timeout
        deadline = Deadline.after(self._settings.heartbeat_timeout, self._clock, self._wakeup)
        failure = self._requests.heartbeat(me, deadline, join_or_sync_pending=join_or_sync_pending)
        # Only members get REBALANCE_IN_PROGRESS: it keeps the session too.
        if failure is None or failure.action is ErrorAction.REJOIN:
            self.session_ends = session_ends
            self._shared.post(HeartbeatSucceeded(me.generation, session_ends))
        return failure

    def while_join_or_sync_waits(self, me: Membership) -> WhileWaiting:
        """Heartbeats on the second connection, to check that the coordinator still knows ``me``.

        A pending JoinGroup or SyncGroup proves nothing: it may be lost with its connection, and other members own the
        partitions by now.
        """

        def heartbeat() -> RequestFailed | None:
            self._shared.post(Tick())
            if self._shared.membership.generation != me.generation:
                return RequestFailed(ErrorAction.REDISCOVER, self._shared.membership.reason)
            # The coordinator accepts no heartbeat of a new member before its join is complete.
            joins_as_new = me.generation == NO_GENERATION
            failure = self._find_coordinator() if joins_as_new else self.send(me, join_or_sync_pending=True)
            if failure is not None and failure.action in (
                ErrorAction.RESET_GENERATION,
                ErrorAction.RESET_MEMBER_ID,
                ErrorAction.FATAL,
            ):
                return failure
            if self._requests.coordinator_moved:
                return RequestFailed(ErrorAction.REDISCOVER, "another broker is the group's coordinator now")
            return None

        return WhileWaiting(heartbeat, self._settings.heartbeat_interval)

    def _find_coordinator(self) -> RequestFailed | None:
        deadline = Deadline.after(self._settings.heartbeat_timeout, self._clock, self._wakeup)
        return self._requests.find_coordinator(deadline)
