"""Whether a rejection by Kafka is final: of a sign-in, a certificate, or a permission on a group or topic. One rule:

- If it has never worked in this process, it is wrong, and the first rejection is final.
- If it has worked before, a rejection may pass: a broker that has just started may not have loaded its users or rules,
or somebody may be replacing a certificate, a login configuration or access rules. It is retried for
:data:`GRACE_PERIOD` seconds, with a warning at once and every minute.

A restarted query is a new process, in which nothing has worked yet.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_group_source.clock import WARN_EVERY, Clock, LogEvery, monotonic
from spark_group_source.errors import BrokerError

log = logging.getLogger(__name__)

GRACE_PERIOD = 300.0
"""Seconds without a success after which a rejection is final, if it worked before."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejection, together with those directly before it.

    Attributes:
        lasted: seconds since the first of these rejections.
        timeout: seconds for which rejections are retried: ``before_success`` of :class:`Grace` until the first success,
            then :data:`GRACE_PERIOD`.
    """

    lasted: float
    timeout: float

    @property
    def final(self) -> bool:
        """Whether a retry is useless now."""
        return self.lasted >= self.timeout


class Grace:
    """Tracks the consecutive rejections of one thing that brokers check, such as a sign-in or a permission.

    Args:
        before_success: for how many seconds rejections are retried if no attempt has succeeded in this process.

    Attributes:
        worked: whether an attempt has succeeded in this process.
    """

    def __init__(self, before_success: float = 0.0, clock: Clock = monotonic) -> None:
        self._before_success = before_success
        self._clock = clock
        self.worked = False
        self._first_at: float | None = None
        self._last_at = 0.0

    def record_success(self) -> None:
        """Notes that an attempt has succeeded."""
        self.worked = True
        self._first_at = None

    def record_rejection(self, responded_at: float | None = None) -> Rejection:
        """Counts a rejection.

        Args:
            responded_at: when a broker last accepted another thing that brokers accept and reject together with this
                one. Earlier rejections do not count.
        """
        now = self._clock()
        first_at = self._first_at
        if first_at is None or self._is_first_in_a_row(first_at, now, responded_at):
            first_at = now
        self._first_at, self._last_at = first_at, now
        timeout = self._before_success
        if self.worked:
            timeout = GRACE_PERIOD
        return Rejection(now - first_at, timeout)

    def _is_first_in_a_row(self, first_at: float, now: float, responded_at: float | None) -> bool:
        """Whether the rejections since ``first_at`` no longer count."""
        # After a long time without an answer, nobody has rejected or accepted it since the rejection before.
        if now - self._last_at > GRACE_PERIOD:
            return True
        return responded_at is not None and responded_at > first_at


class Permission:
    """One permission of a query, for example READ on a topic.

    The query's threads share it without a lock, because it makes no difference which of two simultaneous answers
    counts.

    Args:
        name: the permission, as in ``READ on topic 'orders'``.
        principal: who needs it, as in ``User:alice``; empty if unknown.
        optional: whether the query continues without the permission, because it has other work.
    """

    def __init__(self, name: str, principal: str = "", *, optional: bool = False, clock: Clock = monotonic) -> None:
        self._name = name
        self._principal = principal or "this client's principal"
        self._optional = optional
        self._grace = Grace(clock=clock)
        self._warnings = LogEvery(WARN_EVERY, clock)
        self._denied = False

    def record_granted(self) -> None:
        """Notes that a broker allowed a request that needs the permission."""
        if self._denied:
            log.info("%s has %s again", self._principal, self._name)
            self._denied = False
            self._warnings = LogEvery(WARN_EVERY, self._warnings.clock)
        self._grace.record_success()

    def record_denied(self, error: BrokerError) -> None:
        """Counts a denial, and warns of it if it is retried.

        Raises:
            BrokerError: ``error``, because the denial is final.
        """
        rejection = self._grace.record_rejection()
        if rejection.final and not self._optional:
            if rejection.timeout == 0:
                raise error
            happened = f"{error.happened} {self._name} has been missing for {rejection.lasted:.0f} s."
            raise type(error)(happened, error.action, error_code=error.error_code, topics=error.topics)
        self._denied = True
        if self._warnings.try_acquire():
            self._warn(rejection, error)

    def _warn(self, rejection: Rejection, error: BrokerError) -> None:
        if self._optional:
            log.warning(
                "%s has no %s; the query continues without this topic and checks the permission again: %s",
                self._principal,
                self._name,
                error,
            )
            return
        left = rejection.timeout - rejection.lasted
        log.warning(
            "%s no longer has %s; the query fails in %.0f s unless the permission returns: %s",
            self._principal,
            self._name,
            left,
            error,
        )
