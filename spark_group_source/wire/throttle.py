"""How long a broker reads nothing from a connection, because its client exceeds a quota (KIP-219).

The broker answers at once, gives the throttle time in the answer, and reads the next request when that time is over. A
request sent before would only time out, and the connection would be replaced without need.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)

LOG_EVERY = 60.0


class Throttle:
    """The throttling of one connection.

    Args:
        peer: what errors call the broker.
    """

    def __init__(self, peer: str, clock: Clock = monotonic) -> None:
        self._peer = peer
        self._clock = clock
        self._until = 0.0
        self._logged_at: float | None = None

    def answered(self, seconds: float) -> None:
        """An answer gave this throttle time."""
        if seconds <= 0:
            return
        now = self._clock()
        self._until = max(self._until, now + seconds)
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log.warning("broker %s throttles this client, now for %.1f s: a quota is exceeded", self._peer, seconds)

    def remaining(self) -> float:
        """Seconds until the broker reads again."""
        return max(0.0, self._until - self._clock())

    def wait(self, request: str, deadline: Deadline) -> None:
        """Waits until the broker reads again.

        Raises:
            DeadlineExceeded: it does not before the deadline. This is not waited for.
            Interrupted: the deadline's wakeup was set first.
        """
        rest = self.remaining()
        if rest == 0.0:
            return
        if deadline.remaining() < rest:
            raise DeadlineExceeded(
                f"{request} was not sent: broker {self._peer} throttles this client for another {rest:.1f} s.",
                "Raise the brokers' quota for this user or client id.",
            )
        sleep(rest, deadline)
