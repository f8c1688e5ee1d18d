"""The settings of one member, its counters, and the response times of its coordinator."""

from __future__ import annotations

import re
import threading
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from spark_group_source.clock import Deadline
from spark_group_source.grace import Permission
from spark_group_source.offsets import TopicPartition
from spark_group_source.wire.settings import WireOptions

if TYPE_CHECKING:
    from spark_group_source.group.topics import TopicView
    from spark_group_source.wire.cluster import Cluster
    from spark_group_source.wire.metadata import Topic
    from spark_group_source.wire.stale_metadata import EveryBroker


@dataclass(frozen=True, slots=True)
class Subscription:
    """Either ``topics`` or ``pattern``. A pattern may match any part of a name, as in ``format("kafka")``.

    A pattern matches Kafka's internal topics only if ``internal`` is set. If ``partitions`` are set, they are in
    ``topics``, whose other partitions are ignored.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    internal: bool = False
    partitions: frozenset[TopicPartition] = frozenset()

    def matches(self, name: str) -> bool:
        """Whether the subscription includes a topic of this name."""
        return name in self.topics if self.pattern is None else re.search(self.pattern, name) is not None

    def find(self, cluster: Cluster | TopicView | EveryBroker, deadline: Deadline) -> dict[str, Topic]:
        """Looks up the topics, by name; topics that do not exist have an error or are left out.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        if self.pattern is None:
            topics = cluster.metadata(self.topics, deadline).topics
            return {name: self._with_partitions(topic) for name, topic in topics.items()}
        return {
            name: topic
            for name, topic in cluster.metadata(None, deadline).topics.items()
            if self.matches(name) and (self.internal or not topic.internal)
        }

    def _with_partitions(self, topic: Topic) -> Topic:
        if not self.partitions:
            return topic
        numbers = {tp.partition for tp in self.partitions if tp.topic == topic.name}
        return replace(topic, partitions={each: leader for each, leader in topic.partitions.items() if each in numbers})

    def __str__(self) -> str:
        return f"pattern {self.pattern}" if self.pattern is not None else ", ".join(self.topics)


@dataclass(slots=True)
class CurrentCoordinator:
    """The group's coordinator as the clients of one query know it; they share this. ``None`` at first.

    A former coordinator that was suspended or cut off may still answer, also lookups of the coordinator and of offsets.
    But one that knows the member's generation also knows all commits before it.

    Attributes:
        id: the broker that a client found last. A client that knows another one looks it up again.
        knows_generation: the broker that last answered the member as one of its present generation.
        permission: READ on the group, as coordinators have granted or denied it.
    """

    id: int | None = None
    knows_generation: int | None = None
    permission: Permission = field(default_factory=lambda: Permission("READ on the group"))


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of one member. Times are in seconds.

    ``rebalance_timeout`` is how long the broker waits for members to rejoin (``max.poll.interval.ms``).
    ``static_leaves``: whether a static member leaves when its query stops, so that its partitions move at once.
    ``consumer_protocol``: the member has the group protocol of KIP-848. ``remote_assignor`` is the coordinator's
    assignor there; with ``None`` the brokers choose. The session timeout is then a setting of the group or the brokers
    (``group.consumer.session.timeout.ms``): ``session_timeout`` is the brokers' default, where they do not tell theirs.
    """

    group_id: str
    subscription: Subscription
    wire: WireOptions
    assignors: tuple[str, ...] = ("cooperative-sticky",)
    instance_id: str | None = None
    static_leaves: bool = False
    session_timeout: float = 45.0
    heartbeat_interval: float = 3.0
    rebalance_timeout: float = 300.0
    offset_fetch_timeout: float = 5.0
    consumer_protocol: bool = False
    remote_assignor: str | None = None
    coordinator: CurrentCoordinator = field(default_factory=CurrentCoordinator, compare=False, repr=False)

    @property
    def heartbeat_timeout(self) -> float:
        """How long one heartbeat waits for its response: a third of a session leaves time for another heartbeat."""
        return min(self.wire.request_timeout, self.session_timeout / 3)

    @property
    def revocation_timeout(self) -> float:
        """How long a revocation may wait for the running batch, so that this member still rejoins in time.

        The broker's rebalance timeout starts with the rebalance, this one when a heartbeat reports it. The difference
        is below a session timeout, or the session would have ended. When the wait ends, a heartbeat may be pending.
        Both are subtracted: with the defaults 300 s - (45 s + 15 s) = 240 s. A batch needs some time: the result is at
        least half of the rebalance timeout.
        """
        return max(self.rebalance_timeout - self.session_timeout - self.heartbeat_timeout, self.rebalance_timeout / 2)

    def rebalance_timeout_for(self, seconds: float) -> float:
        """The least rebalance timeout in seconds with which a revocation may wait for ``seconds``."""
        return min(seconds + self.session_timeout + self.heartbeat_timeout, seconds * 2)


@dataclass
class Counters:
    """Counts since the query began.

    The member's thread and the query's thread write different fields; the committer's lock guards those of commits.
    """

    batches: int = 0
    """Batches completed."""
    offsets: int = 0
    """Offsets in these batches: at least as many as records, because compaction and transaction markers leave gaps."""
    joins: int = 0
    """Requests to join, with retries; a new member of the classic protocol sends two."""
    rebalances: int = 0
    """Rebalances completed: generations with an assignment for this member; with KIP-848, changes of its assignment."""
    revoked: int = 0
    """Partitions revoked."""
    revocation_timed_out: int = 0
    """Of these, partitions whose batch did not end in time: the next owner repeats it."""
    lost: int = 0
    """Partitions lost without a revocation: other members may own them by now."""
    commits: int = 0
    """Commits that stored at least one offset."""
    failed_commits: int = 0
    """Commits that failed as a whole; the next commit includes their offsets."""

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in asdict(self).items())


class Timings:
    """The coordinator's response times by request, since the last report. Thread-safe.

    A JoinGroup takes until all members have joined, a SyncGroup until the leader has assigned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_request: dict[str, tuple[int, float, float]] = {}

    def record(self, request: str, seconds: float) -> None:
        """Records a response, also one with an error. Caller: anybody."""
        name = request.removesuffix("Request")
        with self._lock:
            count, total, longest = self._by_request.get(name, (0, 0.0, 0.0))
            self._by_request[name] = count + 1, total + seconds, max(longest, seconds)

    def take_report(self) -> str:
        """Returns number, mean and maximum for each request as text, and starts again. Caller: the query."""
        with self._lock:
            by_request, self._by_request = self._by_request, {}
        return ", ".join(
            f"{count} {name} in {total / count * 1000:.0f} ms (at most {longest * 1000:.0f})"
            for name, (count, total, longest) in sorted(by_request.items())
        )
