"""What a bounded read covers: each partition's start and end, pinned when it is planned.

It is no member of a group. With ``startingOffsets=committed`` it looks at what the group has committed, and leaves the
group as it is.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import DataLoss, DeadlineExceeded, OptionError
from spark_group_source.fetch.list_offsets import list_offsets
from spark_group_source.fetch.offset_for_leader_epoch import UNDEFINED_EPOCH_OFFSET, epoch_end_offsets
from spark_group_source.group.coordinator_client import retry_until_response
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.listing import names, some
from spark_group_source.offsets import UNKNOWN_EPOCH, OffsetRange, Offsets, Partitions, TopicPartition
from spark_group_source.options.offset_specs import EndSpec, FromCommitted, OffsetSpec, StartSpec
from spark_group_source.options.stream_and_batch import batch_end, batch_start
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.group_settings import group_settings
from spark_group_source.query.starting_offsets.resolution import check_names, resolve, within_logs
from spark_group_source.query.starting_offsets.topic_validator import TopicValidator
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import partitions_of
from spark_group_source.wire.settings import WireOptions

log = logging.getLogger(__name__)

PLAN_TIMEOUT = 30.0
"""Seconds in which every partition must have told where the read starts and ends in it."""


def plan(options: SourceOptions, wire: WireOptions, clock: Clock = monotonic) -> list[OffsetRange]:
    """The range to read of each partition of the subscription, also where that is empty.

    Raises:
        BrokerUnavailable, DeadlineExceeded: not every partition told its offsets in time.
        TopicError: a topic does not exist or may not be read.
        GroupError: the group's offsets may not be read.
        OptionError: an option names other partitions than there are, a time that no record is as late as, or a start
            behind the end; or the group has no offset, and ``startingOffsetsFallback`` is ``fail``.
        DataLoss: an offset to start or end at is not in its log, and ``failOnDataLoss`` is true.
    """
    with closing(Cluster(wire)) as cluster:
        return _Plan(options, cluster, clock).ranges()


class _Plan:
    """One planning."""

    def __init__(self, options: SourceOptions, cluster: Cluster, clock: Clock) -> None:
        self._options = options
        self._cluster = cluster
        self._clock = clock
        self._deadline = Deadline.after(PLAN_TIMEOUT, clock)

    def ranges(self) -> list[OffsetRange]:
        given = self._options
        subscription = group_settings(given).subscription
        topics = TopicValidator(self._cluster, subscription, given.fail_on_data_loss, self._clock).topics(logged=())
        partitions = partitions_of(topics.values())
        if not partitions:
            log.warning("no topic is found by %s: there is nothing to read", subscription)
        start, end = batch_start(given), batch_end(given)
        for each in (start, end):
            check_names(each, partitions)
        # The starts first: what is written between the two lookups then lies within the range, never before it.
        starts = self._starts(start, partitions)
        ends = self._resolve(end, partitions)
        if isinstance(start, FromCommitted):
            # A group that is further than the end has processed all of it.
            starts = {tp: min(at, ends[tp]) for tp, at in starts.items()}
        _check_order(starts, ends, start, end)
        return [OffsetRange(*tp, starts[tp], ends[tp], topics[tp.topic].id) for tp in sorted(partitions)]

    def _starts(self, at: StartSpec, partitions: Partitions) -> Offsets:
        if not isinstance(at, FromCommitted):
            return self._resolve(at, partitions)
        committed = self._committed(partitions)
        group = f"The group '{self._options.group_id}'"
        without = partitions - committed.keys()
        if without and at.fallback is None:
            raise OptionError(
                f"{group} has no committed offset of {names(without)}, and 'startingOffsetsFallback' is fail.",
                "Set it to earliest to read these from the beginning, or to latest to leave them out.",
            )
        starts = within_logs(committed, self._ask, self._options.fail_on_data_loss, f"{group} has committed")
        return starts | (self._resolve(at.fallback, without) if at.fallback else {})

    def _resolve(self, at: OffsetSpec, partitions: Partitions) -> dict[TopicPartition, int]:
        return resolve(at, partitions, self._ask, self._options.fail_on_data_loss)

    def _ask(self, wanted: Offsets) -> Offsets:
        return list_offsets(self._cluster, wanted, read_committed=self._options.read_committed, deadline=self._deadline)

    def _before_replaced(self, committed: Offsets, epochs: Offsets) -> dict[TopicPartition, int]:
        """The committed offsets; where a new leader has other records before one, the offset of the first of them."""
        offsets = dict(committed)
        while epochs:
            topics = self._cluster.topics({tp.topic for tp in epochs}, self._deadline, fresh=True)
            told = epoch_end_offsets(self._cluster, topics, epochs, self._deadline)
            for tp, now in sorted(told.items()):
                if UNDEFINED_EPOCH_OFFSET < now.end_offset < offsets[tp]:
                    self._replaced(
                        f"The group '{self._options.group_id}' has committed offset {offsets[tp]} for {tp}, whose log"
                        f" was truncated at offset {now.end_offset} (leader epoch {epochs[tp]} then,"
                        f" {now.leader_epoch} now)"
                    )
                    offsets[tp] = now.end_offset
            epochs = {
                tp: epoch
                for tp, epoch in epochs.items()
                if tp not in told or told[tp].end_offset == UNDEFINED_EPOCH_OFFSET
            }
            pause = self._cluster.options.retry_backoff_max if epochs else 0.0
            if self._deadline.remaining() < pause:
                raise DeadlineExceeded(
                    f"The leaders of {names(epochs)} do not tell what their logs hold of old epochs."
                )
            time.sleep(pause)
        return offsets

    def _replaced(self, happened: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{happened}.",
                "An unclean leader was elected. Set failOnDataLoss to false to read from the first record that was"
                " replaced, or give other startingOffsets.",
            )
        log.warning("%s. The first record that was replaced is taken, as failOnDataLoss is false.", happened)

    def _committed(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """What the group has committed; trouble that may heal is waited for."""
        offsets = GroupOffsets(self._cluster, group_settings(self._options))
        pause = self._cluster.options.retry_backoff_max
        found = retry_until_response(lambda: offsets.committed(partitions, self._deadline), self._deadline, pause)
        if isinstance(found, RequestFailed):
            raise DeadlineExceeded(
                f"The committed offsets of group '{self._options.group_id}' cannot be read: {found.reason}."
            )
        epochs = {tp: each.epoch for tp, each in found.items() if each.epoch != UNKNOWN_EPOCH}
        return self._before_replaced({tp: each.offset for tp, each in found.items()}, epochs)


def _check_order(starts: Offsets, ends: Offsets, start: StartSpec, end: EndSpec) -> None:
    wrong = [f"{tp} starts at {starts[tp]} and ends at {ends[tp]}" for tp in sorted(starts) if starts[tp] > ends[tp]]
    if wrong:
        options = " and ".join(f"'{each.option}'" for each in (start, end) if hasattr(each, "option"))
        raise OptionError(
            f"The read ends before it starts: {some(wrong, '; ')}.", f"Look at {options}: they do not fit."
        )
