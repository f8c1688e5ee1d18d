"""Whether a broker's rejection of this client is final."""

from __future__ import annotations

import logging

from spark_group_source.clock import WARN_EVERY, Clock, LogEvery, monotonic
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable
from spark_group_source.grace import Grace
from spark_group_source.wire.wire_options import WireOptions

log = logging.getLogger(__name__)

_worked: set[WireOptions] = set()
"""Settings that a broker has accepted from this process."""

_rejected: set[WireOptions] = set()
"""Settings that a broker has rejected from this process."""


class AuthFailures:
    """Counts the rejections in a row by one cluster's brokers, and retries them by the rule of
    :mod:`spark_group_source.grace`. A new connection to any broker, or a response, is a success.

    Args:
        before_success: how many seconds to retry before any broker has accepted this process. Tasks use this, because
            their settings have worked on the driver.
    """

    def __init__(self, options: WireOptions, before_success: float = 0.0, clock: Clock = monotonic) -> None:
        self._options = options
        self._grace = Grace(before_success, clock)
        self._warnings = LogEvery(WARN_EVERY, clock)

    @property
    def reached(self) -> bool:
        """Whether any broker has accepted or rejected these settings from this process: a rejection is an answer."""
        return self._options in _worked or self._options in _rejected

    def record_success(self) -> None:
        """Notes that a broker accepted these settings."""
        _worked.add(self._options)
        self._grace.record_success()

    def as_retriable(self, error: AuthenticationFailed, responded_at: float | None) -> BrokerUnavailable:
        """Counts a rejection and returns it as an error that callers retry.

        Args:
            responded_at: when any broker of the cluster last responded.

        Raises:
            AuthenticationFailed: the rejection is final.
        """
        _rejected.add(self._options)
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
