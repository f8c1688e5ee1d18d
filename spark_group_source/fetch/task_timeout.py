"""How long a task waits for brokers: when it warns, and when it fails."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

from spark_group_source.clock import WARN_EVERY, Clock, Deadline, LogEvery
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.fetch.first_contact import FirstContact
from spark_group_source.fetch.position import FetchPosition
from spark_group_source.text import some

log = logging.getLogger(__name__)

WARN_AFTER = 15.0
"""Seconds without records of a partition before a warning. Nothing else shows why a batch does not end."""

UNREACHED_TIMEOUT = 30.0
"""Seconds after which a task fails if no broker was ever reached from its executor. The driver has reached one, so the
addresses, the network or the settings are wrong here, and the next attempt may run on another executor."""

MIN_LOOKUP = 5.0
"""Minimum seconds of a lookup that ends early because a warning may be due. A shorter lookup would fail for lack of
time, and its error would hide the real problem."""

CHECK_MARGIN = 1.0
"""How many seconds early a check may be. A lookup that no broker answers ends up to one backoff before its deadline,
and the check after it must not wait for another lookup."""

MAX_LISTED = 5
"""Maximum number of ranges that a message lists with their problems."""


class TaskTimeout:
    """The time that one task waits for records. The time in which Spark takes rows does not count.

    Args:
        poll_timeout: seconds without progress after which the task fails, once a broker was reached from this executor.
    """

    def __init__(
        self, positions: Sequence[FetchPosition], poll_timeout: float, contact: FirstContact, clock: Clock
    ) -> None:
        self._positions = positions
        self._poll_timeout = poll_timeout
        self._contact = contact
        self._clock = clock
        self._taken_by_spark = 0.0
        self._last_progress = clock()
        self._check_at = self._last_progress + WARN_AFTER
        self._warnings = LogEvery(WARN_EVERY, clock)

    @property
    def fails_at(self) -> float:
        """When the task fails without further progress, in seconds of the clock."""
        timeout = self._poll_timeout
        if not self._contact.made:
            timeout = min(timeout, UNREACHED_TIMEOUT)
        return self._last_progress + timeout

    @property
    def wakes_at(self) -> float:
        """Until when the task may wait without a check, in seconds of the clock."""
        return min(self._check_at, self.fails_at)

    def limit(self, deadline: Deadline) -> Deadline:
        """The deadline of a lookup: the earlier of ``deadline`` and the next check of this timeout."""
        now = self._clock()
        if not self._contact.made:
            deadline = deadline.at_most(self.fails_at - now)
        until_check = self._check_at - now
        if until_check < MIN_LOOKUP:
            return deadline
        return deadline.at_most(until_check)

    def record_attempts(self, positions: Sequence[FetchPosition]) -> None:
        """Notes that the task asks for the records of these positions, and waits for them from now on."""
        now = self._own_time()
        for position in positions:
            if position.waiting_since is None:
                position.waiting_since = now

    def record_progress(self) -> None:
        """Notes that the task has received records, and that Spark has taken their rows."""
        self._last_progress = self._clock()

    def record_taken(self, seconds: float) -> None:
        """Notes how long Spark took for rows: meanwhile the task does not wait for a broker."""
        self._taken_by_spark += seconds

    def check(self) -> None:
        """Warns of the partitions whose records do not come, with the reasons; at most once a minute."""
        if self._clock() < self._check_at - CHECK_MARGIN:
            return
        waiting: list[FetchPosition] = []
        next_check = WARN_AFTER
        for position in self._positions:
            left = WARN_AFTER - self._waited(position)
            if left > CHECK_MARGIN:
                next_check = min(next_check, left)
            elif self._must_warn_of(position):
                waiting.append(position)
        self._check_at = self._clock() + next_check
        if waiting and self._warnings.try_acquire():
            self._warn(waiting)

    def _waited(self, position: FetchPosition) -> float:
        """Seconds for which the task has waited for the next records of a position."""
        if position.waiting_since is None or position.done:
            return 0.0
        return self._own_time() - position.waiting_since

    def _must_warn_of(self, position: FetchPosition) -> bool:
        """Whether a position that has waited long makes no progress. A position may only wait for its turn, because
        partitions that come first in a response leave no room for others."""
        is_failing = position.backoff > 0
        is_task_silent = self._clock() - self._last_progress >= WARN_AFTER - CHECK_MARGIN
        return is_failing or is_task_silent

    def _warn(self, waiting: Sequence[FetchPosition]) -> None:
        host = socket.gethostname()
        left = self.fails_at - self._clock()
        if self._contact.made:
            waited = max(self._waited(position) for position in waiting)
            log.warning(
                "fetch: host %s: no records for %.0f s; the task fails in %.0f s if none come: %s",
                host,
                waited,
                left,
                _problems(waiting),
            )
        else:
            log.warning(
                "fetch: host %s: this executor has never reached a broker; the task fails in %.0f s unless it reaches"
                " one: %s",
                host,
                left,
                _problems(waiting),
            )

    def is_over(self) -> bool:
        """Whether the task fails now."""
        # Must compare as the wait does: otherwise, after rounding, no time might be left to wait although the timeout
        # has not passed.
        return self._clock() >= self.fails_at

    def fail(self) -> None:
        """Fails the task because of the positions that are not done; returns if all positions are done.

        Raises:
            DeadlineExceeded: a position is not done. The error lists the last problem of each such position.
        """
        pending = [position for position in self._positions if not position.done]
        if not pending:
            return
        happened = f"A task fetched no records for {self._clock() - self._last_progress:.1f} s"
        if self._contact.made:
            raise DeadlineExceeded(
                f"{happened}: {_problems(pending)}.",
                "Check these brokers and partitions. If they are only slow, raise kafkaConsumer.pollTimeoutMs.",
            )
        raise DeadlineExceeded(
            f"{happened}, because this executor has never reached a broker: {_problems(pending)}.",
            "The driver has reached a broker. Check DNS, firewalls, certificates and tickets on the executor's host.",
        )

    def _own_time(self) -> float:
        return self._clock() - self._taken_by_spark


def _problems(positions: Sequence[FetchPosition]) -> str:
    texts = [f"{each.range} at offset {each.offset} ({each.last_problem})" for each in positions]
    return some(texts, most=MAX_LISTED)
