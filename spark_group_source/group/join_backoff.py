"""The backoff before a join if many came before without a successful heartbeat."""

from __future__ import annotations

from spark_group_source.clock import Backoff, Clock, Deadline, Wakeup
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire.waiting import sleep

PROMPT_JOINS = 4
"""Joins in a row, without a successful heartbeat, that need no backoff: a new member of the classic protocol needs two,
and a revocation two more. Without this limit, a coordinator that contradicts itself would get thousands a second."""


class JoinBackoff:
    """The joins in a row of one member. All methods are for the member's thread."""

    def __init__(self, settings: GroupSettings, clock: Clock, wakeup: Wakeup | None) -> None:
        """``wakeup`` ends every wait once the query ends."""
        self._clock = clock
        self._wakeup = wakeup
        self._backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)
        self._skip = False

    def wait(self) -> None:
        """Waits before a join, if it is not one of the first."""
        seconds = self._backoff.next()
        if self._backoff.failures > PROMPT_JOINS and not self._skip:
            sleep(seconds, Deadline.after(seconds, self._clock, self._wakeup))
        self._skip = False

    def skip(self) -> None:
        """The next join needs no backoff: the member has just waited for the backoff of a failed request."""
        self._skip = True

    def reset(self) -> None:
        """A heartbeat succeeded: the next joins need no backoff."""
        self._backoff.reset()
