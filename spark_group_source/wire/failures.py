"""Brokers that failed: whether a rejection of this client is final, and when to connect again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from spark_group_source.clock import RANDOM, WARN_EVERY, Backoff, Clock, LogEvery, exponential, monotonic
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, GroupSourceError, RetriableError
from spark_group_source.grace import Grace
from spark_group_source.wire.settings import WireOptions

log = logging.getLogger(__name__)

_worked: set[WireOptions] = set()
"""Settings that a broker has accepted from this process."""


class AuthFailures:
    """The rejections in a row of one cluster's brokers, by the rule of :mod:`spark_group_source.grace`. A new
    connection to any broker, or a response, is a success.

    Args:
        before_success: how many seconds to retry before any broker has accepted this process. Tasks use this, because
            their settings have worked on the driver.
    """

    def __init__(self, options: WireOptions, before_success: float = 0.0, clock: Clock = monotonic) -> None:
        self._options = options
        self._grace = Grace(before_success, clock)
        self._warnings = LogEvery(WARN_EVERY, clock)

    def record_success(self) -> None:
        """Notes that a broker accepted these settings."""
        _worked.add(self._options)
        self._grace.record_success()

    def as_retriable(self, error: AuthenticationFailed, responded_at: float | None) -> BrokerUnavailable:
        """Counts a rejection and returns it as an error that callers retry.

        Args:
            responded_at: when any broker last responded to this cluster.

        Raises:
            AuthenticationFailed: the rejection is final.
        """
        if self._options in _worked:
            self._grace.worked = True
        rejection = self._grace.record_rejection(responded_at)
        if rejection.timeout == 0:
            raise error
        if rejection.final:
            happened = f"{error.happened} No broker has accepted this client for {rejection.lasted:.0f} s."
            raise AuthenticationFailed(happened, error.action)
        if self._warnings.try_acquire():
            log.warning(
                "brokers reject settings that worked before; retrying for up to %.0f s: %s", rejection.timeout, error
            )
        return BrokerUnavailable(error.happened, error.action)


Address = tuple[str, int]


@dataclass(slots=True)
class _Failures:
    """The failures of one address in a row; ``kind``, ``happened`` and ``action`` are those of the last error."""

    backoff: Backoff
    retry_at: float = 0.0
    kind: type[BrokerUnavailable] = BrokerUnavailable
    happened: str = ""
    action: str = ""


REJECTED_BACKOFF = 10.0
"""Minimum seconds between two attempts at a broker that rejects settings that never worked."""


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
