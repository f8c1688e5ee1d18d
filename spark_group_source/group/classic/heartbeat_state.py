"""How a membership is doing: when the group last took something of it, and how long to wait where it refuses."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire.backoff import Backoff

log = logging.getLogger(__name__)

WARN_EVERY = 60.0
"""Seconds between two warnings while the group refuses what this member asks, for example the instance id of a member
that still holds it."""


class HeartbeatState:
    """Successes and refusals of one member. Written by the member's thread alone."""

    def __init__(self, settings: GroupSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._heard_at = clock()
        self._warn_at = self._heard_at + WARN_EVERY
        self._said: ErrorAction | None = None
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)

    @property
    def silence(self) -> float:
        """Seconds since the coordinator last answered a sync or a heartbeat. Caller: anybody."""
        return self._clock() - self._heard_at

    def well(self) -> None:
        """The group has taken a sync or a heartbeat."""
        self._heard_at = self._clock()
        self._said = None
        self._warn_at = self._heard_at + WARN_EVERY
        self._backoff.reset()

    def refused(self, refused: RequestFailed) -> None:
        """The group has refused a request: says so once, and loudly each minute that it goes on.

        Nothing is said of what leads to a join at once: the line on the join tells why.
        """
        quiet = refused.action in (ErrorAction.MEMBER_ID_REQUIRED, ErrorAction.REJOIN, self._said)
        self._said = refused.action
        log.log(logging.DEBUG if quiet else logging.INFO, "group %s: %s", self._settings.group_id, refused.why)
        if self._clock() >= self._warn_at:
            self._warn_at = self._clock() + WARN_EVERY
            log.warning(
                "group %s: no success for %.0f s, and tried on: %s", self._settings.group_id, self.silence, refused.why
            )

    def pause(self) -> float:
        """Seconds to wait before the next try; they double from one to the next until there is a success."""
        return self._backoff.next()
