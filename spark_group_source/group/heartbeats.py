"""When a member's next heartbeat is due, when its requests last succeeded, and what the log says while they fail."""

from __future__ import annotations

import logging

from spark_group_source.clock import WARN_EVERY, Backoff, Clock, LogEvery
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.settings import GroupSettings

log = logging.getLogger(__name__)


class HeartbeatSchedule:
    """One member's heartbeats, ``interval`` seconds apart. All methods are for the member's thread.

    ``next_heartbeat`` is when the next one is due, in seconds of the clock.
    """

    def __init__(self, interval: float, clock: Clock) -> None:
        self.interval = interval
        self.next_heartbeat = 0.0
        self._clock = clock

    def try_acquire(self, throttled: float) -> bool:
        """Whether a heartbeat is due; then the caller sends it, and the next is due after the interval.

        While the broker throttles this client, for ``throttled`` seconds, it reads no request: the heartbeat is due
        when that time ends.
        """
        if self._clock() < self.next_heartbeat:
            return False
        if throttled:
            self.next_heartbeat = self._clock() + throttled
            return False
        self.schedule_next()
        return True

    def schedule_next(self) -> None:
        """The next heartbeat is due after the interval."""
        self.next_heartbeat = self._clock() + self.interval

    def schedule_within(self, seconds: float) -> None:
        """The next heartbeat is due after at most so many seconds."""
        self.next_heartbeat = min(self.next_heartbeat, self._clock() + seconds)

    def schedule_now(self) -> None:
        """The next heartbeat is due at once."""
        self.next_heartbeat = self._clock()


class HeartbeatState:
    """When a request of one member last succeeded, and how it retries. Written by the member's thread alone."""

    def __init__(self, settings: GroupSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._warnings = LogEvery(WARN_EVERY, clock)
        self._backoff = Backoff(settings.wire.retry_backoff, settings.wire.retry_backoff_max)
        self.record_success()

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the response to the last successful heartbeat or SyncGroup. Caller: anybody.

        A heartbeat also succeeds with REBALANCE_IN_PROGRESS while a revocation is pending.
        """
        return self._clock() - self._succeeded_at

    def record_success(self) -> None:
        """A heartbeat or SyncGroup succeeded."""
        self._succeeded_at = self._clock()
        self._logged_action: ErrorAction | None = None
        self._warnings.restart()
        self._backoff.reset()

    def log_failure(self, failure: RequestFailed) -> None:
        """Logs each kind of failure once, and a warning each minute without success.

        An error that leads to a join at once is logged with DEBUG: the line on the join has the reason.
        """
        quiet = failure.action in (ErrorAction.MEMBER_ID_REQUIRED, ErrorAction.REJOIN, self._logged_action)
        self._logged_action = failure.action
        log.log(logging.DEBUG if quiet else logging.INFO, "group %s: %s", self._settings.group_id, failure.reason)
        if self._warnings.try_acquire():
            log.warning(
                "group %s: no successful heartbeat for %.0f s, still retrying: %s",
                self._settings.group_id,
                self.time_since_heartbeat,
                failure.reason,
            )

    def next_backoff(self) -> float:
        """Seconds to wait before the next request; they double with each retry until one succeeds."""
        return self._backoff.next()
