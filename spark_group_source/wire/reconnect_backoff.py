"""When to reconnect to a broker that could not be reached, and how long the connection may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_group_source.clock import RANDOM, Backoff, Clock, exponential, monotonic
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded
from spark_group_source.wire.settings import WireOptions

Address = tuple[str, int]


@dataclass(slots=True)
class _Failures:
    """The failures of one address in a row; ``happened`` and ``action`` are those of the last error."""

    backoff: Backoff
    retry_at: float = 0.0
    happened: str = ""
    action: str = ""


class ReconnectBackoff:
    """Failures in a row, by broker address. Each failure doubles the backoff and the timeout, as in Kafka's own client.

    Args:
        chance: as for :class:`Backoff`.
    """

    def __init__(
        self, options: WireOptions, clock: Clock = monotonic, chance: Callable[[], float] = RANDOM.random
    ) -> None:
        self._options = options
        self._clock = clock
        self._chance = chance
        self._failures: dict[Address, _Failures] = {}

    def check(self, address: Address) -> None:
        """Checks that a connection to this address may be tried now.

        Raises:
            BrokerUnavailable: the backoff has not passed yet; the text is that of the last error.
        """
        failures = self._failures.get(address)
        if failures is not None and self._clock() < failures.retry_at:
            raise BrokerUnavailable(failures.happened, failures.action)

    def connect_timeout(self, address: Address) -> float:
        """Returns how many seconds the next connection may take."""
        failures = self._failures.get(address)
        count = failures.backoff.failures if failures else 0
        return exponential(self._options.connect_timeout, self._options.connect_timeout_max, count)

    def record_failure(self, address: Address, error: BrokerUnavailable | DeadlineExceeded) -> None:
        """Starts the next backoff of this address."""
        failures = self._failures.get(address)
        if failures is None:
            initial, maximum = self._options.reconnect_backoff, self._options.reconnect_backoff_max
            failures = self._failures[address] = _Failures(Backoff(initial, maximum, chance=self._chance))
        failures.retry_at = self._clock() + failures.backoff.next()
        # Not the error itself: its traceback would keep the connection alive.
        failures.happened, failures.action = error.happened, error.action

    def record_success(self, address: Address) -> None:
        """Forgets the failures of this address."""
        self._failures.pop(address, None)
