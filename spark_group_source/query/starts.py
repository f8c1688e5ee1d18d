"""Where partitions start that the group has just given to a query."""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_group_source.clock import Deadline
from spark_group_source.errors import DataLoss, DeadlineExceeded, OptionError
from spark_group_source.fetch.positions import log_offsets
from spark_group_source.group.commits import resume_at
from spark_group_source.group.events import Refused
from spark_group_source.listing import names, some
from spark_group_source.offsets import Offsets, Partitions, TopicPartition
from spark_group_source.options.bounds import Committed, Earliest, Place
from spark_group_source.options.modes import stream_start
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.access import Access
from spark_group_source.query.rebalance_callback import rebalance_callback
from spark_group_source.query.resolution import resolve
from spark_group_source.query.shared_ledger import Claim, SharedLedger

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT = 10.0
"""Most seconds that leaders have to tell start positions, after the group has told its offsets; what is not found is
looked for again."""


class Starts:
    """Finds starts and notes them in the ledger, for whichever thread has claimed the partitions there."""

    def __init__(self, options: SourceOptions, ledger: SharedLedger) -> None:
        self._options = options
        self._ledger = ledger
        self._group_id = options.group_id
        self._callback = rebalance_callback(options.rebalance_callback)
        self._resetting = False
        self._existing: Partitions = frozenset()

    def restore(self, logged: Offsets, existing: Partitions) -> None:
        """Begins where the checkpoint stands. Caller: the query, before the member starts.

        With nothing ``logged`` the checkpoint is new: ``resetOffsetsOnStart`` applies to the first share, and
        ``startingOffsets`` to the partitions ``existing`` now. What comes into being later is read from its beginning,
        as by Spark's own source: a query that starts at the latest offsets must not miss the first records of a
        partition that was added while it runs.
        """
        self._resetting = self._options.reset_offsets_on_start and not logged
        self._existing = frozenset() if logged else existing

    @property
    def timeout(self) -> float:
        """Most seconds that :meth:`find` needs."""
        return RESOLVE_TIMEOUT + self._options.offset_fetch_timeout

    def find(self, claim: Claim, access: Access, deadline: Deadline) -> None:
        """Notes where the claimed partitions start; those of which no leader tells it are left out.

        Raises:
            DataLoss, OptionError: there is no such start as the options say.
            GroupSourceError: the group or the leaders do not answer, or refuse.
        """
        partitions = claim.partitions
        committed = access.offsets.committed(partitions, deadline)
        if isinstance(committed, Refused):
            raise committed.error or DeadlineExceeded(f"The committed offsets cannot be read: {committed.why}.")
        if self._resetting:
            log.info("group %s: resetOffsetsOnStart moves %s", self._group_id, names(partitions))
            committed = {}
        logged, anew = self._ledger.logged(partitions)
        # The group's commit of a topic made anew is one in the old topic.
        committed = {tp: each for tp, each in committed.items() if tp not in anew}
        unknown = frozenset(tp for tp in partitions if tp not in committed and logged[tp] is None)
        existing = self._existing - anew
        starts = self._without_commit(unknown & existing, access, deadline)
        starts |= self._of_new(unknown - existing - anew, access, deadline)
        starts |= self._at(Earliest(), unknown & anew, access, deadline)
        silent = unknown - starts.keys()
        if silent:
            log.warning("group %s: no start position for %s: no leader tells it", self._group_id, names(silent))
        positions = {tp: resume_at(committed.get(tp), logged[tp], starts.get(tp)) for tp in partitions - silent}
        moved = self._callback(logged, positions)
        # A position that was set anew is committed even where the group has a further one.
        kept = {tp: each for tp, each in committed.items() if tp not in moved}
        if self._ledger.started(claim, {tp: moved.get(tp, at) for tp, at in positions.items()}, kept):
            self._resetting = False

    def beginnings(self, partitions: Partitions, access: Access) -> dict[TopicPartition, int]:
        """Where the logs of these partitions begin, as far as leaders tell."""
        return self._at(Earliest(), partitions, access, Deadline.after(RESOLVE_TIMEOUT))

    def _without_commit(self, partitions: Partitions, access: Access, deadline: Deadline) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        at = stream_start(self._options)
        if isinstance(at, Committed):
            if at.otherwise is None:
                raise OptionError(
                    f"The group '{self._group_id}' has no committed offset of {names(partitions)}, and"
                    " 'startingOffsetsFallback' is fail.",
                    "Commit some (kafka-consumer-groups --reset-offsets), or set the option to earliest or latest.",
                )
            at = at.otherwise
        return self._at(at, partitions, access, deadline)

    def _of_new(self, partitions: Partitions, access: Access, deadline: Deadline) -> dict[TopicPartition, int]:
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
        self, place: Place, partitions: Collection[TopicPartition], access: Access, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        def ask(wanted: Offsets) -> Offsets:
            return log_offsets(
                access.cluster,
                wanted,
                read_committed=self._options.read_committed,
                deadline=deadline,
                missing=set(),  # those are left out, and stay unresolved
            )

        return resolve(place, partitions, ask, self._options.fail_on_data_loss)
