"""ListOffsets: the earliest or latest offset of partitions, or the first offset at or after a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import UNKNOWN_TOPIC_OR_PARTITION, BrokerUnavailable, DeadlineExceeded, TopicError
from spark_group_source.offsets import Offsets, TopicPartition, topics_of
from spark_group_source.wire import waiting
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import CONSUMER, PartitionErrors, partition_error, send_to_leaders
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.stale_metadata import EveryBroker, unknown_to_all

MIN_ATTEMPTS = 4
"""Minimum number of attempts before a partition counts as missing: brokers learn of new partitions one after the
other."""


@dataclass(slots=True)
class ListedOffsets:
    """The outcome of a lookup. A partition without an answer is in neither ``offsets`` nor ``missing``.

    ``offsets`` holds -1 for a partition without a record at or after the requested time. ``epochs`` holds the leader
    epoch that the response has with an offset; with the latest offset, it is the epoch of the leader that answered.
    ``missing`` are the partitions that no broker knows.
    """

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    missing: set[TopicPartition] = field(default_factory=set)

    def left_of(self, timestamps: Offsets) -> dict[TopicPartition, int]:
        """The partitions of ``timestamps`` that have no outcome yet."""
        return {tp: at for tp, at in timestamps.items() if tp not in self.offsets and tp not in self.missing}


def list_offsets(
    cluster: Cluster, timestamps: Offsets, *, read_committed: bool, deadline: Deadline, partial: bool = False
) -> ListedOffsets:
    """Looks up the offset of each partition at -2 (earliest), -1 (latest) or a timestamp in milliseconds.

    Partitions whose leader moved are retried.

    Args:
        partial: whether to return after about :data:`MIN_ATTEMPTS` attempts even if some partitions have no offset.
            ``missing`` then holds the partitions that two attempts in a row did not find and that no broker knows.
            Partitions without an answer from their leader are in neither ``offsets`` nor ``missing``. If that is the
            case for all partitions, raises DeadlineExceeded without waiting for the deadline; the caller retries.

    Raises:
        TopicError: the principal may not describe a topic; or, unless ``partial``, a topic is unknown at the deadline.
        BrokerUnavailable: no broker returned the leaders.
        DeadlineExceeded: a leader did not answer in time; with ``partial``, no partition has an offset or is missing.
    """
    return _Lookup(cluster, timestamps, read_committed, deadline, partial).run()


class _Lookup:
    """One lookup and its attempts."""

    def __init__(
        self, cluster: Cluster, timestamps: Offsets, read_committed: bool, deadline: Deadline, partial: bool
    ) -> None:
        self._cluster = cluster
        self._timestamps = timestamps
        self._read_committed = read_committed
        self._deadline = deadline
        self._partial = partial
        self._found = ListedOffsets()
        self._attempts = 0
        self._errors: PartitionErrors = {}
        self._unknown: set[TopicPartition] = set()

    def run(self) -> ListedOffsets:
        """Repeats attempts with a backoff until each partition has an outcome, or a partial lookup has made enough
        attempts."""
        backoff = self._cluster.options.retry_backoff
        while True:
            pending = self._found.left_of(self._timestamps)
            if not pending:
                return self._found
            unknown_before = self._unknown
            have_metadata = self._attempt(pending)
            if have_metadata:
                self._note_missing(unknown_before)
            if not self._found.left_of(pending):
                return self._found
            if not have_metadata or self._deadline.remaining() <= backoff or self._is_settled(unknown_before):
                return self._give_up()
            waiting.sleep(backoff, self._deadline)
            backoff = min(backoff * 2, self._cluster.options.retry_backoff_max)

    def _attempt(self, pending: Offsets) -> bool:
        """Asks each leader once.

        Returns:
            False if no broker sent new leaders before the deadline. The errors of the attempt before explain more, so
                they stay.

        Raises:
            BrokerUnavailable: no broker sent the leaders for the first attempt.
        """
        self._attempts += 1
        try:
            topics = self._topics(topics_of(pending))
        except BrokerUnavailable:
            if not self._errors:
                raise
            return False
        self._errors = self._ask_leaders(topics, pending)
        self._unknown = _unknown_partitions(self._errors)
        return True

    def _topics(self, names: set[str]) -> Mapping[str, Topic]:
        """The topics with their leaders. If one broker did not know all partitions, asks every broker."""
        if self._unknown:
            return EveryBroker(self._cluster).metadata(names, self._deadline).topics
        return self._cluster.topics(names, self._deadline, fresh=self._attempts > 1)

    def _ask_leaders(self, topics: Mapping[str, Topic], pending: Offsets) -> PartitionErrors:
        """Sends one request to each leader and notes the offsets in the responses; returns the errors."""
        responses, errors = send_to_leaders(
            self._cluster,
            topics,
            pending,
            lambda part: _list_offsets_request(part, self._read_committed),
            self._deadline,
        )
        for response in responses:
            for topic in response.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code:
                        errors[tp] = partition_error(tp, partition.error_code)
                    else:
                        self._note_offset(tp, partition)
        for tp in pending:
            if tp not in self._found.offsets and tp not in errors:
                errors[tp] = BrokerUnavailable(f"The response of the leader of {tp} does not have the partition.")
        return errors

    def _note_offset(self, tp: TopicPartition, partition: Any) -> None:
        self._found.offsets[tp] = partition.offset
        if partition.offset >= 0:
            self._found.epochs[tp] = partition.leader_epoch

    def _note_missing(self, unknown_before: set[TopicPartition]) -> None:
        """Notes the partitions that two attempts in a row did not find, if no broker knows them."""
        # A broker that has just started knows no topics, so one response is not enough.
        if self._partial and self._attempts >= MIN_ATTEMPTS:
            self._found.missing |= unknown_to_all(self._cluster, self._unknown & unknown_before, self._deadline)

    def _is_settled(self, unknown_before: set[TopicPartition]) -> bool:
        """Whether a partial lookup has made its attempts, and another one would not show more missing partitions."""
        return self._partial and self._attempts >= MIN_ATTEMPTS and self._unknown <= unknown_before

    def _give_up(self) -> ListedOffsets:
        """Returns the outcome so far of a partial lookup. For any other lookup, raises the first error."""
        # The next call requests the leaders first, because a silent leader may have been replaced.
        self._cluster.invalidate_topics(tp.topic for tp in self._errors)
        if self._partial and (self._found.offsets or self._found.missing):
            return self._found
        tp, first = sorted(self._errors.items())[0]
        if isinstance(first, TopicError) and not self._partial:
            raise first
        others = len(self._errors) - 1
        more = f" (and {others} more partitions)" if others else ""
        raise DeadlineExceeded(f"The offset lookup of {tp}{more} timed out: {first.happened}")


def _unknown_partitions(errors: PartitionErrors) -> set[TopicPartition]:
    unknown = set()
    for tp, error in errors.items():
        if isinstance(error, TopicError) and error.error_code == UNKNOWN_TOPIC_OR_PARTITION:
            unknown.add(tp)
    return unknown


def _list_offsets_request(timestamps: Mapping[TopicPartition, int], read_committed: bool) -> Any:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for tp, timestamp in timestamps.items():
        partition = topic_class.ListOffsetsPartition(
            partition_index=tp.partition, current_leader_epoch=-1, timestamp=timestamp
        )
        by_topic[tp.topic].append(partition)
    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    return ListOffsetsRequest(
        replica_id=CONSUMER,
        isolation_level=level,
        topics=[topic_class(name=t, partitions=p) for t, p in by_topic.items()],
    )
