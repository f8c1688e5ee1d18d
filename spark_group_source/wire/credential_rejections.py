"""When a broker's refusal of this client is final, and when it is retried.

Settings that have never worked are wrong: their first refusal is final. Settings that have worked are refused too by a
broker that has just started and has not loaded its SCRAM users, or while a certificate, a truststore or a login
configuration is being replaced. Such a refusal passes, so it is retried.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, monotonic
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable
from spark_group_source.wire.settings import WireOptions

log = logging.getLogger(__name__)

REFUSED_FOR = 300.0
"""Seconds without any success after which the refusal of settings that have worked is final."""

WARN_EVERY = 60.0

_worked: set[WireOptions] = set()
"""Settings with which this process has been accepted by a broker."""


class CredentialRejections:
    """The refusals that one cluster met in a row. A success is a new connection to any broker, or an answer of any.

    Args:
        before_success: seconds for which a refusal is retried in a process that no broker has accepted yet. It is for
            tasks, whose settings have worked on the driver.
    """

    def __init__(self, options: WireOptions, before_success: float = 0.0, clock: Clock = monotonic) -> None:
        self._options = options
        self._before_success = before_success
        self._clock = clock
        self._first: float | None = None
        self._last = 0.0
        self._warned_at: float | None = None

    def accepted(self) -> None:
        """A broker accepted these settings."""
        _worked.add(self._options)
        self._first = None

    def retriable(self, error: AuthenticationFailed, answered_at: float | None) -> BrokerUnavailable:
        """The refusal as an error that is retried.

        Args:
            answered_at: when any broker last answered this cluster.

        Raises:
            AuthenticationFailed: it is final.
        """
        now = self._clock()
        first = now if self._first is None else self._first
        # Brokers that were all down since the last refusal have neither refused nor accepted.
        if (answered_at is not None and answered_at > first) or now - self._last > REFUSED_FOR:
            first = now
        self._first, self._last = first, now
        bound = REFUSED_FOR if self._options in _worked else self._before_success
        if bound == 0:
            raise error
        if now - first >= bound:
            lasted = f"No broker has accepted this client for {now - first:.0f} s."
            raise AuthenticationFailed(f"{error.happened} {lasted}", error.action)
        if self._warned_at is None or now - self._warned_at >= WARN_EVERY:
            self._warned_at = now
            log.warning("settings that worked before are refused; retrying for up to %.0f s: %s", bound, error)
        return BrokerUnavailable(error.happened, error.action)
