"""When the next heartbeat is due, and what follows if a request of the membership fails: backoffs and log lines.

The ``_heartbeat`` of a group protocol sends the heartbeat: :mod:`.classic.protocol`, :mod:`.consumer.protocol`.
"""

from __future__ import annotations

import logging
import math

from spark_group_source.clock import WARN_EVERY, Backoff, Clock, Deadline, LogEvery, Wakeup
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)


PROMPT_JOINS = 4
"""Maximum number of joins in a row, without a successful heartbeat, that need no backoff: a new member of the classic
protocol needs two, and a revocation two more. Without this limit, a coordinator that contradicts itself would get
thousands of joins a second."""


class HeartbeatSchedule:
    """When the next heartbeat of one member is due, when a heartbeat last succeeded, and the backoffs of the member's
    requests. Only the member's thread may use it, except for :attr:`time_since_heartbeat` and ``last_failure``.

    ``next_heartbeat`` is when the next heartbeat is due, in seconds of the clock; heartbeats are ``interval`` seconds
    apart. ``last_failure`` is why the last request failed; empty if it succeeded.
    """

    def __init__(self, settings: GroupSettings, interval: float, clock: Clock, wakeup: Wakeup | None) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self.interval = interval
        self.next_heartbeat = 0.0
        self.last_failure = ""
        self._settings = settings
        self._clock = clock
        self._wakeup = wakeup
        self._warnings = LogEvery(WARN_EVERY, clock)
        self._backoff = Backoff(settings.wire.retry_backoff, settings.wire.retry_backoff_max)
        self._joins = Backoff(settings.wire.retry_backoff, settings.wire.retry_backoff_max)
        self._waited = False
        self.record_success()

    def try_acquire(self, throttled: float) -> bool:
        """Whether a heartbeat is due. If so, the caller must send it: the next one is due after the interval.

        A broker that throttles this client reads nothing for ``throttled`` seconds, so the heartbeat is due after that
        time.
        """
        if self._clock() < self.next_heartbeat:
            return False
        wait = self.interval
        if throttled:
            wait = throttled
        self.next_heartbeat = self._clock() + wait
        return not throttled

    def schedule_next(self, seconds: float = math.inf) -> None:
        """Makes the next heartbeat due after the interval, or after ``seconds`` if that is sooner."""
        self.next_heartbeat = self._clock() + min(self.interval, seconds)

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the response to the last successful heartbeat or SyncGroup. Caller: any thread.

        A heartbeat also succeeds with REBALANCE_IN_PROGRESS while a revocation is pending.
        """
        return self._clock() - self._succeeded_at

    def record_success(self, *, joined: bool = False) -> None:
        """Notes that a request succeeded. ``joined`` is whether it was a heartbeat after the join, and not SyncGroup or
        the join itself."""
        self._succeeded_at = self._clock()
        self.last_failure = ""
        self._logged_action: ErrorAction | None = None
        self._warnings.restart()
        self._backoff.reset()
        if joined:
            self._joins.reset()

    def log_failure(self, failure: RequestFailed) -> None:
        """Logs each kind of failure once, and a warning each minute without success.

        An error that leads to a join at once is logged with DEBUG: the line on the join has the reason.
        """
        quiet = failure.action in (ErrorAction.MEMBER_ID_REQUIRED, ErrorAction.REJOIN, self._logged_action)
        self._logged_action = failure.action
        if failure.action is not ErrorAction.MEMBER_ID_REQUIRED:
            self.last_failure = failure.reason
        level = logging.INFO
        if quiet:
            level = logging.DEBUG
        log.log(level, "group %s: %s", self._settings.group_id, failure.reason)
        if self._warnings.try_acquire():
            log.warning(
                "group %s: no successful heartbeat for %.0f s, still retrying: %s",
                self._settings.group_id,
                self.time_since_heartbeat,
                failure.reason,
            )

    def await_retry(self) -> None:
        """Waits before the retry of a request, each time twice as long as before. Then a heartbeat or a join is due."""
        self._wait(self._backoff.next())
        self._waited = True
        self.schedule_next(0.0)

    def await_join(self) -> None:
        """Waits before a join, if it is not one of the first in a row."""
        seconds = self._joins.next()
        if self._joins.failures > PROMPT_JOINS and not self._waited:
            self._wait(seconds)
        self._waited = False

    def _wait(self, seconds: float) -> None:
        sleep(seconds, Deadline.after(seconds, self._clock, self._wakeup))
