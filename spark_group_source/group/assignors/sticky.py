"""The assignors ``sticky`` and ``cooperative-sticky``, with the results of Kafka's Java client."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from spark_group_source.group.assignors.base import (
    Assignor,
    PartitionRacks,
    Racks,
    Subscriber,
    Topics,
    hash_order,
    partition_hash,
    text_order,
)
from spark_group_source.offsets import Partitions, TopicPartition, numbers_by_topic


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that one member claims, and the generation that assigned them.

    ``joined`` is the generation in the subscription. It may differ: ``sticky`` sends the generation of its assignment.
    """

    member: str
    partitions: Sequence[TopicPartition]
    generation: int
    joined: int


@dataclass(slots=True)
class Claims:
    """The claims of all members. If several members claim a partition, the claim of the latest generation applies.

    Args:
        claims: one for each member, in Java's iteration order.
        existing: the existing partitions. Claims of others are ignored, for example after a topic was recreated.
    """

    claims: Sequence[Claim]
    existing: Collection[TopicPartition]
    owned: dict[str, set[TopicPartition]] = field(init=False)
    contested: set[TopicPartition] = field(init=False, default_factory=set)
    """Partitions that two members claim in one generation: neither owns them."""

    def __post_init__(self) -> None:
        self.owned = {claim.member: set() for claim in self.claims}
        latest: dict[TopicPartition, Claim] = {}
        for claim in self.claims:
            for tp in claim.partitions:
                if tp not in self.existing:
                    continue
                other = latest.get(tp)
                if other is None or claim.generation >= other.joined:
                    self._take(tp, claim, other)
                    latest[tp] = claim

    def _take(self, tp: TopicPartition, claim: Claim, other: Claim | None) -> None:
        if other is not None:
            self.owned[other.member].discard(tp)
            if claim.generation == other.joined:
                self.contested.add(tp)
                return
        self.owned[claim.member].add(tp)

    def former_owners(self) -> dict[TopicPartition, str]:
        """The owner of each partition before the latest generation of all claims: the second best owner."""
        latest = max(-1, *(claim.generation for claim in self.claims))
        former: dict[TopicPartition, Claim] = {}
        for claim in self.claims:
            if claim.generation < latest:
                for tp in claim.partitions:
                    if tp not in former or claim.generation > former[tp].generation:
                        former[tp] = claim
        return {tp: claim.member for tp, claim in former.items()}


_KAFKA_PYTHON = b"\0\1"
"""kafka-python writes a version first. Java's encoding would begin with these bytes only for 65,536 topics or more."""


def encode(partitions: Iterable[TopicPartition], generation: int) -> bytes:
    """Encodes the partitions that were assigned in this generation."""
    by_topic = numbers_by_topic(partitions)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join([*parts, struct.pack(">i", generation)])


def decode(user_data: bytes) -> tuple[list[TopicPartition], int]:
    """Decodes the partitions and their generation, from any client.

    The generation is -1 for clients before Kafka 2.3, which send none. Unreadable bytes give no partitions.
    """
    for start in (len(_KAFKA_PYTHON), 0) if user_data.startswith(_KAFKA_PYTHON) else (0,):
        try:
            return _read(user_data, start)
        except (struct.error, UnicodeDecodeError, ValueError):
            continue
    return [], -1


def _read(data: bytes, at: int) -> tuple[list[TopicPartition], int]:
    partitions: list[TopicPartition] = []
    topics, at = _count(data, at)
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        (name,) = struct.unpack_from(f">{length}s", data, at + 2)
        count, at = _count(data, at + 2 + length)
        partitions += [TopicPartition(name.decode(), number) for number in struct.unpack_from(f">{count}i", data, at)]
        at += 4 * count
    if len(data) - at < 4:
        return partitions, -1
    (generation,) = struct.unpack_from(">i", data, at)
    return partitions, generation


def _count(data: bytes, at: int) -> tuple[int, int]:
    (count,) = struct.unpack_from(">i", data, at)
    if not 0 <= count <= len(data) - at:
        raise ValueError(f"{count} elements do not fit into the remaining bytes")
    return count, at + 4


_Movement = tuple[str, str, str]
"""Topic, first owner, last owner."""


class PartitionMovements:
    """Avoids that two members exchange partitions of one topic: a partition that came moves back instead."""

    def __init__(self) -> None:
        self._movement: dict[TopicPartition, _Movement] = {}
        self._moved: dict[_Movement, _JavaHashSet] = {}

    def partition_to_move(self, tp: TopicPartition, old: str, new: str) -> TopicPartition:
        """The partition to move from ``old`` to ``new``: this one, or one that moved from ``new`` before."""
        if tp in self._movement:
            old = self._movement[tp][1]
        came = self._moved.get((tp.topic, new, old))
        return came.first() if came else tp

    def add(self, tp: TopicPartition, old: str, new: str) -> None:
        """Records a move, from the partition's first owner; a partition that is back there has not moved."""
        if tp in self._movement:
            movement = self._movement.pop(tp)
            old = movement[1]
            self._moved[movement].partitions.pop(tp)
            if not self._moved[movement].partitions:
                del self._moved[movement]
            if old == new:
                return
        self._movement[tp] = tp.topic, old, new
        self._moved.setdefault(self._movement[tp], _JavaHashSet()).add(tp)


class _JavaHashSet:
    """A set whose first element is the same as in Java's ``HashSet``."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, None] = {}
        self._max_size = 0

    def add(self, tp: TopicPartition) -> None:
        self.partitions[tp] = None
        self._max_size = max(self._max_size, len(self.partitions))

    def first(self) -> TopicPartition:
        return hash_order(self.partitions, partition_hash, self._max_size)[0]


class EqualSubscriptionsAssignment:
    """The assignment of one rebalance, in ``assigned``.

    Args:
        partitions: all partitions, sorted.
        claims: the partitions that members owned.
        racks: racks of members and partitions. Partitions far from their member's rack are revoked first.
    """

    def __init__(self, partitions: Sequence[TopicPartition], claims: Claims, racks: Racks) -> None:
        self._claims = claims
        self._racks = racks
        self._size, self._larger = divmod(len(partitions), max(1, len(claims.owned)))
        """Minimum number of partitions of each member, and how many members may still get one more."""
        self._small: list[str] = []
        """Members with fewer partitions than that."""
        self._exact: deque[str] = deque()
        """Members with that number, which may get one more."""
        self._released: dict[TopicPartition, str] = {}
        self.assigned: dict[str, set[TopicPartition]] = {}
        self.moving: set[TopicPartition] = set()
        """Partitions that their owner must revoke before the new owner gets them."""
        self._keep_owned()
        self._assign_rest(partitions)

    def _keep_owned(self) -> None:
        most = self._size + (self._larger > 0)
        for member, owned in self._claims.owned.items():
            far = {tp for tp in owned if self._racks.apart(member, tp)}
            near = sorted(owned - far - self._claims.contested, key=lambda tp: (tp.partition, tp.topic))
            size = self._size
            if len(near) < size:
                self._small.append(member)
            elif len(near) >= most and self._larger:
                size = most
                self._use_larger()
            elif self._larger:
                self._exact.append(member)
            self.assigned[member] = set(near[:size])
            self._released |= dict.fromkeys([*far, *near[size:]], member)

    def _use_larger(self) -> None:
        self._larger -= 1
        if not self._larger:
            self._exact.clear()

    def _assign_rest(self, partitions: Sequence[TopicPartition]) -> None:
        kept = set[TopicPartition]().union(*self.assigned.values())
        free: Iterable[TopicPartition] = [tp for tp in partitions if tp not in kept]
        self._small.sort(key=text_order)
        self._exact = deque(sorted(self._exact, key=text_order))
        if self._racks.matter:
            free = self._assign_nearby(self._racks.rarest_first(free))
        turn = 0
        for tp in free:
            if not self._small:
                self._assign(tp, self._exact.popleft())
                continue
            turn %= len(self._small)
            member = self._small[turn]
            self._assign(tp, member)
            if len(self.assigned[member]) == self._size:
                del self._small[turn]
                self._exact.append(member)
            else:
                turn += 1

    def _assign_nearby(self, free: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Assigns partitions to members near a replica; returns the partitions without such a member."""
        left, turn = [], 0
        for tp in free:
            index = self._racks.nearby(tp, self._small, turn)
            if index is not None:
                member = self._small[index]
                self._assign(tp, member)
                if len(self.assigned[member]) == self._size:
                    del self._small[index]
                    if self._larger:
                        self._exact.append(member)
                else:
                    index += 1
                turn = index % max(1, len(self._small))
                continue
            index = self._racks.nearby(tp, self._exact, 0)
            if index is None:
                left.append(tp)
                continue
            self._assign(tp, self._exact[index])
            del self._exact[index]
            self._use_larger()
        return left

    def _assign(self, tp: TopicPartition, member: str) -> None:
        self.assigned[member].add(tp)
        if self._released.get(tp, member) != member or tp in self._claims.contested:
            self.moving.add(tp)


class MixedSubscriptionsAssignment:
    """The assignment of one rebalance: ``owned``, by member id.

    Args:
        topics: the partition numbers of each topic.
        members: all members.
        claims: the partitions that they owned.
        racks: racks of members and partitions. Partitions far from their member's rack are revoked first.
    """

    def __init__(self, topics: Topics, members: Sequence[Subscriber], claims: Claims, racks: Racks) -> None:
        self._racks = racks
        self._former = claims.former_owners()
        self._movements = PartitionMovements()
        self._subscribed = {member.id: frozenset(member.topics) for member in members}
        self._members_of = {
            topic: [member.id for member in members if topic in self._subscribed[member.id]] for topic in topics
        }
        self._partitions = [
            TopicPartition(topic, number)
            for topic in sorted(topics, key=lambda topic: (len(self._members_of[topic]), topic))
            for number in topics[topic]
        ]
        self.owned: dict[str, set[TopicPartition]] = {member.id: set() for member in members}
        self._owner: dict[TopicPartition, str] = {}
        self._count = {topic: Counter[str]() for topic in topics}
        """Number of partitions of each topic, by member."""
        self._weight = {member: rank for rank, member in enumerate(sorted(self.owned, key=text_order))}
        """Sorts members by number of partitions, then by id: that number times the number of members, plus the rank."""
        self._unbalanced_topic: str | None = None
        self._build(claims)

    def _build(self, claims: Claims) -> None:
        revoked = self._keep_owned(claims)
        first = not self._owner
        free = [tp for tp in self._partitions if tp not in self._owner]
        self._assign_free(free)
        movable = [tp for tp in self._partitions if len(self._members_of[tp.topic]) > 1]
        before, imbalance = dict(self._owner), self._imbalance()
        if not revoked:
            self._balance([tp for tp in free if len(self._members_of[tp.topic]) > 1])
        if self._balance(movable) and not first and self._imbalance() >= imbalance:
            for tp, member in before.items():
                self._assign(tp, member)

    def _keep_owned(self, claims: Claims) -> bool:
        """Assigns members what they owned; returns whether subscriptions or racks make any member revoke some."""
        revoked = False
        for member, owned in claims.owned.items():
            for tp in owned:
                if tp.topic not in self._subscribed[member] or self._racks.apart(member, tp):
                    revoked = True
                else:
                    self._assign(tp, member)
        return revoked

    def _assign_free(self, free: list[TopicPartition]) -> None:
        if self._racks.matter:
            far = []
            for tp in free:
                near = [member for member in self._members_of[tp.topic] if not self._racks.apart(member, tp)]
                if near:
                    self._assign(tp, self._lightest(near))
                else:
                    far.append(tp)
            free = far
        for tp in free:
            self._assign(tp, self._lightest(self._members_of[tp.topic]))

    def _balance(self, partitions: Sequence[TopicPartition]) -> bool:
        """Moves partitions while the assignment is unbalanced; returns whether any moved.

        Because another partition may move in place of the chosen one, an assignment can recur. Kafka's client then
        loops forever; ``seen`` ends the loop.
        """
        seen = {frozenset(self._owner.items())}
        while True:
            for tp in partitions:
                if not self._unbalanced():
                    break
                member = self._better_owner(tp)
                if member is not None:
                    actual = self._movements.partition_to_move(tp, self._owner[tp], member)
                    self._movements.add(actual, self._owner[actual], member)
                    self._assign(actual, member)
            owners = frozenset(self._owner.items())
            if owners in seen:
                return len(seen) > 1
            seen.add(owners)

    def _better_owner(self, tp: TopicPartition) -> str | None:
        most = len(self.owned[self._owner[tp]]) - 1
        former = self._former.get(tp)
        if former is not None and tp.topic in self._subscribed[former] and most > len(self.owned[former]):
            return former
        lightest = self._lightest(self._members_of[tp.topic])
        return lightest if most > len(self.owned[lightest]) else None

    def _unbalanced(self) -> bool:
        """Whether two subscribers of a topic differ by more than one partition, and the larger owns one of it."""
        if self._unbalanced_topic is None or not self._is_unbalanced(self._unbalanced_topic):
            self._unbalanced_topic = next(filter(self._is_unbalanced, self._members_of), None)
        return self._unbalanced_topic is not None

    def _is_unbalanced(self, topic: str) -> bool:
        lightest = self._lightest(self._members_of[topic])
        heaviest = max(self._count[topic], key=self._weight.__getitem__)
        return len(self.owned[heaviest]) - len(self.owned[lightest]) > 1

    def _lightest(self, members: Iterable[str]) -> str:
        return min(members, key=self._weight.__getitem__)

    def _imbalance(self) -> int:
        """The sum of the differences in partitions, over all pairs of members that share a topic with another."""
        sizes = sorted(len(self.owned[member]) for member in self.owned if self._has_shared_topic(member))
        return sum(size * (2 * index + 1 - len(sizes)) for index, size in enumerate(sizes))

    def _has_shared_topic(self, member: str) -> bool:
        return any(len(self._members_of.get(topic, ())) > 1 for topic in self._subscribed[member])

    def _assign(self, tp: TopicPartition, member: str) -> None:
        former = self._owner.get(tp)
        if former is not None:
            self.owned[former].discard(tp)
            self._weight[former] -= len(self.owned)
            self._count[tp.topic][former] -= 1
            if not self._count[tp.topic][former]:
                del self._count[tp.topic][former]
        self._owner[tp] = member
        self.owned[member].add(tp)
        self._weight[member] += len(self.owned)
        self._count[tp.topic][member] += 1


Assignments = Mapping[str, set[TopicPartition]]


class _StickyBase(Assignor):
    @abstractmethod
    def claim(self, member: Subscriber) -> Claim:
        """Returns the partitions that a member owned."""

    def balance(
        self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]
    ) -> tuple[Assignments, Partitions]:
        """Returns balanced assignments, and the partitions in them whose present owner must revoke them first."""
        partitions = [TopicPartition(topic, number) for topic in sorted(topics) for number in topics[topic]]
        claims = Claims([self.claim(member) for member in members], frozenset(partitions))
        member_racks = Racks(members, partitions, racks)
        if len({frozenset(member.topics) for member in members}) <= 1:
            equal = EqualSubscriptionsAssignment(partitions, claims, member_racks)
            return equal.assigned, frozenset(equal.moving)
        assignments = MixedSubscriptionsAssignment(topics, members, claims, member_racks).owned
        return assignments, _moving(assignments, claims)


class Sticky(_StickyBase):
    """Eager: members revoke all partitions before each rebalance, and get most of them back."""

    name = "sticky"

    def __init__(self) -> None:
        self._last: tuple[frozenset[TopicPartition], int] | None = None

    def assign_partitions(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Assignments:
        """Returns balanced assignments."""
        return self.balance(topics, racks, members)[0]

    def claim(self, member: Subscriber) -> Claim:
        """Returns the last assignment, from the user data: an eager member owns nothing when it joins."""
        partitions, generation = decode(member.user_data)
        return Claim(member.id, partitions, generation, member.generation)

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Remembers the assignment for the next rebalance."""
        self._last = frozenset(TopicPartition(*tp) for tp in assignment.partitions()), generation

    def user_data(self) -> bytes:
        """The last assignment, encoded; empty before the first."""
        return encode(*self._last) if self._last else b""


class CooperativeSticky(_StickyBase):
    """Members keep their partitions in a rebalance. A partition that moves is assigned in the next rebalance."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = -1

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Also eager, as in Kafka's client, for members that also have an eager assignor."""
        return [RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER]

    def assign_partitions(self, topics: Topics, racks: PartitionRacks, members: Sequence[Subscriber]) -> Assignments:
        """Returns balanced assignments, without the partitions that another member must revoke first."""
        assignments, moving = self.balance(topics, racks, members)
        return {member: assigned - moving for member, assigned in assignments.items()}

    def claim(self, member: Subscriber) -> Claim:
        """Returns what the member owns. Clients before Kafka 3.4 send the generation in the user data only."""
        generation = member.generation
        if generation < 0 and len(member.user_data) >= 4:
            (generation,) = struct.unpack_from(">i", member.user_data)
        return Claim(member.id, member.owned, generation, member.generation)

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Remembers the generation for the next rebalance."""
        self._generation = generation

    def user_data(self) -> bytes:
        """The generation, for leaders that read it from the user data only."""
        return struct.pack(">i", self._generation)


def _moving(assignments: Assignments, claims: Claims) -> Partitions:
    """The partitions that are new to their member and that another member must revoke."""
    to_revoke, new = set[TopicPartition](), set[TopicPartition]()
    for claim in claims.claims:
        assigned = assignments[claim.member]
        to_revoke.update(tp for tp in claim.partitions if tp not in assigned)
        new |= assigned.difference(claim.partitions)
    return frozenset(to_revoke & new)
