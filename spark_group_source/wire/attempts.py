"""When a broker that could not be reached is tried again, and how long it may then take."""

from __future__ import annotations

from dataclasses import dataclass

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.settings import WireOptions

Address = tuple[str, int]

MOST_DOUBLINGS = 20
"""Beyond this many failures nothing grows any more."""


@dataclass(frozen=True, slots=True)
class _Failed:
    times: int
    again_at: float
    happened: str
    action: str


class Attempts:
    """Failures in a row, by a broker's address. Pauses and times double with each, as in Kafka's own client."""

    def __init__(self, options: WireOptions, clock: Clock = monotonic) -> None:
        self._options = options
        self._clock = clock
        self._failed: dict[Address, _Failed] = {}

    def check(self, address: Address) -> None:
        """Whether it may be tried now.

        Raises:
            BrokerUnavailable: it failed a moment ago; says what the last try did.
        """
        failed = self._failed.get(address)
        if failed is not None and self._clock() < failed.again_at:
            raise BrokerUnavailable(failed.happened, failed.action)

    def timeout(self, address: Address) -> float:
        """Seconds that the next connection may take."""
        own = self._options
        return min(own.connect_timeout * self._growth(address), own.connect_timeout_max)

    def failed(self, address: Address, error: BrokerUnavailable | DeadlineExceeded) -> None:
        """It could not be reached."""
        own = self._options
        pause = min(own.reconnect_backoff * self._growth(address), own.reconnect_backoff_max)
        times = self._failed[address].times if address in self._failed else 0
        # Not the error itself: its traceback would keep the connection alive.
        self._failed[address] = _Failed(times + 1, self._clock() + pause, error.happened, error.action)

    def succeeded(self, address: Address) -> None:
        """It was reached."""
        self._failed.pop(address, None)

    def _growth(self, address: Address) -> float:
        failed = self._failed.get(address)
        return 2.0 ** min(failed.times, MOST_DOUBLINGS) if failed else 1.0
