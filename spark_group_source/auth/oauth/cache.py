"""The token that this process keeps. All connections share it, and a thread renews it before its end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_group_source.auth.oauth.token import EXPIRY_MARGIN, IssuedToken, RefreshWindow
from spark_group_source.clock import WARN_EVERY, Backoff, Clock, Deadline, LogEvery, monotonic
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupSourceError
from spark_group_source.text import Secret
from spark_group_source.wire.security import ExportedToken
from spark_group_source.wire.waiting import JOIN_INTERVAL, sleep

log = logging.getLogger(__name__)

IDLE_TIMEOUT = 3600.0
"""Seconds without a new connection after which renewals end, for example in a process whose query has ended."""

_REACH_ENDPOINT = "Check that this machine can reach it, and that it answers within seconds."
_THREADS = "Raise the limit of threads or processes of this user or container."


@dataclass(frozen=True, slots=True, repr=False)
class _Kept:
    """A token, with the time until which it is usable, shortly before its end."""

    text: str
    usable_until: float
    refresh_at: float


class TokenCache:
    """The token of one OAuth client in this process. Caller: any thread.

    All requests run in one thread, so that one request serves all connections, and a request that hangs blocks one
    thread only.

    Args:
        request: requests a token, which takes a limited time. Its argument is whether this process has had a token.
        name: names the token endpoint in errors and log lines.
        backoff: the first and the maximum seconds between requests that fail.
    """

    def __init__(
        self,
        request: Callable[[bool], IssuedToken],
        name: str,
        window: RefreshWindow,
        backoff: tuple[float, float],
        clock: Clock = monotonic,
    ) -> None:
        self._request = request
        self._name = name
        self._window = window
        self._backoff_limits = backoff
        self._clock = clock
        # Guards everything below.
        self._condition = threading.Condition()
        self._running = False
        self._requesting = False
        self._requested_at = 0.0
        self._kept: _Kept | None = None
        self._answers = 0
        self._error: GroupSourceError | None = None
        self._failures = 0
        self._backoff = Backoff(*backoff)
        self._retry_at = 0.0
        self._used_at = clock()
        self._warnings = LogEvery(WARN_EVERY, clock)

    def fetch(self, deadline: Deadline) -> str:
        """Returns the kept token; waits for a new one only if none is valid.

        Raises:
            DeadlineExceeded: no answer came in time.
            GroupSourceError: the last request failed. Until the backoff has passed, no other request is sent.
            Interrupted: the deadline's wakeup was set first.
        """
        with self._condition:
            self._used_at = self._clock()
            answers = self._answers
            while True:
                kept = self._valid()
                if kept is not None:
                    if self._clock() >= kept.refresh_at:
                        self._ensure_running()
                    return kept.text
                self._raise_last_error(answers)
                self._ensure_running()
                if deadline.expired():
                    raise DeadlineExceeded(f"The {self._name} did not answer in time.", _REACH_ENDPOINT)
                self._condition.wait(min(JOIN_INTERVAL, deadline.remaining()))
                sleep(0.0, deadline)

    def _raise_last_error(self, answers: int) -> None:
        """Raises the error of the last request, if the endpoint has answered since ``answers`` or during a backoff."""
        backing_off = self._is_backing_off()
        if self._error is None:
            return
        if backing_off or self._answers != answers:
            raise type(self._error)(self._error.happened, self._error.action) from self._error

    def _is_backing_off(self) -> bool:
        if self._requesting:
            return False
        return self._clock() < self._retry_at

    def record_rejection(self, text: str) -> None:
        """Renews the kept token early if a broker rejected it, for example because the provider changed its keys.

        The token stays in use until a new one comes, because other brokers may accept it.
        """
        with self._condition:
            kept = self._kept
            if kept is None:
                return
            if kept.text != text:
                return
            # A broker that rejects every token must not cause more requests than a failing provider.
            self._kept = _Kept(kept.text, kept.usable_until, max(self._clock(), self._retry_at))
            self._condition.notify_all()

    def export_token(self) -> ExportedToken | None:
        """Returns the kept token for other processes, or ``None`` if none is valid.

        An export counts as a use, because tasks need a token even if the driver no longer opens connections.
        """
        with self._condition:
            self._used_at = now = self._clock()
            kept, shift = self._valid(), time.time() - now
            if self._is_renewal_due(now):
                with contextlib.suppress(BrokerUnavailable):  # the next connection reports it
                    self._ensure_running()
            if kept is None:
                return None
            # Tasks renew a token later than the driver, which gives its new token to the next task.
            refresh_at = (kept.refresh_at + kept.usable_until) / 2
            return ExportedToken(Secret(kept.text), kept.usable_until + shift, refresh_at + shift)

    def _is_renewal_due(self, now: float) -> bool:
        if self._kept is None:
            return False
        return now >= max(self._kept.refresh_at, self._retry_at)

    def import_token(self, shared: ExportedToken) -> None:
        """Keeps the token of another process, unless the kept token is valid for longer."""
        with self._condition:
            shift = self._clock() - time.time()
            usable_until = shared.usable_until + shift
            if usable_until <= self._clock():
                return
            if self._kept is not None and self._kept.usable_until >= usable_until:
                return
            self._kept = _Kept(shared.text.text, usable_until, shared.refresh_at + shift)
            self._error, self._failures = None, 0
            self._condition.notify_all()

    def _valid(self) -> _Kept | None:
        if self._kept is None:
            return None
        if self._clock() >= self._kept.usable_until:
            return None
        return self._kept

    def _ensure_running(self) -> None:
        if self._running:
            return
        try:
            threading.Thread(target=self._run, name="oauth-token", daemon=True).start()
        except RuntimeError as error:
            happened = f"No thread for requests to the {self._name} can be started: {error}."
            raise BrokerUnavailable(happened, _THREADS) from error
        self._running = True

    def _run(self) -> None:
        """Requests a token when one is due, until there is nothing to wait for."""
        while True:
            outcome = self._ask()
            with self._condition:
                self._record(outcome)
                if not self._wait_until_due():
                    self._running = False
                    return

    def _ask(self) -> IssuedToken | GroupSourceError:
        with self._condition:
            self._requesting, self._requested_at = True, self._clock()
            worked_before = self._kept is not None
        try:
            return self._request(worked_before)
        except GroupSourceError as error:
            return error
        # Any failure must reach the waiting threads. Its text may hold a secret.
        except Exception as error:
            return BrokerUnavailable(f"A request to the {self._name} failed: {type(error).__name__}.", _REACH_ENDPOINT)

    def _record(self, outcome: IssuedToken | GroupSourceError) -> None:
        now = self._clock()
        self._requesting = False
        self._answers += 1
        if isinstance(outcome, IssuedToken):
            self._record_token(outcome, now)
        else:
            self._record_failure(outcome, now)
        self._condition.notify_all()

    def _record_token(self, token: IssuedToken, now: float) -> None:
        if self._failures:
            log.info("%s answers again after %d failed requests", self._name, self._failures)
        log.info("%s issued a token%s that is valid for %.0f s", self._name, token.holder, token.lifetime)
        margin = min(EXPIRY_MARGIN, token.lifetime / 10)
        refresh_after = min(self._window.delay(token.lifetime), token.lifetime - 2 * margin)
        # The lifetime is measured from the request, because the endpoint measures it from before its answer arrives.
        begin = self._requested_at
        self._kept = _Kept(token.text, begin + token.lifetime - margin, begin + refresh_after)
        self._error, self._failures = None, 0
        self._warnings = LogEvery(WARN_EVERY, self._clock)
        self._backoff = Backoff(*self._backoff_limits)
        self._retry_at = now + self._backoff_limits[1]

    def _record_failure(self, error: GroupSourceError, now: float) -> None:
        self._error = error
        self._failures += 1
        self._retry_at = now + self._backoff.next()
        self._warn(now)

    def _warn(self, now: float) -> None:
        """Warns of failed requests. Without a valid token, no warning is needed, because the caller of :meth:`fetch`
        gets the error."""
        kept = self._valid()
        if kept is None:
            return
        if not self._warnings.try_acquire():
            return
        log.warning(
            "%d requests for a new token failed in a row, retrying before the old token expires in %.0f s: %s",
            self._failures,
            kept.usable_until - now,
            self._error,
        )

    def _wait_until_due(self) -> bool:
        """Waits until a request is due. Returns False if only the next :meth:`fetch` needs a request."""
        while True:
            now = self._clock()
            kept = self._valid()
            if kept is None:
                return False
            if now - self._used_at > IDLE_TIMEOUT:
                return False
            due_at = kept.refresh_at
            if self._failures:
                due_at = self._retry_at
            if now >= due_at:
                return True
            self._condition.wait(due_at - now)
