"""What is done of each partition: read by a batch that Spark has completed, or skipped by somebody who may."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from kafka.protocol.consumer import IsolationLevel

from spark_group_source.offsets import OffsetRange
from tests.fake import FakeKafka
from tests.fake.log import FakeLog

if TYPE_CHECKING:
    from tests.simulation.spark import Query

Key = tuple[str, int]
"""The id of a topic, and a partition."""

text = lru_cache(str)
"""The text of an id, which is needed more often than there are ids."""


@dataclass(eq=False, kw_only=True)
class Batch:
    """A batch that a query has planned.

    Times are infinity if that has not happened.

    Attributes:
        life: the process of the query that planned it.
        planned_at: when that process began to plan it, or started: it owned then what the batch reads, or later.
        done_at: when Spark completed it.
        told_at: since when the query knows that.
        lost_at: since when the query may not count it as read: it lost its member, or took a report for its own.
    """

    query: Query
    life: str
    ranges: list[OffsetRange] = field(default_factory=list)
    planned_at: float = 0.0
    done_at: float = math.inf
    told_at: float = math.inf
    lost_at: float = math.inf

    @property
    def done(self) -> bool:
        return self.done_at < math.inf

    @property
    def told(self) -> bool:
        return self.told_at < math.inf

    @property
    def lost(self) -> bool:
        return self.lost_at < math.inf

    @property
    def reading(self) -> bool:
        """Whether it reads something, and the query does not know yet that it is completed."""
        return bool(self.ranges) and not (self.done and self.told)

    def lose(self, now: float) -> None:
        self.lost_at = min(self.lost_at, now)

    def is_running(self, now: float) -> bool:
        """Whether the process that planned it lives, and Spark has not interrupted it."""
        life = self.query.life
        return life is not None and life.process.name == self.life and life.ends_at > now


@dataclass
class Partition:
    """The truth about one partition of one topic's life.

    Attributes:
        done: offsets that were read, or that somebody may skip.
        before: what was done before operators moved the position: a query that misses the move continues behind it.
        reads: the batch that read each offset last, or is to read it. Replayed batches do not count.
        committed: the group's position: by a commit, or by a decision of an operator.
        by: the member that committed last.
        untagged: whether the last commit had no room for its tag, and looks like an operator's.
        unrepaired: whether nothing repairs the commit before the next one: it fell without a tag, or was deleted.
        owner: the member that owns the partition and knows that.
        owned_since: when that began.
        revoked: whether the owner was told to give the partition up.
        given_up: the processes that were told so, or that the group has removed.
    """

    done: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    reads: dict[int, Batch] = field(default_factory=dict)
    committed: int | None = None
    by: str = ""
    untagged: bool = False
    unrepaired: bool = False
    owner: str = ""
    owned_since: float = 0.0
    revoked: bool = False
    given_up: set[str] = field(default_factory=set)

    def forget_commit(self) -> None:
        """The group has no position any more."""
        self.committed = None
        self.done |= self.before

    def is_committed(self, offset: int) -> bool:
        return self.committed is not None and offset < self.committed

    def owed(self, life: str) -> set[int]:
        """What a process has read and completed, and has still to commit.

        A batch may outlast the ownership in which it was planned: because the group has removed the process, which did
        not know that, or a revocation has timed out. When the process owns the partition again, the group's position
        decides where it starts, and that may be before what the batch has read.
        """
        if self.committed is None or self.unrepaired:
            return set()
        found: set[int] = set()
        for offset, batch in self.reads.items():
            is_its_own = batch.life == life and batch.done and not batch.lost
            started_again = batch.planned_at < self.owned_since and life in self.given_up
            if is_its_own and not started_again and not self.is_committed(offset):
                found.add(offset)
        return found


class Positions:
    """The partitions of one run.

    Attributes:
        lost: the offsets of each partition whose records are lost: everybody may skip them, and what took their place.
        outdated: whether a coordinator with old metadata has a commit of a topic's former life. It is served as any
            other, so nobody can tell any more what is read.
    """

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.partitions: dict[Key, Partition] = {}
        self.lost: dict[Key, set[int]] = defaultdict(set)
        self.outdated = False

    def key(self, topic: str, partition: int) -> Key:
        return text(self.kafka.ids.get(topic, "")), partition

    def at(self, key: Key) -> Partition:
        if key not in self.partitions:
            self.partitions[key] = Partition(done=set(self.lost[key]))
        return self.partitions[key]

    def items(self) -> Iterator[tuple[Key, Partition]]:
        yield from self.partitions.items()

    def lose(self, topic: str, partition: int, start: int, end: int) -> None:
        """The records from ``start`` to ``end`` are lost."""
        key = self.key(topic, partition)
        self.lost[key].update(range(start, end))
        self.at(key).done.update(range(start, end))

    def topic(self, key: Key) -> str:
        """The name of a topic that exists now, or nothing: no commit can name a former one."""
        for name, topic_id in self.kafka.ids.items():
            if text(topic_id) == key[0]:
                return name
        return ""

    def place(self, key: Key) -> str:
        """How a partition is told."""
        return f"{self.topic(key)}-{key[1]}"

    def log(self, key: Key) -> FakeLog:
        """The log of a partition, empty if it is gone."""
        return self.kafka.logs.get(self.topic(key), {}).get(key[1]) or FakeLog(None)

    def can_read(self, read: OffsetRange) -> bool:
        """Whether all records of a range are still there."""
        log = self.log(key_of(read))
        return bool(self.topic(key_of(read))) and log.start <= read.start and read.end <= log.end

    def without_records(self, key: Key) -> set[int]:
        """Offsets that have no record to read, now or at all."""
        return self.log(key).markers | self.lost[key]

    def unread(self, key: Key, end: int, start: int = 0) -> list[int]:
        """What is not done of a partition up to ``end``."""
        done, start = self.at(key).done, max(self.log(key).start, start)
        if self.outdated or done.issuperset(range(start, end)):
            return []
        return [each for each in range(start, end) if each not in done]

    def owed(self, key: Key, life: str) -> set[int]:
        """The records that a process has read and completed, and has still to commit."""
        return self.at(key).owed(life) - self.without_records(key)

    @property
    def unrepaired(self) -> bool:
        """Whether a commit may stay behind until the next one: a run waits for it."""
        return any(at.unrepaired for at in self.partitions.values())

    def ends(self, *, open_too: bool = False) -> dict[tuple[str, int], int]:
        """Where each partition ends: before an open transaction, or behind it if ``open_too``."""
        isolation_level = IsolationLevel.READ_COMMITTED
        if open_too:
            isolation_level = IsolationLevel.READ_UNCOMMITTED
        found: dict[tuple[str, int], int] = {}
        for topic, logs in self.kafka.logs.items():
            for number, log in logs.items():
                found[topic, number] = log.committed_end(isolation_level)
        return found


def key_of(read: OffsetRange) -> Key:
    return read.topic_id, read.partition
