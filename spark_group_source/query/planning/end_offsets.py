"""The ends of the logs, as fresh as they must be and no fresher."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Set

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import DataLoss, GroupSourceError
from spark_group_source.fetch.list_offsets import list_offsets
from spark_group_source.group.topic_view import TopicView
from spark_group_source.listing import names
from spark_group_source.offsets import LATEST, Offsets, TopicPartition
from spark_group_source.options.table import SourceOptions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import partitions_of

log = logging.getLogger(__name__)

LOOK_TIMEOUT = 10.0
"""Seconds for one look at the ends of the logs."""

FRESHEST = 0.02
"""Seconds between looks while records come in. An idle query is polled every 10 ms."""

STALEST = 0.1
"""Seconds between looks when nothing has come for long: at most this much is added to the delay of the next record."""

STALEST_OF_EACH = 0.0005
"""The same for each partition, where there are many: a look costs 10 µs of a core for each, and brokers some too."""

MISSING_INTERVAL = 30.0
"""Seconds until partitions that were deleted are looked for again."""

PROBE_TIMEOUT = 1.0
"""Seconds for the first time that partitions whose leaders told nothing are asked for again, apart from the others.
Each time in a row has twice as many, up to :data:`LOOK_TIMEOUT`."""

PROBE_INTERVAL = 5.0
"""Seconds between two of these; fewer after the first ones, as most elections are short."""

PROBE_REST = 3.0
"""The time between two is at least this many times what the last one took: meanwhile the others are not looked at."""

CUT_LOOKS = 3
"""Looks that must agree that a log ends before a position: a leader just replaced may still answer."""

CUT_PAUSE = 0.3
"""Seconds between two of them."""

CUT_INTERVAL = 10.0
"""Seconds until a log that was found not to be cut is looked at again: a transaction that stays open is no loss."""

PATIENCE = 50.0
"""The time between looks is this fraction of the time since something last came."""


def continue_without(missing: Set[TopicPartition] | Set[str], fail_on_data_loss: bool) -> None:
    """Says that topics or partitions were deleted, if any were, where ``failOnDataLoss`` is false.

    Raises:
        DataLoss: it is true.
    """
    if not missing:
        return
    said = names(missing)
    if fail_on_data_loss:
        raise DataLoss(
            f"{said} does not exist any more.",
            "Take the topic out of the subscription, or set failOnDataLoss to false to go on with the others.",
        )
    log.warning("%s does not exist any more; the query goes on without, as failOnDataLoss is false", said)


def no_broker_knows(missing: set[TopicPartition], cluster: Cluster, group_id: str) -> set[TopicPartition]:
    """Those that every broker says do not exist: one that lags behind may have been asked each time."""
    if not missing:
        return set()
    view = TopicView(cluster, group_id)
    view.expect(missing)
    try:
        found = view.metadata({tp.topic for tp in missing}, Deadline.after(LOOK_TIMEOUT))
    except GroupSourceError as error:
        if not error.retriable:
            raise
        return set()
    return missing - partitions_of(found.topics.values())


class EndOffsets:
    """Caches the end of each partition, and asks less often the longer nothing comes.

    ``known`` are the ends as last seen, ``epochs`` the epochs of the leaders that told them.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions, clock: Clock = monotonic) -> None:
        self.known: dict[TopicPartition, int] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self._cluster = cluster
        self._options = options
        self._missing: set[TopicPartition] = set()
        self._silent: Set[TopicPartition] = frozenset()
        self._missed_at = clock()
        self._probe_timeout = PROBE_TIMEOUT
        self._probe_at = float("-inf")
        self._clock = clock
        self._looked_at = self._uncut_at = float("-inf")
        self._moved_at = clock()

    def of(self, positions: Offsets) -> Offsets:
        """The end of each partition: the next offset to be written, under read_committed the last stable offset.

        Where nothing lies behind ``positions`` yet, the call waits until it is time to look again, at most
        :data:`STALEST`, or longer with many partitions: Spark asks an idle source a hundred times a second, which alone
        would cost some per cent of a core. While the brokers cannot be asked the ends are those seen last, and a
        partition never seen is left out: a query outlives an outage. So is one that is deleted, where
        ``failOnDataLoss`` is false. Those whose leaders tell nothing are asked for less often than the others.

        Raises:
            DataLoss: a partition does not exist any more.
        """
        stalest = max(STALEST, STALEST_OF_EACH * len(positions))
        due = self._looked_at + min(max((self._clock() - self._moved_at) / PATIENCE, FRESHEST), stalest)
        wait = due - self._clock()
        if wait > 0 and not positions.keys() - self.known.keys() - self._missing - self._silent:
            if any(self.known.get(tp, at) > at for tp, at in positions.items()):
                return {tp: self.known[tp] for tp in positions if tp in self.known}
            time.sleep(wait)
        self._look(positions.keys())
        return {tp: self.known[tp] for tp in positions if tp in self.known}

    def cut(self, positions: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """The ends of those logs that end before the position, as several looks at the leaders agree.

        What is compared is where the log ends, not where its stable part does: under read_committed that lies before
        what others have read uncommitted. While the leaders cannot be asked, nothing counts as cut.
        """
        return self.before({tp: positions[tp] for tp, end in ends.items() if end < positions[tp]})

    def before(self, offsets: Offsets) -> dict[TopicPartition, int]:
        """The ends of those logs that end before the offset, as :meth:`cut`."""
        if self._clock() - self._uncut_at < CUT_INTERVAL:
            return {}
        found = dict(offsets)
        for look in range(CUT_LOOKS if found else 0):
            if look:
                time.sleep(CUT_PAUSE)
            self._cluster.invalidate_topics(tp.topic for tp in found)
            found = {tp: end for tp, end in self._true_ends(found).items() if end < offsets[tp]}
            if not found:
                self._uncut_at = self._clock()
                break
        return found

    def _true_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            return list_offsets(
                self._cluster,
                dict.fromkeys(partitions, LATEST),
                read_committed=False,
                deadline=Deadline.after(LOOK_TIMEOUT, self._clock),
                missing=set(),
            )
        except GroupSourceError as error:
            if not error.retriable:
                raise
            return {}

    def _tell(self, silent: Set[TopicPartition]) -> None:
        if silent != self._silent and silent:
            log.warning("no leader tells the end of %s; the query goes on with the others", names(silent))
        if silent - self._silent:
            self._probe_timeout = PROBE_TIMEOUT
            self._probe_at = self._clock() + PROBE_TIMEOUT
        self._silent = silent

    def expire(self) -> None:
        """A batch was completed: the next call looks anew."""
        self._looked_at = float("-inf")

    def _look(self, partitions: Set[TopicPartition]) -> None:
        if self._clock() - self._missed_at > MISSING_INTERVAL:
            self._missing = set()
        missing: set[TopicPartition] = set()
        silent = self._silent & partitions
        others = partitions - self._missing - silent
        try:
            found = self._ask(others, LOOK_TIMEOUT, missing)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("the ends of %d partition(s) are not known: %s", len(others), error)
            found, others = {}, set()
        found |= self._probe(silent, missing)
        missing = no_broker_knows(missing, self._cluster, self._options.group_id)
        continue_without(missing, self._options.fail_on_data_loss)
        if missing:
            self._missing |= missing
            self._missed_at = self._clock()
        self._tell((others | silent) - found.keys() - self._missing)
        seen = {tp: end for tp, end in self.known.items() if tp in partitions and tp not in self._missing}
        ends = seen | found
        self.epochs = {tp: epoch for tp, epoch in self.epochs.items() if tp in ends}
        self._looked_at = self._clock()
        if ends != self.known:
            self.known, self._moved_at = ends, self._looked_at

    def _probe(self, silent: Set[TopicPartition], missing: set[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of those that told nothing the last time, as far as they do now, where it is time to ask."""
        if not silent or self._clock() < self._probe_at:
            return {}
        began = self._clock()
        try:
            return self._ask(silent, self._probe_timeout, missing)
        except GroupSourceError as error:
            if not error.retriable:
                raise
            return {}
        finally:
            self._probe_timeout = min(self._probe_timeout * 2, LOOK_TIMEOUT)
            now = self._clock()
            self._probe_at = now + max(min(self._probe_timeout, PROBE_INTERVAL), (now - began) * PROBE_REST)

    def _ask(
        self, partitions: Set[TopicPartition], seconds: float, missing: set[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return list_offsets(
            self._cluster,
            dict.fromkeys(partitions, LATEST),
            read_committed=self._options.read_committed,
            deadline=Deadline.after(seconds, self._clock),
            missing=missing,
            epochs=self.epochs,
        )
