"""A member's session: heartbeats that keep it, and until when they do."""

from __future__ import annotations

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.coordinator_client import Watch
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed, SessionExtended, Tick
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership
from spark_group_source.group.state import SESSION_OVER, Membership


class Heartbeats:
    """The session of one member. All methods are for the member's thread.

    ``proven_until`` is when the session ends that the coordinator's last answer proves: one session after the request
    was sent. ``next_heartbeat`` is when the next one is due. Both are in the clock's seconds.
    """

    def __init__(
        self,
        coordinator: MembershipRequests,
        shared: SharedMembership,
        settings: GroupSettings,
        clock: Clock,
        wakeup: Wakeup,
    ) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self._coordinator = coordinator
        self._shared = shared
        self._settings = settings
        self._clock = clock
        self._wakeup = wakeup
        self.proven_until = 0.0
        self.next_heartbeat = 0.0

    def sent(self) -> None:
        """A request is sent now whose success proves the session."""
        self.proven_until = self._clock() + self._settings.session_timeout

    def is_due(self) -> bool:
        """Whether it is time for a heartbeat that the coordinator would read now."""
        if self._clock() < self.next_heartbeat:
            return False
        if throttled := self._coordinator.throttled:
            self.next_heartbeat = self._clock() + throttled
        return not throttled

    def kept(self) -> None:
        """The next heartbeat is due after its interval."""
        self.next_heartbeat = self._clock() + self._settings.heartbeat_interval

    def retry(self) -> None:
        """The next heartbeat is due at once."""
        self.next_heartbeat = self._clock()

    def heartbeat(self, me: Membership, *, waiting: bool = False) -> RequestFailed | None:
        """Sends a heartbeat, and notes until when it keeps the session; ``None`` where all is well."""
        session_ends = self._clock() + self._settings.session_timeout
        deadline = Deadline.after(self._settings.heartbeat_timeout, self._clock, self._wakeup)
        refused = self._coordinator.heartbeat(me, deadline, waiting=waiting)
        # A group that rebalances says so to its members only.
        if refused is None or refused.action is ErrorAction.REJOIN:
            self.proven_until = session_ends
            self._shared.post(SessionExtended(me.generation, session_ends))
        return refused

    def watch(self, me: Membership) -> Watch:
        """Makes sure that the coordinator still knows this member while a join or a sync of ``me`` is waiting there.

        The request itself proves nothing: it may be lost, on a connection that died, and others have the partitions.
        """

        def check() -> RequestFailed | None:
            self._shared.post(Tick())
            if self._shared.now.generation != me.generation:
                return RequestFailed(ErrorAction.REDISCOVER, SESSION_OVER)
            if me.generation < 0:
                return None  # a new member is none before its join is answered
            refused = self.heartbeat(me, waiting=True)
            if refused is not None and refused.action in (
                ErrorAction.RESET_GENERATION,
                ErrorAction.RESET_MEMBER_ID,
                ErrorAction.FATAL,
            ):
                return refused
            if self._coordinator.moved:
                return RequestFailed(ErrorAction.REDISCOVER, "another broker coordinates the group now")
            return None

        return Watch(check, self._settings.heartbeat_interval)
