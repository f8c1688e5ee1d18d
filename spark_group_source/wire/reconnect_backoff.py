"""When to connect again to brokers that failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_group_source.clock import RANDOM, Backoff, Clock, exponential, monotonic
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, GroupSourceError, RetriableError
from spark_group_source.wire.reachability import Address
from spark_group_source.wire.wire_options import WireOptions


@dataclass(slots=True)
class _Failures:
    """The failures of one address in a row; ``kind``, ``happened`` and ``action`` are those of the last error."""

    backoff: Backoff
    retry_at: float = 0.0
    kind: type[BrokerUnavailable] = BrokerUnavailable
    happened: str = ""
    action: str = ""


REJECTED_BACKOFF = 10.0
"""Minimum seconds between two attempts to sign in with settings that have never worked."""


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
            BrokerUnavailable: the backoff still lasts. The error has the text of the last failure.
        """
        failures = self._failures.get(address)
        if failures is not None and self._clock() < failures.retry_at:
            raise failures.kind(failures.happened, failures.action)

    def connect_timeout(self, address: Address) -> float:
        """Returns how many seconds the next connection may take."""
        failures = self._failures.get(address)
        count = failures.backoff.failures if failures else 0
        return exponential(self._options.connect_timeout, self._options.connect_timeout_max, count)

    def record_failure(self, address: Address, error: RetriableError) -> None:
        """Starts the next backoff of this address."""
        self._record(address, error, minimum=0.0)

    def record_rejection(self, address: Address, error: AuthenticationFailed) -> None:
        """As :meth:`record_failure`, for at least :data:`REJECTED_BACKOFF` seconds: brokers may lock an account."""
        self._record(address, error, minimum=REJECTED_BACKOFF)

    def _record(self, address: Address, error: GroupSourceError, minimum: float) -> None:
        failures = self._failures.get(address)
        if failures is None:
            initial, maximum = self._options.reconnect_backoff, self._options.reconnect_backoff_max
            failures = self._failures[address] = _Failures(Backoff(initial, maximum, chance=self._chance))
        failures.retry_at = self._clock() + max(failures.backoff.next(), minimum)
        # Not the error itself: its traceback would keep the connection alive.
        failures.kind = type(error) if isinstance(error, BrokerUnavailable) else BrokerUnavailable
        failures.happened, failures.action = error.happened, error.action

    def record_success(self, address: Address) -> None:
        """Forgets the failures of this address."""
        self._failures.pop(address, None)
