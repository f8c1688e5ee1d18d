"""What is done of each partition: read by a batch that Spark has completed, or skipped by somebody who may."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from kafka.protocol.consumer import IsolationLevel

from tests.fake import FakeKafka
from tests.fake.log import FakeLog

Key = tuple[str, str, int]
"""A group, the id of a topic, and a partition."""

text = lru_cache(str)
"""The text of an id, which is needed more often than there are ids."""


@dataclass
class Partition:
    """The truth about one partition of one topic's life, for one group.

    Attributes:
        done: offsets that were read, or that somebody may skip.
        before: what was done before operators moved the position: a query that misses the move continues behind it.
        read_at: the process that read each offset last, and when it planned that batch.
        committed: the group's position, which it has if ``started``: by a commit, or by a decision of an operator.
        by: the member that committed last.
        untagged: whether the last commit had no room for its tag, and looks like an operator's.
        unrepaired: whether nothing repairs the commit before the next one: it fell without a tag, or was deleted.
        owner: the member that owns the partition and knows that.
        owned_since: when that began.
        first_starts: where each query first wanted to start.
    """

    done: set[int] = field(default_factory=set)
    before: set[int] = field(default_factory=set)
    read_at: dict[int, tuple[str, float]] = field(default_factory=dict)
    committed: int | None = None
    started: bool = False
    by: str = ""
    untagged: bool = False
    unrepaired: bool = False
    owner: str = ""
    owned_since: float = 0.0
    first_starts: dict[str, int] = field(default_factory=dict)

    def forget_commit(self) -> None:
        """The group has no position any more."""
        self.started, self.committed = False, None
        self.done |= self.before


class Positions:
    """The partitions of one run."""

    def __init__(self, kafka: FakeKafka) -> None:
        self.kafka = kafka
        self.partitions: dict[Key, Partition] = {}
        self.lost: dict[tuple[str, int], set[int]] = defaultdict(set)
        """The offsets of each partition whose records are lost: everybody may skip them, and what took their place."""

    def key(self, group: str, topic: str, partition: int) -> Key:
        return group, text(self.kafka.ids.get(topic, "")), partition

    def at(self, key: Key) -> Partition:
        if key not in self.partitions:
            self.partitions[key] = Partition(done=set(self.lost[key[1:]]))
        return self.partitions[key]

    def items(self) -> Iterator[tuple[Key, Partition]]:
        yield from self.partitions.items()

    def lose(self, topic: str, partition: int, start: int, end: int) -> None:
        """The records from ``start`` to ``end`` are lost."""
        place = text(self.kafka.ids[topic]), partition
        self.lost[place].update(range(start, end))
        for key, at in self.partitions.items():
            if key[1:] == place:
                at.done.update(range(start, end))

    def exists(self, key: Key) -> bool:
        """Whether the topic exists now: no commit can name a former one."""
        return key[1] in map(text, self.kafka.ids.values())

    def log(self, key: Key) -> FakeLog:
        """The log of a partition, empty if it is gone."""
        name = self.kafka.names().get(UUID(key[1]), "")
        return self.kafka.logs.get(name, {}).get(key[2]) or FakeLog(None)

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

    def ends_by_id(self, *, open_too: bool = False) -> dict[tuple[str, int], int]:
        """The same by the ids of the topics."""
        return {self.key("", *tp)[1:]: end for tp, end in self.ends(open_too=open_too).items()}


def missing(done: set[int], start: int, end: int) -> list[int]:
    """What is not done of a range."""
    if done.issuperset(range(start, end)):
        return []
    return [each for each in range(start, end) if each not in done]
