"""Records that are gone from topics that a query reads: it fails, or goes on, as ``failOnDataLoss`` says."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_group_source.errors import DataLoss
from spark_group_source.fetch.offset_for_leader_epoch import UNDEFINED_EPOCH_OFFSET
from spark_group_source.group.state import Membership
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import BatchOffset, Offsets, TopicPartition
from spark_group_source.query.assigned_partitions import AssignedPartitions
from spark_group_source.query.kafka_clients import KafkaClients
from spark_group_source.query.planning.end_offsets import continue_without
from spark_group_source.query.planning.leader_epochs import LogTruncation
from spark_group_source.query.planning.topic_ids import TopicIds

log = logging.getLogger(__name__)


class DataLossPolicy:
    """What was lost while a query runs; ``gone`` are topics that were read and do not exist any more.

    All methods are the query's, and raise :class:`DataLoss` where ``failOnDataLoss`` is true.
    """

    def __init__(
        self,
        subscription: Subscription,
        ids: TopicIds,
        share: AssignedPartitions,
        access: KafkaClients,
        fail_on_data_loss: bool,
    ) -> None:
        self.gone: set[str] = set()
        self._subscription = subscription
        self._ids = ids
        self._share = share
        self._access = access
        self._fail_on_data_loss = fail_on_data_loss

    def start_over(self, topics: set[str], me: Membership) -> bool:
        """Offsets in a topic that is no more mean nothing in the one that has its name now. Whether there is one."""
        anew = self._ids.made_anew(topics)
        if not anew:
            return False
        names = ", ".join(sorted(anew))
        if self._fail_on_data_loss:
            raise DataLoss(
                f"Topic {names} was deleted and made anew since this query read it.",
                "Start with a new checkpoint and reset the group's offsets, or set failOnDataLoss to false to read the"
                " new one from its beginning.",
            )
        log.warning("topic %s was made anew; it is read from its beginning, as failOnDataLoss is false", names)
        self._accept(anew, me)
        return True

    def _accept(self, anew: set[str], me: Membership) -> None:
        self._share.start_over(anew, me, self._access)
        self._ids.accept(anew)
        self.gone -= anew

    def continue_without(self, start: BatchOffset, topics: set[str], me: Membership) -> None:
        """Looks for topics that this query has read and that others own, or nobody any more: they may be deleted.

        In one that was made anew meanwhile this query has no place: it goes on at their commits, should it own it.
        """
        if not self._fail_on_data_loss and (others := self._ids.read.keys() - topics):
            anew = self._ids.made_anew(others - {tp.topic for tp in me.readable})
            if anew:
                self._accept(anew, me)
        read = {tp.topic for tp in start.ranges}
        self.gone -= topics
        elsewhere = {name for name in read - topics - self.gone if self._subscription.matches(name)}
        gone = self._ids.gone(elsewhere) if elsewhere else set()
        continue_without(gone, self._fail_on_data_loss)
        self.gone |= gone

    def go_back(self, cut: Offsets, positions: Offsets, me: Membership) -> bool:
        """Where a log ends before the position, reading goes on at its end. Whether there is one."""
        for tp, end in sorted(cut.items()):
            self._judge_cut(f"{tp} ends at offset {end}, before offset {positions[tp]} where this query goes on")
        return self._go_back(cut, me)

    def go_back_to(self, replaced: Mapping[TopicPartition, LogTruncation], positions: Offsets, me: Membership) -> bool:
        """Where records before the position were replaced, the query goes back to the first. Whether there are some.

        A leader that is older than the position does not know the first: the query goes on at the position.
        """
        ends = {tp: positions[tp] if each.end == UNDEFINED_EPOCH_OFFSET else each.end for tp, each in replaced.items()}
        for tp, each in sorted(replaced.items()):
            self._judge(
                each.happened(tp, positions[tp]),
                "An unclean leader was elected, or the brokers were restored from an older copy.",
                f"offset {ends[tp]}",
            )
        return self._go_back(ends, me)

    def _go_back(self, ends: Offsets, me: Membership) -> bool:
        if ends:
            self._share.go_back(ends, me, self._access)
        return bool(ends)

    def accept_cut(self, cut: Offsets, target: Offsets) -> None:
        """What was cut off a log since a run to ``target`` began is never written again as it was."""
        for tp, end in sorted(cut.items()):
            self._judge_cut(f"{tp} ends at offset {end}, before offset {target[tp]} where this run was to end")

    def _judge_cut(self, happened: str) -> None:
        self._judge(happened, "The log was cut, or the position set behind it.", "the end of the log")

    def _judge(self, happened: str, reason: str, where: str) -> None:
        if self._fail_on_data_loss:
            raise DataLoss(
                f"{happened}.",
                f"{reason} Start with a new checkpoint and reset the group's offsets, or set failOnDataLoss to false to"
                f" go on at {where}.",
            )
        log.warning("%s: it goes on at %s, as failOnDataLoss is false", happened, where)
