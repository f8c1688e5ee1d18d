"""The partitions of a query in a world without sockets, for the tests of what their owner and its committer do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import CommitResult, CommittedOffset
from spark_group_source.group.counters import Counters
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.offsets import BatchOffset, OffsetRange, PinnedStart, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.ownership import AssignedPartitions
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.offset_lookup import ListedOffsets
from tests.unit.hand_clock import Hand

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({A, B})
EXISTING = {A: PinnedStart(), B: PinnedStart()}
OWNER = Membership(member_id="m", generation=3, owned={A: 3, B: 3})
FAILED = RequestFailed(ErrorAction.RETRY, "why")
MINE = "0123456789abcdef"
AT_4 = OffsetRange(*A, 2, 4, lineage=7)


class World:
    """A cluster, and a coordinator that answers from a dictionary; ``meanwhile`` happens while it is asked."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.clients = KafkaClients(self, self)  # type: ignore[arg-type]
        self.topic_id = ""
        self.logs = {A: (2, 10), B: (0, 5)}
        """(Start, end). Offset n has the time 100 * n. A partition that is removed here has no leader."""
        self.without_brokers = False
        self.offsets: dict[TopicPartition, CommittedOffset] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.refused: RequestFailed | None = None
        self.unstable: set[TopicPartition] = set()
        """Partitions with an offset in a transaction that is still open."""
        self.commits_refused: RequestFailed | None = None
        self.may_not_read: set[str] = set()
        self.waits: list[float] = []

    def may_read(self, topics: Iterable[str], deadline: Deadline) -> dict[str, bool]:
        return {topic: topic not in self.may_not_read for topic in topics}

    def topics(self, names: Iterable[str], deadline: Deadline, *, with_permissions: bool) -> dict[str, Topic]:
        permitted = self.may_read(names, deadline) if with_permissions else {}
        return {name: Topic(name, self.topic_id, {}, may_read=permitted.get(name)) for name in names}

    def list_offsets(self, _: Any, wanted: Mapping[TopicPartition, int], **__: Any) -> ListedOffsets:
        if self.without_brokers:
            raise BrokerUnavailable("No broker.")
        found = {tp: self._offset(*self.logs[tp], at) for tp, at in wanted.items() if tp in self.logs}
        return ListedOffsets(found, dict.fromkeys(found, 7))

    def _offset(self, begin: int, end: int, at: int) -> int:
        if at < 0:
            return begin if at == -2 else end
        return max(begin, at // 100) if at // 100 < end else -1

    def _asked(self, deadline: Deadline) -> None:
        self.waits.append(deadline.remaining())
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def committed(
        self,
        partitions: Iterable[TopicPartition],
        deadline: Deadline,
        me: Membership,
        unavailable: dict[TopicPartition, RequestFailed],
    ) -> Any:
        found = {tp: self.offsets[tp] for tp in partitions if tp in self.offsets}
        self._asked(deadline)
        unavailable |= {tp: FAILED for tp in partitions if tp in self.unstable}
        return self.refused or {tp: commit for tp, commit in found.items() if tp not in self.unstable}

    def commit(
        self, me: Membership, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline, ids: Any
    ) -> CommitResult:
        self._asked(deadline)
        if refused := self.refused or self.commits_refused:
            return CommitResult(unanswered=frozenset(offsets) if refused.unanswered else frozenset(), failure=refused)
        self.commits.append({tp: commit.offset for tp, commit in offsets.items()})
        self.offsets |= offsets
        return CommitResult(frozenset(offsets))


class Query(AssignedPartitions):
    """The partitions of a query with these options, and a checkpoint with these ends; nothing changes its member."""

    def __init__(self, world: World, logged: Mapping[TopicPartition, int] | None = None, /, **options: str) -> None:
        self.world = world
        given = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "startingOffsets": "earliest"}
        parsed = parse_options(given | ({} if "subscribePattern" in options else {"subscribe": "t"}) | options)
        nothing = lambda *_: None  # noqa: E731
        member: Any = SimpleNamespace(counters=Counters(), commits_changed=nothing, commit_rejected=nothing)
        super().__init__(parsed, OffsetTracker(), member, world.clients, clock=world.hand)
        self.restore(BatchOffset.from_ranges(OffsetRange(*tp, end, end) for tp, end in (logged or {}).items()))

    def restore(
        self, logged: BatchOffset, existing: Mapping[TopicPartition, PinnedStart] = EXISTING, *, replayed: bool = False
    ) -> None:
        self.resolver.restore(logged, existing, self.world.clients, replayed=replayed)

    def assign(self, *partitions: TopicPartition, me: Membership = OWNER) -> Query:
        """Assigns these partitions, or both."""
        self.partitions_assigned(frozenset(partitions) or BOTH, me)
        return self

    def assign_without_commit(self) -> Query:
        """Assigns both partitions while commits are refused."""
        self.world.commits_refused = FAILED
        self.assign()
        assert self.tracker.uncommitted()
        self.world.commits_refused = None
        return self

    def lose(self, *partitions: TopicPartition) -> None:
        self.partitions_lost(frozenset(partitions), "why")

    def positions(self) -> dict[TopicPartition, int]:
        """The position of each readable partition."""
        return {tp: owned.position for tp, owned in self.tracker.positions(OWNER).items()}

    def plan(self, ends: Mapping[TopicPartition, int]) -> None:
        """Plans a batch up to these ends, which logs the positions of the other partitions."""
        self.tracker.planned(
            BatchOffset.from_ranges(
                OffsetRange(*tp, each.position, ends.get(tp, each.position), lineage=each.lineage)
                for tp, each in self.tracker.positions(OWNER).items()
            )
        )

    def read(self, ends: Mapping[TopicPartition, int]) -> Query:
        """Plans and completes a batch up to these ends."""
        self.plan(ends)
        assert self.tracker.in_flight is not None
        self.tracker.completed(self.tracker.in_flight)
        return self

    def commit(self, me: Membership = OWNER) -> bool:
        return self.committer.commit(me, self.world.clients)

    def retry(self) -> None:
        """What the query's thread does before each batch."""
        self.maintain_offsets(OWNER, clients=self.world.clients)


def with_id(*ranges: OffsetRange) -> BatchOffset:
    return replace(BatchOffset.from_ranges(ranges, "g"), checkpoint=MINE)


def restored(world: World, *ranges: OffsetRange, replayed: bool = False, **options: str) -> Query:
    """A query whose checkpoint with an id has these ranges."""
    query = Query(world, **options)
    query.restore(with_id(*ranges), replayed=replayed)
    return query
