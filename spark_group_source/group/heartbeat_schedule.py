"""When the next heartbeat of a member is due."""

from __future__ import annotations

from spark_group_source.clock import Clock


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
