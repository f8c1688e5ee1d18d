"""When the requests of a member last succeeded, and what the log says while they fail."""

from __future__ import annotations

import logging

from spark_group_source.clock import Backoff, Clock
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.settings import GroupSettings

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
