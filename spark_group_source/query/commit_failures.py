"""Logs failed commits, and decides when too many have failed in a row."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

from spark_group_source.clock import WARN_EVERY, Clock, LogEvery
from spark_group_source.errors import CommitFailed
from spark_group_source.offsets import TopicPartition
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.retry_timer import RetryTimer
from spark_group_source.text import names

log = logging.getLogger(__name__)

_NUMBERS = re.compile(r"[0-9.]+")
"""The numbers in a text, such as durations, which differ between two texts about the same failure."""


class CommitFailures:
    """Counts and logs failed commits. The committer calls it under a lock, for one commit at a time.

    ``last`` is the reason why the latest commit failed, for the log. A successful commit empties it.
    """

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self.last = ""
        self._options = options
        self._group_id = options.group.group_id
        self._clock = clock
        self._count_timer = RetryTimer(options.commit_retry_interval, clock)
        self._in_a_row = 0
        self._logged: dict[str, LogEvery] = {}
        self._rejected_since: float | None = None
        self._rejected_at = 0.0
        self._warnings = LogEvery(WARN_EVERY, clock)

    def succeeded(self) -> None:
        """Notes that a commit has succeeded."""
        self._in_a_row = 0
        self.last = ""
        self._logged.clear()
        self._rejected_since = None

    def rejected_in_rebalance(self, why: str) -> None:
        """Notes that a commit was rejected because the group has a new generation. This is routine: the next try names
        that generation.

        Warns if commits are rejected for longer than a session. By then the member should have the new generation, or
        be out of the group.
        """
        now, before = self._clock(), self._rejected_at
        self._rejected_at = now
        session = self._options.group.session_timeout
        # With nothing to commit for a while, for example without partitions, this is another rebalance.
        if self._rejected_since is None or now - before > session + self._options.commit_retry_interval:
            self._rejected_since = now
            log.info("group %s: a commit was rejected during a rebalance, and will be retried: %s", self._group_id, why)
            return
        seconds = now - self._rejected_since
        if seconds > session and self._warnings.try_acquire():
            log.warning(
                "group %s: a rebalance does not end, and all commits of the last %.0f s were rejected: %s",
                self._group_id,
                seconds,
                why,
            )

    def failed(self, partitions: Collection[TopicPartition], why: str) -> None:
        """Notes that a commit of these partitions has failed for another reason.

        Raises:
            CommitFailed: there are too many failures in a row, and ``onCommitFailure`` is ``fail``.
        """
        # While a broker throttles this client, starts, batches and retries may all try at the same time.
        if self._count_timer.try_acquire():
            self._in_a_row += 1
        if self._options.on_commit_failure == "fail" and self._in_a_row > self._options.commit_retries:
            raise CommitFailed(
                f"The offsets of {names(partitions)} could not be committed to group '{self._group_id}' in"
                f" {self._in_a_row} tries: {why}.",
                "Check the group's coordinator, raise offsetCommit.numRetries, or set onCommitFailure to warn.",
            )
        # While a coordinator moves, different reasons may alternate, and most of them contain a duration.
        reason = _NUMBERS.sub("", why)
        every_minute = self._logged.setdefault(reason, LogEvery(WARN_EVERY, self._clock))
        if every_minute.try_acquire():
            log.warning("group %s: a commit failed and will be retried: %s", self._group_id, why)
