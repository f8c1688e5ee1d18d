"""When a broker that could not be reached is tried again, and how long it may then take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.backoff import CHANCE, Backoff, doubled
from spark_group_source.wire.settings import WireOptions

Address = tuple[str, int]


@dataclass(slots=True)
class _Failed:
    backoff: Backoff
    again_at: float = 0.0
    happened: str = ""
    action: str = ""


class ReconnectBackoff:
    """Failures in a row, by a broker's address. Pauses and times double with each, as in Kafka's own client.

    Args:
        chance: as of :class:`Backoff`.
    """

    def __init__(
        self, options: WireOptions, clock: Clock = monotonic, chance: Callable[[], float] = CHANCE.random
    ) -> None:
        self._options = options
        self._clock = clock
        self._chance = chance
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
        failed = self._failed.get(address)
        times = failed.backoff.failures if failed else 0
        return doubled(self._options.connect_timeout, self._options.connect_timeout_max, times)

    def failed(self, address: Address, error: BrokerUnavailable | DeadlineExceeded) -> None:
        """It could not be reached."""
        own = self._options
        failed = self._failed.get(address)
        if failed is None:
            backoff = Backoff(own.reconnect_backoff, own.reconnect_backoff_max, chance=self._chance)
            failed = self._failed[address] = _Failed(backoff)
        failed.again_at = self._clock() + failed.backoff.next()
        # Not the error itself: its traceback would keep the connection alive.
        failed.happened, failed.action = error.happened, error.action

    def succeeded(self, address: Address) -> None:
        """It was reached."""
        self._failed.pop(address, None)
