"""The end of an AvailableNow run: what every partition of the subscription held when it began."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import DeadlineExceeded, GroupSourceError
from spark_group_source.fetch.positions import log_offsets
from spark_group_source.group.commits import Committed
from spark_group_source.group.coordinator import Coordinator
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Refused
from spark_group_source.offsets import TopicPartition
from spark_group_source.starting_offsets import StartAt
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)

LOOK_TIMEOUT = 10.0
"""Seconds to find the target, or to ask how far the group has come."""

POLL = (0.1, 1.0)
"""Shortest and longest pause, in seconds, between two looks at how far the others have come."""

SAY_EVERY = 10.0
"""Seconds between two lines that say what the run waits for."""


class RunTarget:
    """The frozen target, and whether the group has reached it: by this member or another.

    A member that died still owns its partitions until its session ends, and another one may be slow: the run waits for
    them as long as the group makes progress, and for a session and a hand-over without any.
    """

    def __init__(
        self,
        cluster: Cluster,
        coordinator: Coordinator,
        settings: GroupSettings,
        read_committed: bool,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._coordinator = coordinator
        self._settings = settings
        self._read_committed = read_committed
        self._clock = clock
        self._target: dict[TopicPartition, int] | None = None
        self._behind: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        self._moved_at = self._said_at = clock()
        self._pause = POLL[0]

    def freeze(self) -> None:
        """Takes the ends of the logs as the target, the first time it is called."""
        if self._target is not None:
            return
        deadline = Deadline.after(LOOK_TIMEOUT, self._clock)
        topics = self._settings.subscription.find(self._cluster, deadline)
        everything = [TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions]
        self._target = self._offsets(everything, StartAt.LATEST, deadline)
        self._behind = dict(self._target)
        self._moved_at = self._said_at = self._clock()

    def cap(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """``ends``, but none beyond the target; a partition that came later is not read in this run."""
        assert self._target is not None, "freeze() comes first"
        return {tp: min(end, self._target.get(tp, 0)) for tp, end in ends.items()}

    def reached(self) -> bool:
        """Whether the group's commits have come to the target in every partition.

        Raises:
            DeadlineExceeded: nothing moved for as long as a dead member and a hand-over may take.
        """
        deadline = Deadline.after(LOOK_TIMEOUT, self._clock)
        committed = self._coordinator.committed(self._behind, deadline) if self._behind else {}
        try:
            if not isinstance(committed, Refused):
                self._note(committed, deadline)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("group %s: how far the group has come cannot be seen: %s", self._settings.group_id, error)
        self._check_progress()
        return not self._behind

    def wait(self) -> None:
        """Pauses before the next look; says now and then what the run waits for."""
        if self._clock() - self._said_at >= SAY_EVERY:
            self._said_at = self._clock()
            log.info("group %s: the run waits for other members: %s", self._settings.group_id, self._standing())
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, POLL[1])

    def _note(self, committed: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        uncommitted = [tp for tp in self._behind if tp not in committed]
        # An empty partition may have an owner that never commits it: there is nothing to wait for.
        starts = self._offsets(uncommitted, StartAt.EARLIEST, deadline)
        at = {tp: each.offset for tp, each in committed.items()} | starts
        if at != self._seen:
            self._moved_at, self._pause = self._clock(), POLL[0]
        self._behind = {tp: end for tp, end in self._behind.items() if at[tp] < end}
        # Only these are looked at from here on: that the others are missing in the next look is no progress.
        self._seen = {tp: at[tp] for tp in self._behind}

    def _offsets(
        self, partitions: Iterable[TopicPartition], at: StartAt, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        specs = dict.fromkeys(partitions, at.value)
        found = log_offsets(self._cluster, specs, read_committed=self._read_committed, deadline=deadline)
        return {tp: each.offset for tp, each in found.items()}

    def _check_progress(self) -> None:
        patience = self._settings.session_timeout + self._settings.rebalance_timeout
        if self._behind and self._clock() - self._moved_at > patience:
            raise DeadlineExceeded(
                f"The group '{self._settings.group_id}' did not reach the end of this run for {patience:.0f} s:"
                f" {self._standing()}.",
                "Another member owns these partitions and does not commit: look at it, or stop it and run again.",
            )

    def _standing(self) -> str:
        lagging = sorted(self._behind.items())[:10]
        return ", ".join(f"{tp} at {self._seen.get(tp, 'no commit')} of {end}" for tp, end in lagging)
