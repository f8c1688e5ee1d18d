"""A member's heartbeats: when they are sent, how long they keep the session, and what happens when requests fail.

Heartbeats normally go over the connection of the other membership requests. While a JoinGroup or SyncGroup is pending
there, they are sent on a second connection.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, Deadline, Wakeup
from spark_group_source.group.classic.events import HeartbeatSucceeded
from spark_group_source.group.classic.handshake import ClassicMembership
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.coordinator_client import WhileWaiting
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed, Tick
from spark_group_source.group.membership import Membership
from spark_group_source.group.reconciler import SESSION_TIMED_OUT
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.shared_membership import SharedMembership
from spark_group_source.wire.backoff import Backoff

log = logging.getLogger(__name__)

WARN_EVERY = 60.0
"""Seconds between two warnings while requests fail, for example because another member holds the same instance id."""


class HeartbeatState:
    """When a request of one member last succeeded, and how it retries. Written by the member's thread alone."""

    def __init__(self, settings: GroupSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._succeeded_at = clock()
        self._warn_at = self._succeeded_at + WARN_EVERY
        self._logged_action: ErrorAction | None = None
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the response to the last successful heartbeat or SyncGroup. Caller: anybody.

        A heartbeat also succeeds with REBALANCE_IN_PROGRESS while a revocation is pending.
        """
        return self._clock() - self._succeeded_at

    def record_success(self) -> None:
        """A heartbeat or SyncGroup succeeded."""
        self._succeeded_at = self._clock()
        self._logged_action = None
        self._warn_at = self._succeeded_at + WARN_EVERY
        self._backoff.reset()

    def log_failure(self, failure: RequestFailed) -> None:
        """Logs each kind of failure once, and a warning each minute without success.

        An error that leads to a join at once is logged with DEBUG: the line on the join has the reason.
        """
        quiet = failure.action in (ErrorAction.MEMBER_ID_REQUIRED, ErrorAction.REJOIN, self._logged_action)
        self._logged_action = failure.action
        log.log(logging.DEBUG if quiet else logging.INFO, "group %s: %s", self._settings.group_id, failure.reason)
        if self._clock() >= self._warn_at:
            self._warn_at = self._clock() + WARN_EVERY
            log.warning(
                "group %s: no successful heartbeat for %.0f s, still retrying: %s",
                self._settings.group_id,
                self.time_since_heartbeat,
                failure.reason,
            )

    def next_backoff(self) -> float:
        """Seconds to wait before the next request; they double with each retry until one succeeds."""
        return self._backoff.next()


class Heartbeats:
    """Sends the heartbeats of one member. All methods are for the member's thread.

    ``session_ends`` is when the session ends according to the last successful request: one session timeout after it was
    sent. ``next_heartbeat`` is when the next heartbeat is due. Both are in the clock's seconds.
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
        self.next_heartbeat = 0.0

    def note_sync_sent(self) -> None:
        """Notes when the session ends if the SyncGroup that is sent now succeeds."""
        self.session_ends = self._clock() + self._settings.session_timeout

    def try_acquire(self) -> bool:
        """Whether a heartbeat is due; then the caller sends it, and the next is due after the heartbeat interval.

        While the broker throttles this client it reads no request: the heartbeat is due when the throttle time ends.
        """
        if self._clock() < self.next_heartbeat:
            return False
        if throttled := self._requests.throttled:
            self.next_heartbeat = self._clock() + throttled
            return False
        self.schedule_next()
        return True

    def schedule_next(self) -> None:
        """The next heartbeat is due after the heartbeat interval."""
        self.next_heartbeat = self._clock() + self._settings.heartbeat_interval

    def schedule_now(self) -> None:
        """The next heartbeat is due at once."""
        self.next_heartbeat = self._clock()

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
                return RequestFailed(ErrorAction.REDISCOVER, SESSION_TIMED_OUT)
            if me.generation < 0:
                return None  # the coordinator accepts no heartbeat of a new member before its join is complete
            failure = self.send(me, join_or_sync_pending=True)
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
