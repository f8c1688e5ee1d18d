"""The broker to fetch each position from: its leader, whose log is checked after an election, or a follower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spark_group_source.clock import Deadline
from spark_group_source.errors import RetriableError, TopicError
from spark_group_source.fetch.error_handler import FetchErrorHandler, metadata_error
from spark_group_source.fetch.position import FetchPosition
from spark_group_source.fetch.preferred_replicas import PreferredReplicas
from spark_group_source.offsets import UNKNOWN_EPOCH
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leader_epochs import UNDEFINED_EPOCH_OFFSET, epoch_end_offsets
from spark_group_source.wire.metadata import Topic


class BrokerSelection:
    """The brokers to fetch the positions of one task from."""

    def __init__(self, cluster: Cluster, replicas: PreferredReplicas, errors: FetchErrorHandler) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._errors = errors

    def brokers(self, positions: Sequence[FetchPosition], deadline: Deadline) -> Iterator[tuple[FetchPosition, int]]:
        """Each position with the broker to fetch from: its leader, or a follower.

        Requests new metadata after an error of any position. A position without a leader backs off.

        Args:
            deadline: the deadline of each lookup.

        Raises:
            DataLoss, TopicError: as :meth:`FetchErrorHandler.handle_error`.
        """
        try:
            topics = self._metadata(positions, deadline)
        except RetriableError as error:
            self._errors.back_off(positions, error.happened)
            return
        with_leader = []
        for position in positions:
            leader = self._leader(position, topics)
            if leader is not None:
                with_leader.append((position, leader))
        self._check_epochs([position for position, _ in with_leader if position.needs_epoch_check], topics, deadline)
        for position, leader in with_leader:
            if not position.needs_epoch_check:
                yield position, self._replicas.broker(position.tp, leader)

    def _metadata(self, positions: Sequence[FetchPosition], deadline: Deadline) -> Mapping[str, Topic]:
        """The topics of the positions. Requests new metadata if a position had an error, or if the known metadata is
        older than the plan or lacks partitions."""
        topic_names = {position.tp.topic for position in positions}
        fresh = any(position.backoff for position in positions)
        topics = self._cluster.topics(topic_names, deadline, fresh=fresh)
        if fresh:
            return topics
        if _is_older_than_plan(topics, positions) or _lacks_partitions(topics, positions):
            return self._cluster.topics(topic_names, deadline, fresh=True)
        return topics

    def _leader(self, position: FetchPosition, topics: Mapping[str, Topic]) -> int | None:
        """The leader of a position; ``None`` if the position backs off. Notes the leader's epoch and the topic's id."""
        topic = topics.get(position.tp.topic)
        error_code = metadata_error(position, topic)
        if error_code:
            self._errors.handle_error(position, error_code)
            return None
        if topic is None:
            return None  # which is an error above
        if topic.id:
            position.topic_id = topic.id
        position.leader_epoch = _leader_epoch(position, topics)
        leader = topic.partitions.get(position.tp.partition)
        if leader is None:
            self._errors.back_off([position], "it has no leader, or does not exist")
        return leader

    def _check_epochs(
        self, positions: Sequence[FetchPosition], topics: Mapping[str, Topic], deadline: Deadline
    ) -> None:
        """Asks each leader that was elected after the plan whether its log still has the range up to its end."""
        if not positions:
            return
        verified_epochs = {position.tp: position.verified_epoch for position in positions}
        try:
            epoch_ends = epoch_end_offsets(self._cluster, topics, verified_epochs, deadline)
        except TopicError as error:
            self._errors.handle_denied_lookup(positions, error)
            return
        for position in positions:
            epoch_end = epoch_ends.get(position.tp)
            if epoch_end is None:
                self._errors.back_off([position], "its leader does not answer OffsetForLeaderEpoch")
            elif epoch_end.end_offset == UNDEFINED_EPOCH_OFFSET:
                epochs = f"epoch {epoch_end.leader_epoch}, older than epoch {position.verified_epoch} before"
                self._errors.back_off([position], f"its leader has {epochs}")
            elif epoch_end.end_offset < position.range.end:
                self._errors.handle_truncation(position, epoch_end)
            else:
                position.verified_epoch = epoch_end.leader_epoch


def _is_older_than_plan(topics: Mapping[str, Topic], positions: Sequence[FetchPosition]) -> bool:
    """Whether any leader has an earlier epoch than the leader for which the driver planned the range."""
    return any(UNKNOWN_EPOCH < _leader_epoch(position, topics) < position.verified_epoch for position in positions)


def _lacks_partitions(topics: Mapping[str, Topic], positions: Sequence[FetchPosition]) -> bool:
    """Whether a partition is unknown: the metadata is from before it was added, or is that of another task."""
    for position in positions:
        topic = topics.get(position.tp.topic)
        if topic is not None and not topic.error and position.tp.partition not in topic.partitions:
            return True
    return False


def _leader_epoch(position: FetchPosition, topics: Mapping[str, Topic]) -> int:
    topic = topics.get(position.tp.topic)
    if topic is None:
        return UNKNOWN_EPOCH
    return topic.epochs.get(position.tp.partition, UNKNOWN_EPOCH)
