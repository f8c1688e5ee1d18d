"""Plans a batch query: the start and end offset of each partition, fixed when the read is planned.

A batch query does not join a group. With ``startingOffsets=committed`` it starts at the group's committed offsets. It
never commits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import DeadlineExceeded, OptionError, raise_or_warn
from spark_group_source.group.commits import GroupOffsets
from spark_group_source.group.coordinator import retry_until_response
from spark_group_source.group.membership import RequestFailed
from spark_group_source.offsets import UNKNOWN_EPOCH, OffsetRange, Offsets, Partitions, TopicPartition
from spark_group_source.options.offset_specs import EndSpec, FromCommitted, OffsetSpec, StartSpec
from spark_group_source.options.source_options import SourceOptions, batch_end, batch_start
from spark_group_source.query.permissions import TopicPermissions
from spark_group_source.query.start_specs import check_names, raise_or_clamp, resolve_spec
from spark_group_source.query.topic_validator import RETRY_INTERVAL, TopicValidator
from spark_group_source.text import names, some
from spark_group_source.wire.any_broker import MIN_BROKER_TIMEOUT
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.leader_epochs import UNDEFINED_EPOCH_OFFSET, EpochEndOffset, current_epoch_end_offsets
from spark_group_source.wire.metadata import Topic, partitions_of
from spark_group_source.wire.offset_lookup import list_offsets
from spark_group_source.wire.stale_metadata import CONFIRM_TIMEOUT

log = logging.getLogger(__name__)

PLAN_TIMEOUT = 30.0
"""Maximum seconds until the leaders have returned the start and end of every partition."""


def plan(
    options: SourceOptions, clock: Clock = monotonic, identity: ClusterIdentity | None = None
) -> list[OffsetRange]:
    """The range to read of each subscribed partition, empty ranges included.

    Args:
        identity: receives the id of the cluster, which the tasks need.

    Raises:
        BrokerUnavailable, DeadlineExceeded: not every partition returned its offsets in time.
        TopicError: a topic does not exist or may not be read.
        GroupError: the group's offsets may not be read.
        OptionError: an option names other partitions than those that exist, a time after the last record, or a start
            after the end; or the group has no committed offset, and ``startingOffsetsFallback`` is ``fail``.
        DataLoss: a start or end offset is not in its log, and ``failOnDataLoss`` is true.
    """
    with closing(Cluster(options.wire, identity=identity)) as cluster:
        return _BatchQuery(options, cluster, clock).ranges()


class _BatchQuery:
    """One batch query while it is planned."""

    def __init__(self, options: SourceOptions, cluster: Cluster, clock: Clock) -> None:
        self._options, self._fetch = options, options.fetch
        self._cluster = cluster
        self._clock = clock
        self._deadline = Deadline.after(PLAN_TIMEOUT, clock)

    def ranges(self) -> list[OffsetRange]:
        options = self._options
        subscription = options.group.subscription
        topics = self._topics()
        partitions = partitions_of(topics.values())
        permissions = TopicPermissions(subscription, self._cluster.options, self._clock)
        partitions = permissions.without_left_out(partitions, self._cluster, self._deadline)
        if not partitions:
            log.warning("no topic matches %s: there is nothing to read", subscription)
        start, end = batch_start(options), batch_end(options)
        for spec in (start, end):
            check_names(spec, partitions)
        if not partitions:
            return []
        return self._ranges(start, end, partitions, topics)

    def _topics(self) -> dict[str, Topic]:
        """The topics to read. One broker of several is not enough to know them, unless the others stay silent."""
        subscription = self._options.group.subscription
        validator = TopicValidator(self._cluster, subscription, self._fetch.fail_on_data_loss, self._clock)
        confirmed_until = self._deadline.at_most(CONFIRM_TIMEOUT)
        while True:
            topics = validator.find(logged=())
            if validator.confirmed or confirmed_until.expired():
                return topics
            time.sleep(RETRY_INTERVAL)

    def _ranges(
        self, start: StartSpec, end: EndSpec, partitions: Partitions, topics: Mapping[str, Topic]
    ) -> list[OffsetRange]:
        # The starts are looked up first, so that records written between the two lookups lie within the range.
        starts = self._starts(start, partitions)
        ends = self._resolve(end, partitions)
        if isinstance(start, FromCommitted):
            # A group beyond the end has processed all of the range.
            starts = {tp: min(offset, ends[tp]) for tp, offset in starts.items()}
        _check_order(starts, ends, start, end)
        return [OffsetRange(*tp, starts[tp], ends[tp], topics[tp.topic].id) for tp in sorted(partitions)]

    def _starts(self, spec: StartSpec, partitions: Partitions) -> Offsets:
        if not isinstance(spec, FromCommitted):
            return self._resolve(spec, partitions)
        committed = self._committed(partitions)
        group = f"The group '{self._options.group.group_id}'"
        uncommitted = partitions - committed.keys()
        if uncommitted and spec.fallback is None:
            raise OptionError(
                f"{group} has no committed offset of {names(uncommitted)}, and 'startingOffsetsFallback' is fail.",
                "Set it to earliest to read these from the beginning, or to latest to leave them out.",
            )
        starts = raise_or_clamp(
            committed,
            # Others may have read the records of a transaction that is still open.
            partial(self._list_offsets, read_committed=False),
            self._fetch.fail_on_data_loss,
            f"{group} has committed",
        )
        if spec.fallback is None:
            return starts
        return starts | self._resolve(spec.fallback, uncommitted)

    def _resolve(self, spec: OffsetSpec, partitions: Partitions) -> dict[TopicPartition, int]:
        return resolve_spec(spec, partitions, self._list_offsets, self._fetch.fail_on_data_loss)

    def _list_offsets(self, specs: Offsets, read_committed: bool | None = None) -> Offsets:
        if read_committed is None:
            read_committed = self._fetch.read_committed
        return list_offsets(self._cluster, specs, read_committed=read_committed, deadline=self._deadline).offsets

    def _committed(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The group's committed offsets; retriable errors are retried."""
        group_offsets = GroupOffsets(self._cluster, self._options.group)
        backoff = self._cluster.options.retry_backoff_max
        commits = retry_until_response(
            lambda: group_offsets.committed(partitions, self._deadline), self._deadline, backoff
        )
        if isinstance(commits, RequestFailed):
            raise DeadlineExceeded(
                f"The committed offsets of group '{self._options.group.group_id}' cannot be read: {commits.reason}."
            )
        offsets: dict[TopicPartition, int] = {}
        epochs: dict[TopicPartition, int] = {}
        for tp, commit in commits.items():
            offsets[tp] = commit.offset
            if commit.epoch != UNKNOWN_EPOCH:
                epochs[tp] = commit.epoch
        return self._before_divergence(offsets, epochs)

    def _before_divergence(self, committed: Offsets, epochs: Offsets) -> dict[TopicPartition, int]:
        """The committed offsets. If a new leader has replaced records before a committed offset, it is the first
        replaced offset."""
        offsets = dict(committed)
        unconfirmed = dict(epochs)
        while unconfirmed:
            answers = current_epoch_end_offsets(self._cluster, unconfirmed, self._deadline)
            for tp, epoch_end in sorted(answers.items()):
                if epoch_end.end_offset == UNDEFINED_EPOCH_OFFSET:
                    continue
                epoch = unconfirmed.pop(tp)
                if UNDEFINED_EPOCH_OFFSET < epoch_end.end_offset < offsets[tp]:
                    self._raise_or_warn_diverged(tp, offsets[tp], epoch, epoch_end)
                    offsets[tp] = epoch_end.end_offset
            if not unconfirmed:
                break
            self._wait_for_leaders(unconfirmed)
        return offsets

    def _wait_for_leaders(self, epochs: Offsets) -> None:
        """Waits before the next request to the leaders of these partitions.

        Raises:
            DeadlineExceeded: no time is left for such a request.
        """
        backoff = self._cluster.options.retry_backoff_max
        if self._deadline.remaining() <= backoff + MIN_BROKER_TIMEOUT:
            raise DeadlineExceeded(
                f"The leaders of {names(epochs)} do not return where earlier leader epochs end.",
                "If the brokers were restored from an older copy, the commits of group"
                f" '{self._options.group.group_id}' are newer than their logs: give offsets in 'startingOffsets'.",
            )
        time.sleep(backoff)

    def _raise_or_warn_diverged(self, tp: TopicPartition, offset: int, epoch: int, epoch_end: EpochEndOffset) -> None:
        """Reports that the log ends ``epoch`` before the committed ``offset`` of that epoch."""
        raise_or_warn(
            log,
            self._fetch.fail_on_data_loss,
            f"The group '{self._options.group.group_id}' has committed offset {offset} for {tp}, whose"
            f" log was truncated at offset {epoch_end.end_offset} (leader epoch {epoch} then,"
            f" {epoch_end.leader_epoch} now)",
            "An unclean leader was elected. Set failOnDataLoss to false to read from the first replaced record, or give"
            " other startingOffsets.",
            "The read starts at the first replaced record",
        )


def _check_order(starts: Offsets, ends: Offsets, start: StartSpec, end: EndSpec) -> None:
    wrong: list[str] = []
    for tp in sorted(starts):
        if starts[tp] > ends[tp]:
            wrong.append(f"{tp} starts at {starts[tp]} and ends at {ends[tp]}")
    if not wrong:
        return
    options = [f"'{spec.option}'" for spec in (start, end) if hasattr(spec, "option")]
    raise OptionError(
        f"The read ends before it starts: {some(wrong, '; ')}.",
        f"Give {' and '.join(options)} so that each start is at most its end.",
    )
