"""The throttling of one connection (KIP-219).

A client that exceeds a quota gets its response at once, with a throttle time. The broker reads no request before that
time has passed. A request that is sent earlier would time out, and the client would replace the connection.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery, monotonic
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)


class Throttle:
    """The throttling of one connection.

    Args:
        peer: names the broker in errors; may be set later.
    """

    def __init__(self, peer: str, clock: Clock = monotonic) -> None:
        self.peer = peer
        self._clock = clock
        self._until = 0.0
        self._warnings = LogEvery(WARN_EVERY, clock)

    def record(self, seconds: float) -> None:
        """Notes the throttle time of a response."""
        if seconds <= 0:
            return
        self._until = max(self._until, self._clock() + seconds)
        if self._warnings.try_acquire():
            log.warning("quota exceeded: broker %s throttles this client for %.1f s", self.peer, seconds)

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
                f"{request} was not sent: broker {self.peer} throttles this client for another {remaining:.1f} s.",
                "Raise the brokers' quota for this user or client id.",
            )
        sleep(remaining, deadline)
