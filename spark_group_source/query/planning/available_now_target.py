"""The end of an AvailableNow run: what every partition of the subscription held when it began."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from spark_group_source.clock import Clock, Deadline
from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION, describe
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, GroupSourceError, TopicError
from spark_group_source.fetch.error_actions import FetchErrorAction, fetch_error_action
from spark_group_source.fetch.list_offsets import list_offsets
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.group.settings import GroupSettings
from spark_group_source.listing import some
from spark_group_source.offsets import EARLIEST, LATEST, Offsets, Partitions, TopicPartition
from spark_group_source.query.planning.end_offsets import continue_without
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic, partitions_of

log = logging.getLogger(__name__)

FREEZE_TIMEOUT = 30.0
"""Seconds in which every partition must have told its end: a run that left one out would not be complete."""

UNKNOWN_PATIENCE = 5.0
"""Seconds in which what the brokers do not know may still become known, when the run begins: they learn one by one."""

LOOK_TIMEOUT = 10.0
"""Seconds for one look at the ends of the logs, or at how far the group has come."""

POLL = (0.1, 1.0)
"""Shortest and longest pause, in seconds, between two looks at how far the others have come."""

SAY_EVERY = 10.0
"""Seconds between two lines that say what the run waits for."""

_ITSELF = (
    "If one query reads twice with this group id, as in a union or a join, give each read one of its own: Spark asks"
    " the second read only when the first is at its end, and that waits for the second."
)


class AvailableNowTarget:
    """The frozen target, and whether the group has reached it: by this member or another.

    A member that died still owns its partitions until its session ends, and another one may be slow: the run waits for
    them as long as the group makes progress, and for a session and a hand-over without any.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: GroupOffsets,
        settings: GroupSettings,
        read_committed: bool,
        fail_on_data_loss: bool,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._settings = settings
        self._read_committed = read_committed
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._target: dict[TopicPartition, int] | None = None
        self._behind: dict[TopicPartition, int] = {}
        self._seen: dict[TopicPartition, int] = {}
        self._moved_at = self._said_at = clock()
        self._pause = POLL[0]
        self._hinted = False

    def freeze(self, owned: Partitions = frozenset()) -> None:
        """Takes the ends of the logs as the target, the first time it is called.

        What this query has ``owned`` by then exists, also if one broker does not know it. Trouble that may heal is
        waited for, up to :data:`FREEZE_TIMEOUT`.

        Raises:
            DataLoss: a topic or partition does not exist any more, and ``failOnDataLoss`` is true.
            TopicError: a topic may not be read.
            BrokerUnavailable, DeadlineExceeded: not every partition has told its end in time.
        """
        deadline = Deadline.after(FREEZE_TIMEOUT, self._clock)
        patience = deadline.at_most(UNKNOWN_PATIENCE)
        while self._target is None:
            try:
                self._target = self._all_ends(owned, deadline.at_most(LOOK_TIMEOUT), patience)
            except GroupSourceError as error:
                if not error.retriable or deadline.remaining() <= self._pause:
                    raise
                log.warning("group %s: the end of this run cannot be seen: %s", self._settings.group_id, error)
                self._rest()
            else:
                self._behind = dict(self._target)
                self._moved_at, self._said_at, self._pause = self._clock(), self._clock(), POLL[0]

    def cap(self, ends: Offsets) -> dict[TopicPartition, int]:
        """``ends``, but none beyond the target; a partition that came later is not read in this run."""
        assert self._target is not None, "freeze() comes first"
        return {tp: min(end, self._target.get(tp, 0)) for tp, end in ends.items()}

    def reached(self, to_reset: Partitions = frozenset()) -> bool:
        """Whether the group's commits have come to the target in every partition.

        Those of ``to_reset`` are older than the run: this query is still to move them.

        Raises:
            DeadlineExceeded: nothing moved for as long as a dead member and a hand-over may take.
        """
        deadline = Deadline.after(LOOK_TIMEOUT + self._settings.offset_fetch_timeout, self._clock)
        committed = self._group.committed(self._behind, deadline) if self._behind else {}
        try:
            if not isinstance(committed, RequestFailed):
                self._note({tp: each for tp, each in committed.items() if tp not in to_reset}, deadline)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("group %s: how far the group has come cannot be seen: %s", self._settings.group_id, error)
        self._check_progress()
        return not self._behind

    @property
    def behind(self) -> Offsets:
        """What the group has not reached yet."""
        return self._behind

    def lower(self, ends: Offsets) -> None:
        """These logs were cut, and end before the target: it ends there, too."""
        assert self._target is not None, "freeze() comes first"
        for book in (self._target, self._behind):
            book.update({tp: end for tp, end in ends.items() if tp in book})

    def wait(self) -> None:
        """Pauses before the next look; says now and then what the run waits for."""
        if self._clock() - self._said_at >= SAY_EVERY:
            self._said_at = self._clock()
            log.info("group %s: the run waits for other members: %s", self._settings.group_id, self._standing())
            if not self._hinted:
                self._hinted = True
                log.warning("group %s: %s", self._settings.group_id, _ITSELF)
        self._rest()

    def _rest(self) -> None:
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, POLL[1])

    def _all_ends(self, owned: Partitions, deadline: Deadline, patience: Deadline) -> dict[TopicPartition, int]:
        """The end of every partition of the subscription; those that are unknown are waited for while ``patience``."""
        topics = self._settings.subscription.find(self._cluster, deadline)
        unknown = {name for name, topic in topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}
        for topic in topics.values():
            if topic.error and topic.name not in unknown:
                raise _trouble(topic)
        wanted = partitions_of(topics.values()) | {tp for tp in owned if tp.topic not in unknown}
        found, missing = self._offsets(wanted, LATEST, deadline)
        silent = wanted - found.keys() - missing
        if silent or ((unknown or missing) and not patience.expired()):
            untold = [*sorted(unknown), *map(str, sorted(silent | missing))]
            raise BrokerUnavailable(f"No broker tells the end of {some(untold)}.")
        continue_without(unknown, self._fail_on_data_loss)
        continue_without(missing, self._fail_on_data_loss)
        return found

    def _note(self, committed: Mapping[TopicPartition, CommittedOffset], deadline: Deadline) -> None:
        uncommitted = [tp for tp in self._behind if tp not in committed]
        # An empty partition may have an owner that never commits it: there is nothing to wait for.
        starts, missing = self._offsets(uncommitted, EARLIEST, deadline)
        continue_without(missing, self._fail_on_data_loss)
        self._forget(missing)
        at = self._seen | {tp: each.offset for tp, each in committed.items()} | starts
        if at != self._seen:
            self._moved_at, self._pause = self._clock(), POLL[0]
        # One whose leader tells nothing now is behind, unless it never held anything.
        self._behind = {tp: end for tp, end in self._behind.items() if at.get(tp, 0) < end}
        # Only these are looked at from here on: that the others are missing in the next look is no progress.
        self._seen = {tp: at[tp] for tp in self._behind if tp in at}

    def _forget(self, missing: set[TopicPartition]) -> None:
        """Partitions that were deleted are not waited for, nor read should they come again."""
        assert self._target is not None, "freeze() comes first"
        for book in (self._target, self._behind, self._seen):
            for tp in missing:
                book.pop(tp, None)

    def _offsets(
        self, partitions: Iterable[TopicPartition], at: int, deadline: Deadline
    ) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """The offsets that leaders told, and the partitions that do not exist."""
        missing: set[TopicPartition] = set()
        specs = dict.fromkeys(partitions, at)
        found = list_offsets(
            self._cluster, specs, read_committed=self._read_committed, deadline=deadline, missing=missing
        )
        return found, missing

    def _check_progress(self) -> None:
        patience = self._settings.session_timeout + self._settings.rebalance_timeout
        if self._behind and self._clock() - self._moved_at > patience:
            raise DeadlineExceeded(
                f"The group '{self._settings.group_id}' did not reach the end of this run for {patience:.0f} s:"
                f" {self._standing()}.",
                "Another member owns these partitions and does not commit: look at it, or stop it and run again."
                f" {_ITSELF}",
            )

    def _standing(self) -> str:
        lagging = sorted(self._behind.items())[:10]
        return ", ".join(f"{tp} at {self._seen.get(tp, 'no commit')} of {end}" for tp, end in lagging)


def _trouble(topic: Topic) -> GroupSourceError:
    happened = f"Topic '{topic.name}' cannot be read: the brokers answer {describe(topic.error)}."
    if fetch_error_action(topic.error) is FetchErrorAction.REFRESH_METADATA:
        return BrokerUnavailable(happened)
    return TopicError(happened, "Grant the principal DESCRIBE and READ on the topic.", errno=topic.error)
