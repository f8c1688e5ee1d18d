"""Data loss: records that a query was to read, or has read, and that are no longer in their logs.

``failOnDataLoss`` decides. If it is true each kind raises :class:`DataLoss`; if it is false the query continues, and
logs a warning. The kinds, in the order in which they are checked:

1. When the query starts: a topic or partition was **deleted** (``TopicValidator``).
2. When a partition starts: its ``startingOffsets`` are **outside the log** (``start_specs``), or it was added and does
   not begin at offset 0, so its first records were **deleted unread** (``StartOffsetResolver``).
3. Before each batch, in ``BatchPlanner._ends_without_loss``:
   a. a topic was **recreated**: it has another topic id;
   b. a topic that the query has read was **deleted**;
   c. a partition is **unknown to all brokers** (``EndOffsets``);
   d. the log **diverged**: it was truncated by a new leader before the position (``EpochCheck``);
   e. the log was **truncated**: it ends before the position.
4. In an AvailableNow run: the log was **truncated before the target** of the run.
5. In a task: retention has deleted records of its range, or the log was truncated in it (``fetch/error_handler.py``).

A leader that does not answer (leader unavailable) is no data loss: the query waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from typing import NamedTuple, TypeVar

from spark_group_source.errors import raise_or_warn
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.membership import Membership
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import BatchOffset, Offsets, TopicPartition, topics_of
from spark_group_source.query.end_offsets import EndOffsets
from spark_group_source.query.epoch_check import EpochCheck, LogTruncation
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.ownership import AssignedPartitions
from spark_group_source.query.topic_ids import TopicIds
from spark_group_source.query.topics import raise_or_skip_deleted
from spark_group_source.query.truncation import TruncationCheck
from spark_group_source.text import names

log = logging.getLogger(__name__)
Loss = TypeVar("Loss")


class Truncated(NamedTuple):
    """Partitions whose logs were truncated before the position.

    ``diverged`` are those that a new leader truncated. ``shortened`` has the ends of the logs that end before the
    position.
    """

    diverged: Mapping[TopicPartition, LogTruncation]
    shortened: Offsets


class DataLossCheck:
    """Checks for data loss before each batch. Only the query's thread may call it.

    ``deleted`` are topics that the query has read and that were deleted, until no logged offset contains them. Each
    ``raise_or_...`` method raises :class:`DataLoss` if ``failOnDataLoss`` is true.
    """

    def __init__(
        self,
        subscription: Subscription,
        end_offsets: EndOffsets,
        epochs: EpochCheck,
        truncation: TruncationCheck,
        topic_ids: TopicIds,
        assigned_partitions: AssignedPartitions,
        clients: KafkaClients,
        fail_on_data_loss: bool,
    ) -> None:
        self.deleted: set[str] = set()
        self._subscription = subscription
        self._end_offsets = end_offsets
        self._epochs = epochs
        self._truncation = truncation
        self._topic_ids = topic_ids
        self._assigned_partitions = assigned_partitions
        self._clients = clients
        self._fail_on_data_loss = fail_on_data_loss

    def find_truncated(self, owned: Owned, end_offsets: Offsets) -> Truncated:
        """Finds the partitions whose log no longer has all records before the position.

        Requests the ends of the positions' epochs from each new leader, and repeats the lookup of an end that lies
        before the position.

        Args:
            owned: the permitted partitions, with their positions.
            end_offsets: the ends of their logs.
        """
        diverged = self._epochs.diverged(owned, self._end_offsets.epochs)
        shortened: Offsets = {}
        if not diverged:
            shortened = self._truncation.ends_before(self._epochs.confirmed(_past_end(owned, end_offsets)))
        return Truncated(self._in_same_topics(diverged), self._in_same_topics(shortened))

    def _in_same_topics(self, lost: Mapping[TopicPartition, Loss]) -> dict[TopicPartition, Loss]:
        """Leaves out partitions of topics that any broker knows under another id.

        Such a topic was recreated, and the other brokers have old metadata.
        """
        if not lost:
            return {}
        others = self._topic_ids.under_other_ids(topics_of(lost))
        return {tp: loss for tp, loss in lost.items() if tp.topic not in others}

    def raise_or_restart_recreated(self, topics: set[str], me: Membership) -> bool:
        """Reads recreated topics from earliest, because old offsets mean nothing in them. Returns whether there is
        one."""
        recreated = self._topic_ids.recreated(topics)
        if not recreated:
            return False
        raise_or_warn(
            log,
            self._fail_on_data_loss,
            f"Topic {names(recreated)} was deleted and recreated since this query read it",
            "Start with a new checkpoint and reset the group's offsets, or set failOnDataLoss to false to read the new"
            " topic from its earliest offset.",
            "The query reads the new topic from its earliest offset",
        )
        self._restart_recreated(recreated, me)
        return True

    def _restart_recreated(self, ids: Mapping[str, str], me: Membership) -> None:
        """Forgets everything about the former topics. No other object may keep their offsets, ends or epochs."""
        self._end_offsets.forget(ids.keys())
        self._topic_ids.accept_recreated(ids)
        self.deleted -= ids.keys()
        self._assigned_partitions.restart_topics(ids, me, self._clients)

    def raise_or_forget_deleted(self, start: BatchOffset, topics: set[str], me: Membership) -> None:
        """Looks for deleted topics among the topics that the query has read and does not own now."""
        if not self._fail_on_data_loss:
            self._restart_recreated_elsewhere(topics, me)
        read = topics_of(start.ranges)
        self.deleted -= topics
        deleted = self._deleted_of(read - topics - self.deleted)
        raise_or_skip_deleted(deleted, self._fail_on_data_loss)
        self.deleted |= deleted
        self._forget(self.deleted - read)
        if self._subscription.pattern is not None:
            # In topics that it never read, the query has lost nothing.
            self._forget(self._topic_ids.unread_and_gone(topics_of(start.pinned_starts) - topics - read))

    def _restart_recreated_elsewhere(self, topics: set[str], me: Membership) -> None:
        """Looks for recreated topics among those that the query has read, without ``topics`` and other readable ones.

        The query has no position in the topics that it finds, so it only forgets their old offsets. If the group
        assigns their partitions to this query later, the query starts at the group's commits.
        """
        others = self._topic_ids.read.keys() - topics
        if not others:
            return
        recreated = self._topic_ids.recreated(others - topics_of(me.readable))
        if recreated:
            self._restart_recreated(recreated, me)

    def _deleted_of(self, topics: set[str]) -> set[str]:
        """Those of these topics that were deleted although the query still subscribes to them."""
        subscribed = {name for name in topics if self._subscription.matches(name)}
        if not subscribed:
            return set()
        return self._topic_ids.deleted(subscribed)

    def _forget(self, deleted: Set[str]) -> None:
        """Forgets deleted topics, because a pattern may match many. If such a topic is recreated, it counts as added,
        and is read from earliest too."""
        if not deleted:
            return
        forgotten = self._assigned_partitions.tracker.forget(deleted)
        self._topic_ids.forget(forgotten)
        self.deleted -= forgotten

    def raise_or_rewind(self, truncated: Truncated, owned: Owned, me: Membership) -> None:
        """Rewinds to the first record that a new leader lost or replaced, and to the ends of logs that end before it.

        A leader that is older than the position does not know that record: the query continues at the position.
        """
        offsets = dict(truncated.shortened)
        positions = {tp: partition.position for tp, partition in owned.items()}
        epochs = {tp: partition.epoch for tp, partition in owned.items()}
        self.raise_or_accept_truncated(truncated.shortened, positions, "where this query continues")
        for tp, loss in sorted(truncated.diverged.items()):
            offsets[tp] = loss.resumes_at(positions[tp])
            epochs[tp] = loss.leader
            self._raise_or_warn(
                loss.happened(tp, positions[tp]),
                "An unclean leader was elected, or the brokers were restored from an older copy.",
                f"offset {offsets[tp]}",
            )
        self._assigned_partitions.rewind(offsets, epochs, owned, me, self._clients)

    def raise_or_accept_truncated(self, truncated: Offsets, offsets: Offsets, where: str) -> None:
        """Accepts that logs end before ``offsets``, whose records never come back. The message says ``where`` the query
        needs them."""
        for tp, end in sorted(truncated.items()):
            self._raise_or_warn(
                f"{tp} ends at offset {end}, before offset {offsets[tp]} {where}",
                "The log was truncated, or the position was set beyond its end.",
                "the end of the log",
            )

    def _raise_or_warn(self, happened: str, reason: str, resumes_at: str) -> None:
        raise_or_warn(
            log,
            self._fail_on_data_loss,
            happened,
            f"{reason} Start with a new checkpoint and reset the group's offsets, or set failOnDataLoss to false to"
            f" continue at {resumes_at}.",
            f"The query continues at {resumes_at}",
        )


def _past_end(owned: Owned, end_offsets: Offsets) -> dict[TopicPartition, int]:
    """The positions after the ends of their logs."""
    past_end = {}
    for tp, end in end_offsets.items():
        position = owned[tp].position
        if end < position:
            past_end[tp] = position
    return past_end
