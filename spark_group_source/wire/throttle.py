"""How long a broker stops reading from a connection, because the client exceeds a quota (KIP-219).

The broker responds at once, puts the throttle time into the response, and reads the next request after that time. A
request sent earlier would only time out, and the source would replace the connection without need.
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
        peer: names the broker in errors.
    """

    def __init__(self, peer: str, clock: Clock = monotonic) -> None:
        self._peer = peer
        self._clock = clock
        self._until = 0.0
        self._logged_at: float | None = None

    def record(self, seconds: float) -> None:
        """Notes the throttle time of a response."""
        if seconds <= 0:
            return
        now = self._clock()
        self._until = max(self._until, now + seconds)
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log.warning("broker %s throttles this client, now for %.1f s: a quota is exceeded", self._peer, seconds)

    def remaining(self) -> float:
        """Returns the seconds until the broker reads again."""
        return max(0.0, self._until - self._clock())

    def wait(self, request: str, deadline: Deadline) -> None:
        """Waits until the broker reads again.

        Raises:
            DeadlineExceeded: at once, if the broker does not read again before the deadline.
            Interrupted: the deadline's wakeup was set first.
        """
        remaining = self.remaining()
        if remaining == 0.0:
            return
        if deadline.remaining() < remaining:
            raise DeadlineExceeded(
                f"{request} was not sent: broker {self._peer} throttles this client for another {remaining:.1f} s.",
                "Raise the brokers' quota for this user or client id.",
            )
        sleep(remaining, deadline)
