"""The starting offsets of partitions without a commit and without a logged end, looked up at the leaders."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from spark_group_source.clock import Deadline
from spark_group_source.errors import OptionError, RetriableError, raise_or_warn
from spark_group_source.group.clients import KafkaClients
from spark_group_source.offsets import Offsets, Partitions, PinnedOffsets, PinnedStart, TopicPartition
from spark_group_source.options.offset_specs import (
    Earliest,
    FromCommitted,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    StartSpec,
)
from spark_group_source.options.source_options import SourceOptions, stream_start
from spark_group_source.query.start_specs import resolve_spec
from spark_group_source.query.starts.latest_at_start import LatestAtStart
from spark_group_source.query.starts.leaders import Leaders
from spark_group_source.query.starts.pinned import PinnedStarts, with_added
from spark_group_source.query.starts.rules import Start, StartRule, Starts
from spark_group_source.query.starts.unresolved import UnresolvedStarts
from spark_group_source.text import names, some

log = logging.getLogger(__name__)

RESOLVE_TIMEOUT = 10.0
"""Maximum seconds for the leaders to return start positions, after the lookup of the commits. Partitions without an
answer are looked up again."""


class StartingOffsets:
    """Looks up the starts that neither a commit nor a logged batch decides (rule 4 in ``DESIGN.md``).

    ``confirmed`` is whether enough brokers have answered to determine which partitions existed when the query first
    started. ``_latest`` has the pinned starts of these partitions as of ``_began_at``, in milliseconds since 1970.
    """

    def __init__(self, options: SourceOptions, unresolved: UnresolvedStarts) -> None:
        self.confirmed = True
        self._options = options
        self._unresolved = unresolved
        self._group_id = options.group.group_id
        self._spec = _without_commit(stream_start(options))
        self._latest: dict[TopicPartition, PinnedStart] | None = None
        self._began_at = 0

    def pin_latest(self, existing: PinnedOffsets, clients: KafkaClients, *, confirmed: bool = True) -> PinnedOffsets:
        """The latest offsets of those partitions for which ``startingOffsets`` means latest, looked up once.

        Other values of the option do not change with time. The lookup includes partitions that this query does not own
        yet: if the query gets one of them later, it reads all records that were written since the lookup. If the leader
        of a partition does not answer, the result has no offset for the partition, but the leader epoch and time with
        which :mod:`.latest_at_start` finds the offset later. Caller: the query's thread.

        A later call adds new partitions, with their starts as of the first call, unless the previous call was
        ``confirmed``.

        Args:
            confirmed: as in :meth:`.StartOffsetResolver.restore`.
        """
        if self._latest is None:
            self._began_at = round(time.time() * 1000)
            self._latest = self._pinned_now(existing, clients)
        elif not self.confirmed:
            found_late = {tp: at for tp, at in self._pinned_late(existing).items() if tp not in self._latest}
            self._latest = with_added(self._latest, found_late)
        self.confirmed = confirmed
        return self._latest

    def _pinned_now(self, existing: PinnedOffsets, clients: KafkaClients) -> dict[TopicPartition, PinnedStart]:
        latest = self._that_start_at_latest(existing)
        deadline = Deadline.after(RESOLVE_TIMEOUT)
        found = self._starts_by_spec(Latest(), StartRule.STARTING_OFFSETS, latest, clients, deadline)
        to_pin = {}
        for tp, at in existing.items():
            if tp in latest:
                to_pin[tp] = at
            else:
                to_pin[tp] = PinnedStart(at.topic_id)
        return dict(PinnedStarts(to_pin).pin(found).offsets)

    def _pinned_late(self, existing: PinnedOffsets) -> dict[TopicPartition, PinnedStart]:
        """The starts, as of the first lookup, of partitions that this lookup may not have found."""
        latest = self._that_start_at_latest(existing)
        pinned = {}
        for tp, at in existing.items():
            if tp in latest:
                pinned[tp] = PinnedStart(at.topic_id, since=self._began_at)
            else:
                pinned[tp] = PinnedStart(at.topic_id)
        return pinned

    def forget_latest(self) -> None:
        """Makes the next call look up the latest offsets again, because another cluster returned them. Caller: the
        query's thread, before the start."""
        self._latest = None

    def find(self, partitions: Partitions, pinned: PinnedStarts, clients: KafkaClients, deadline: Deadline) -> Starts:
        """The starts of partitions without a commit or a checkpointed end offset, as far as leaders answer."""
        existed = partitions & pinned.offsets.keys()
        starts: Starts = {}
        waiting: dict[TopicPartition, PinnedStart] = {}
        for tp, at in pinned.offsets.items():
            if tp not in existed:
                continue
            if at.offset is not None:
                starts[tp] = Start(at.offset, StartRule.STARTING_OFFSETS, epoch=at.epoch)
            if at.since:
                waiting[tp] = at
        starts |= self._latest_at_start(waiting, clients, deadline)
        starts |= self._by_options(existed - starts.keys() - waiting.keys(), clients, deadline)
        return starts | self._of_added(partitions - existed, clients, deadline)

    def _latest_at_start(self, waiting: PinnedOffsets, clients: KafkaClients, deadline: Deadline) -> Starts:
        """The starts of partitions whose leaders did not answer when the query started, as far as they answer now."""
        leaders = Leaders(clients.cluster, self._options.fetch.read_committed, deadline)
        lookup = LatestAtStart(leaders, clients.cluster, deadline)
        rule = StartRule.STARTING_OFFSETS
        return self._starts_at(rule, frozenset(waiting), lambda: lookup.offsets(waiting), leaders.epochs)

    def _by_options(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline) -> Starts:
        if not partitions:
            return {}
        if self._spec is None:
            raise OptionError(
                f"The group '{self._group_id}' has no committed offset of {names(partitions)}, and"
                " 'startingOffsetsFallback' is fail.",
                "Commit offsets (kafka-consumer-groups --reset-offsets), or set the option to earliest or latest.",
            )
        return self._starts_by_spec(self._spec, StartRule.STARTING_OFFSETS, partitions, clients, deadline)

    def _of_added(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline) -> Starts:
        """The earliest offsets of partitions that were added since the query first started.

        If such a log no longer begins at offset 0, it may be older. It counts as existing at the start if too few
        brokers answered at that time to rule that out; otherwise its first records are lost.
        """
        starts = self._starts_by_spec(Earliest(), StartRule.ADDED, partitions, clients, deadline)
        late = frozenset(tp for tp, start in starts.items() if start.offset > 0)
        if not late:
            return starts
        if self._may_have_existed():
            others = {tp: start for tp, start in starts.items() if tp not in late}
            return others | self._of_existing(late, clients, deadline)
        gaps = some([f"{tp} at offset {starts[tp].offset}" for tp in sorted(late)])
        raise_or_warn(
            log,
            self._options.fetch.fail_on_data_loss,
            f"Partitions that are new to the group '{self._group_id}' do not begin at offset 0: {gaps}",
            "Earlier records were deleted unread. To continue without them set failOnDataLoss to false, or commit"
            " a start offset (kafka-consumer-groups --reset-offsets).",
            "The query reads these partitions from these offsets",
        )
        return starts

    def _may_have_existed(self) -> bool:
        """Whether a partition that is found now may have existed when the query started.

        Members look for new partitions once per metadata age, so that after two ages a partition counts as added.
        """
        age = time.time() - self._began_at / 1000
        return not self.confirmed and age < 2 * self._options.wire.metadata_max_age

    def _of_existing(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline) -> Starts:
        """Returns the starts of partitions that existed when the query started, and that its broker did not know."""
        log.info(
            "group %s: looking up the start offsets of %s, which a broker did not know when the query started",
            self._group_id,
            names(partitions),
        )
        latest = self._that_start_at_latest(partitions)
        waiting = dict.fromkeys(latest, PinnedStart(since=self._began_at))
        starts = self._latest_at_start(waiting, clients, deadline)
        return starts | self._by_options(partitions - latest, clients, deadline)

    def _that_start_at_latest(self, partitions: Iterable[TopicPartition]) -> Partitions:
        """Those of these partitions for which ``startingOffsets`` means latest."""
        return frozenset(tp for tp in partitions if _is_latest(self._spec, tp))

    def earliest(self, partitions: Partitions, clients: KafkaClients, deadline: Deadline | None = None) -> Starts:
        """The starts of these partitions of recreated topics, as far as leaders answer."""
        if deadline is None:
            deadline = Deadline.after(RESOLVE_TIMEOUT)
        return self._starts_by_spec(Earliest(), StartRule.RECREATED, partitions, clients, deadline)

    def _starts_by_spec(
        self, spec: OffsetSpec, rule: StartRule, partitions: Partitions, clients: KafkaClients, deadline: Deadline
    ) -> Starts:
        """The starts of these partitions by this rule, as far as leaders answer."""
        fetch = self._options.fetch
        leaders = Leaders(clients.cluster, fetch.read_committed, deadline)

        def look_up() -> Offsets:
            return resolve_spec(spec, partitions, leaders.offsets, fetch.fail_on_data_loss)

        return self._starts_at(rule, partitions, look_up, leaders.epochs)

    def _starts_at(
        self, rule: StartRule, partitions: Partitions, look_up: Callable[[], Offsets], epochs: Offsets
    ) -> Starts:
        """The starts by ``rule`` at the offsets that ``look_up`` returns; none if ``look_up`` fails and may be retried.

        ``look_up`` also adds the leaders' epochs to ``epochs``.
        """
        if not partitions:
            return {}
        try:
            offsets = look_up()
        except RetriableError as error:
            self._unresolved.note(partitions, error)
            return {}
        self._unresolved.note(partitions - offsets.keys(), "no leader answers")
        return {tp: Start(offset, rule, epoch=epochs[tp]) for tp, offset in offsets.items()}


def _without_commit(spec: StartSpec) -> OffsetSpec | None:
    """Where partitions without a committed offset start; ``None`` if that is an error."""
    if isinstance(spec, FromCommitted):
        return spec.fallback
    return spec


def _is_latest(spec: OffsetSpec | None, tp: TopicPartition) -> bool:
    if isinstance(spec, SpecificOffsets):
        return isinstance(spec.of(tp), Latest)
    return isinstance(spec, Latest)
