"""What all assignors have: subscribers, racks, and the order of Java's hash maps.

Kafka's sticky assignors iterate over hash maps. The order decides which member keeps a partition that two members
claim, and which member gets one partition more. With another order, partitions would move whenever the leader changes
between this source and Kafka's client. Not modelled: Java turns a bin with nine keys into a tree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_group_source.offsets import TopicPartition, numbers_by_topic

if TYPE_CHECKING:
    from spark_group_source.group.assignment import PartitionCounts

T = TypeVar("T")

_SMALLEST_TABLE, _LOAD = 16, 0.75


def text_order(text: str) -> bytes:
    """A key that sorts as ``String.compareTo`` does: by UTF-16 code units, not by code points."""
    return text.encode("utf-16-be", "surrogatepass")


def text_hash(text: str) -> int:
    """``String.hashCode``, as an unsigned number."""
    units = text_order(text)
    hashed = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = 31 * hashed + 256 * high + low & 0xFFFFFFFF
    return hashed


def partition_hash(tp: TopicPartition) -> int:
    """``TopicPartition.hashCode``, as an unsigned number."""
    return 31 * (31 + tp.partition) + text_hash(tp.topic) & 0xFFFFFFFF


def hash_order(items: Iterable[T], hash_of: Callable[[T], int], max_size: int = 0) -> list[T]:
    """Sorts items as a ``HashMap`` iterates over them, if they were added in this order.

    Args:
        items: distinct items.
        hash_of: returns the hash of an item.
        max_size: the largest size that the map has had; its table never shrinks.
    """
    listed = list(items)
    slots = _SMALLEST_TABLE
    while max(len(listed), max_size) > slots * _LOAD:
        slots *= 2
    return sorted(listed, key=lambda item: _spread(hash_of(item)) & slots - 1)


def _spread(hashed: int) -> int:
    return hashed ^ hashed >> 16


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member's subscription, as the leader gets it.

    A member that sends no ``owned`` partitions and ``generation`` owns nothing, in generation -1. ``rack`` is ``None``
    if the member sends no rack.
    """

    id: str
    topics: Sequence[str]
    user_data: bytes = b""
    owned: Sequence[TopicPartition] = ()
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None

    @classmethod
    def of(cls, member: Any) -> Subscriber:
        """From kafka-python's JoinGroupResponseMember with its decoded subscription."""
        subscription = member.metadata
        owned = subscription.owned_partitions or ()
        return cls(
            member.member_id,
            tuple(subscription.topics or ()),
            bytes(subscription.user_data or b""),
            tuple(TopicPartition(each.topic, n) for each in owned for n in each.partitions),
            max(-1, subscription.generation_id),
            member.group_instance_id,
            subscription.rack_id or None,
        )

    @property
    def order(self) -> tuple[bool, bytes]:
        """Sorts members: static ones by their instance id, then the others by their member id."""
        return self.instance_id is None, text_order(self.id if self.instance_id is None else self.instance_id)


Topics = Mapping[str, Sequence[int]]
"""The partition numbers of each subscribed topic, sorted. Unknown topics are left out."""
PartitionRacks = Mapping[TopicPartition, frozenset[str]]
"""The racks of each partition's replicas. Partitions without known racks may be left out."""


class Assignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """An assignor with the same result as the assignor of this name in Kafka's Java client."""

    @abstractmethod
    def assign_partitions(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Returns each member's partitions by member id. ``members`` are in Java's iteration order."""

    def assign(self, cluster: PartitionCounts, members: Iterable[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """Returns each member's assignment by member id; see kafka-python's AbstractPartitionAssignor."""
        subscribers = hash_order(map(Subscriber.of, members), lambda member: text_hash(member.id))
        numbers_of = {
            topic: sorted(cluster.partitions_for_topic(topic) or ())
            for topic in sorted({topic for member in subscribers for topic in member.topics})
        }
        topics = {topic: numbers for topic, numbers in numbers_of.items() if numbers}
        return {
            member: ConsumerProtocolAssignment(0, list(numbers_by_topic(partitions).items()), b"")
            for member, partitions in self.assign_partitions(topics, cluster.racks, subscribers).items()
        }

    def metadata(self, topics: Collection[str]) -> ConsumerProtocolSubscription:
        """Returns the subscription, with user data for the leader's assignor."""
        return ConsumerProtocolSubscription(0, sorted(topics), self.user_data())

    def user_data(self) -> bytes:
        """Returns the subscription's user data, for the leader's assignor."""
        return b""

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Called after each rebalance with this member's assignment."""


_NO_RACKS: frozenset[str] = frozenset()


def matter(members: Iterable[Subscriber], partitions: Collection[frozenset[str]]) -> bool:
    """Whether assignments depend on racks.

    They do not if no rack has both a member and a replica, or if all partitions have replicas in the same racks.
    """
    combinations = set(partitions)
    replica_racks = _NO_RACKS.union(*combinations)
    return len(combinations) > 1 and any(member.rack in replica_racks for member in members if member.rack)


class Racks:
    """Racks of members and partitions, for the sticky assignors; empty if racks do not matter."""

    def __init__(
        self, members: Iterable[Subscriber], partitions: Collection[TopicPartition], racks: PartitionRacks
    ) -> None:
        self._of_member = {member.id: member.rack for member in members if member.rack}
        self._of_partition = {tp: racks.get(tp, _NO_RACKS) for tp in partitions} if self._of_member else {}
        self.matter = matter(members, self._of_partition.values())
        if not self.matter:
            self._of_member = {}

    def apart(self, member: str, tp: TopicPartition) -> bool:
        """Whether the member has a rack, and no replica of this partition is in it."""
        rack = self._of_member.get(member)
        return rack is not None and rack not in self._of_partition[tp]

    def rarest_first(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Sorts partitions by the number of members in their racks."""
        members = Counter(self._of_member.values())
        return sorted(partitions, key=lambda tp: sum(members[rack] for rack in self._of_partition[tp]))

    def nearby(self, tp: TopicPartition, members: Sequence[str], start: int) -> int | None:
        """The index of the next member in a rack of this partition's replicas, from ``start`` on and around."""
        racks = self._of_partition[tp]
        for index in chain(range(start, len(members)), range(start)):
            if self._of_member.get(members[index]) in racks:
                return index
        return None
