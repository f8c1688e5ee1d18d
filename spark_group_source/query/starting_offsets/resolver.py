"""Where partitions start that the group has just given to a query."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from spark_group_source.clock import Deadline
from spark_group_source.errors import DataLoss, DeadlineExceeded, GroupSourceError, OptionError
from spark_group_source.fetch.list_offsets import list_offsets
from spark_group_source.group.commits import CommittedOffset as Commit
from spark_group_source.group.commits import resume_at
from spark_group_source.group.events import RequestFailed
from spark_group_source.listing import names, some
from spark_group_source.offsets import BatchOffset, OffsetRange, Offsets, Partitions, TopicPartition
from spark_group_source.options.offset_specs import (
    Earliest,
    FromCommitted,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    StartSpec,
)
from spark_group_source.options.stream_and_batch import stream_start
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.commits.shared_ledger import Claim, FirstStart, SharedLedger
from spark_group_source.query.kafka_clients import KafkaClients
from spark_group_source.query.starting_offsets.rebalance_callback import rebalance_callback
from spark_group_source.query.starting_offsets.resolution import resolve

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT = 10.0
"""Most seconds that leaders have to tell start positions, after the group has told its offsets; what is not found is
looked for again."""


class StartOffsetResolver:
    """Finds starts and notes them in the ledger, for whichever thread has claimed the partitions there."""

    def __init__(self, options: SourceOptions, ledger: SharedLedger) -> None:
        self._options = options
        self._ledger = ledger
        self._group_id = options.group_id
        self._callback = rebalance_callback(options.rebalance_callback)
        self._latest: Offsets | None = None
        self._replayed: Mapping[TopicPartition, OffsetRange] = {}
        self._group_unnamed = False

    def restore(
        self, logged: BatchOffset, existing: Partitions, access: KafkaClients, *, replayed: bool = False
    ) -> None:
        """Begins where the checkpoint stands. Caller: the query, before the member starts.

        With nothing ``logged`` the checkpoint is new: ``resetOffsetsOnStart`` applies to the first share, and
        ``startingOffsets`` to the partitions ``existing`` now. That is decided once: the checkpoint keeps what is still
        to be done of it. What comes into being later is read from its beginning, as by Spark's own source: a query that
        starts at the latest offsets must not miss the first records of a partition that was added while it runs.

        Args:
            replayed: Spark has read the batch ``logged`` once more, since an earlier process did not complete it.

        Raises:
            GroupSourceError: a leader refuses for good to tell the end of its log.
        """
        reset = self._options.reset_offsets_on_start
        offsets = logged.starts
        if logged.is_empty:
            latest = self.decide(existing, access)
            offsets = {tp: latest.get(tp) for tp in existing}
        no_share_yet = not (logged.ranges or logged.resets)
        first = FirstStart(offsets, logged.resets if reset else frozenset(), reset and no_share_yet)
        self._ledger.restore(logged.ends(), first)
        self._replayed = {each.tp: each for each in logged.reads()} if replayed else {}
        self._group_unnamed = bool(logged.ranges) and not logged.group

    def decide(self, existing: Partitions, access: KafkaClients) -> Offsets:
        """The latest offsets of these partitions as the query starts, if ``startingOffsets`` means them.

        Nothing else that it may say changes with time. The offsets are looked up once, also of partitions that this
        query comes to own later, so that nothing that arrives meanwhile is skipped. Caller: the query.
        """
        if self._latest is None:
            self._latest = self._look_up_latest(existing, access)
        return self._latest

    def _look_up_latest(self, existing: Partitions, access: KafkaClients) -> Offsets:
        at = _without_commits(stream_start(self._options))
        latest = [
            tp for tp in existing if isinstance(at.offsets.get(tp) if isinstance(at, SpecificOffsets) else at, Latest)
        ]
        try:
            return self._at(Latest(), latest, access, Deadline.after(RESOLVE_TIMEOUT)) if latest else {}
        except GroupSourceError as error:
            if not error.retriable:
                raise
            log.warning("group %s: the latest offsets are looked up later: %s", self._group_id, error)
            return {}

    @property
    def timeout(self) -> float:
        """Most seconds that :meth:`find` needs."""
        return RESOLVE_TIMEOUT + self._options.offset_fetch_timeout

    def find(self, claim: Claim, access: KafkaClients, deadline: Deadline) -> None:
        """Notes where the claimed partitions start; those of which no leader tells it are left out.

        Raises:
            DataLoss, OptionError: there is no such start as the options say.
            GroupSourceError: the group or the leaders do not answer, or refuse.
        """
        partitions = claim.partitions
        committed = access.offsets.committed(partitions, deadline)
        if isinstance(committed, RequestFailed):
            raise committed.error or DeadlineExceeded(f"The committed offsets cannot be read: {committed.reason}.")
        first = self._ledger.first_start()
        starting = {tp for tp, each in committed.items() if each.tagged_reset}
        if reset := (partitions & first.resets) - starting:
            log.info("group %s: resetOffsetsOnStart moves %s", self._group_id, names(reset))
            committed = {tp: each for tp, each in committed.items() if tp not in reset}
        logged, anew = self._ledger.logged(partitions)
        self._warn(committed, logged)
        # The group's commit of a topic made anew is one in the old topic.
        committed = {tp: each for tp, each in committed.items() if tp not in anew}
        unknown = frozenset(tp for tp in partitions if tp not in committed and logged[tp] is None)
        existing = first.offsets.keys() - anew
        decided = {tp: at for tp, at in first.offsets.items() if at is not None and tp in unknown & existing}
        starts = decided | self._without_commit((unknown & existing) - decided.keys(), access, deadline)
        starts |= self._of_new(unknown - existing - anew, access, deadline)
        starts |= self._at(Earliest(), unknown & anew, access, deadline)
        silent = unknown - starts.keys()
        if silent:
            log.warning("group %s: no start position for %s: no leader tells it", self._group_id, names(silent))
        positions = {tp: resume_at(committed.get(tp), logged[tp], starts.get(tp)) for tp in partitions - silent}
        moved = self._callback(logged, positions)
        # A position that was set anew is committed even where the group has a further one.
        kept = {tp: each for tp, each in committed.items() if tp not in moved}
        self._ledger.started(claim, {tp: moved.get(tp, at) for tp, at in positions.items()}, kept, starts)

    def _warn(self, committed: Mapping[TopicPartition, Commit], logged: Mapping[TopicPartition, int | None]) -> None:
        """Says what the checkpoint and the group's commits together make probable, once."""
        known = {tp for tp, end in logged.items() if end is not None}
        if self._group_unnamed and known and not known & committed.keys():
            self._group_unnamed = False
            log.warning(
                "group %s: the checkpoint does not name its group, and this one has committed nothing of %s. If the"
                " checkpoint belongs to another group, stop the query and use a new checkpoint location.",
                self._group_id,
                names(known),
            )
        past = [
            f"{tp} [{self._replayed[tp].start}, {min(each.offset, self._replayed[tp].end)})"
            for tp, each in sorted(committed.items())
            if tp in self._replayed and each.offset > self._replayed[tp].start
        ]
        if past:
            log.warning(
                "group %s: the batch that this query has just replayed was read by others since it was logged: %s. Rows"
                " that are added up or appended outside of this query's sink are there twice. Queries that keep state"
                " should not share a group.",
                self._group_id,
                some(past),
            )
        # From here on their commits are this query's own.
        self._replayed = {tp: each for tp, each in self._replayed.items() if tp not in logged}

    def beginnings(self, partitions: Partitions, access: KafkaClients) -> dict[TopicPartition, int]:
        """Where the logs of these partitions begin, as far as leaders tell."""
        return self._at(Earliest(), partitions, access, Deadline.after(RESOLVE_TIMEOUT))

    def _without_commit(
        self, partitions: Partitions, access: KafkaClients, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        at = _without_commits(stream_start(self._options))
        if at is None:
            raise OptionError(
                f"The group '{self._group_id}' has no committed offset of {names(partitions)}, and"
                " 'startingOffsetsFallback' is fail.",
                "Commit some (kafka-consumer-groups --reset-offsets), or set the option to earliest or latest.",
            )
        return self._at(at, partitions, access, deadline)

    def _of_new(self, partitions: Partitions, access: KafkaClients, deadline: Deadline) -> dict[TopicPartition, int]:
        """Where partitions begin that came into being while nobody read them.

        Raises:
            DataLoss: that is not offset 0: what came before was deleted unread, and ``failOnDataLoss`` is true.
        """
        starts = self._at(Earliest(), partitions, access, deadline)
        late = {tp: at for tp, at in starts.items() if at > 0}
        if not late:
            return starts
        gaps = some([f"{tp} at offset {at}" for tp, at in sorted(late.items())])
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"Partitions that are new to the group '{self._group_id}' do not begin at offset 0: {gaps}.",
                "What came before was deleted unread. To go on without it set failOnDataLoss to false, or commit where"
                " to start (kafka-consumer-groups --reset-offsets).",
            )
        log.warning(
            "group %s: new partitions do not begin at offset 0: %s; they are read from there, as failOnDataLoss is"
            " false",
            self._group_id,
            gaps,
        )
        return starts

    def _at(
        self, place: OffsetSpec, partitions: Collection[TopicPartition], access: KafkaClients, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        def ask(wanted: Offsets) -> Offsets:
            return list_offsets(
                access.cluster,
                wanted,
                read_committed=self._options.read_committed,
                deadline=deadline,
                missing=set(),  # those are left out, and stay unresolved
            )

        return resolve(place, partitions, ask, self._options.fail_on_data_loss)


def _without_commits(at: StartSpec) -> OffsetSpec | None:
    """What is said of partitions without a committed offset; ``None`` where that is an error."""
    return at.fallback if isinstance(at, FromCommitted) else at
