"""The coordinator's side of one group's members with the group protocol of KIP-848.

A change of members, subscriptions or topics begins a new group epoch, with a target assignment for each member. Each
member moves to its target with its own heartbeats. It first revokes the partitions that the target lacks, and reports
that it no longer owns them. Until then no other member gets them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.fake.classic_group import FENCED, UNKNOWN_MEMBER, Removed
from tests.fake.server import fill

UNSUPPORTED_VERSION, INVALID_REQUEST, UNKNOWN_GROUP = 35, 42, 69
FENCED_EPOCH, UNRELEASED_INSTANCE, UNSUPPORTED_ASSIGNOR, STALE_EPOCH = 110, 111, 112, 113
JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
"""The epochs of heartbeats that join, leave, and leave for now (a static member)."""

IdPartition = tuple[UUID, int]
Partitions = frozenset[IdPartition]

Subscriptions = Mapping[str, Mapping[str, tuple[UUID, int]]]
"""By member id, in order: the topics that it subscribes to, with their ids and numbers of partitions."""

UNIFORM, RANGE = "uniform", "range"


def uniform(subscriptions: Subscriptions, former: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Gives each member as many partitions as possible of its former ones, and all members equally many."""
    may_have = {
        member: frozenset((topic_id, number) for topic_id, count in topics.values() for number in range(count))
        for member, topics in subscriptions.items()
    }
    every = sorted(frozenset[IdPartition]().union(*may_have.values()))
    target: dict[str, set[IdPartition]] = {member: set() for member in subscriptions}
    least, more = divmod(len(every), len(target)) if target else (0, 0)
    for member in sorted(target, key=lambda each: -len(former.get(each, ()))):
        kept = sorted(former.get(member, frozenset()) & may_have[member])
        quota = least + (more > 0 and len(kept) > least)
        more -= quota > least
        target[member].update(kept[:quota])
    given = set[IdPartition]().union(*target.values())
    for partition in every:
        if partition not in given:
            fewest = min((each for each in target if partition in may_have[each]), key=lambda each: len(target[each]))
            target[fewest].add(partition)
    return {member: frozenset(partitions) for member, partitions in target.items()}


def range_(subscriptions: Subscriptions, former: Mapping[str, Partitions]) -> dict[str, Partitions]:
    """Gives each member a range of each topic's partitions; ``former`` assignments do not count."""
    members: dict[tuple[UUID, int], list[str]] = defaultdict(list)
    for member, topics in subscriptions.items():
        for topic in topics.values():
            members[topic].append(member)
    target: dict[str, set[IdPartition]] = {member: set() for member in subscriptions}
    for (topic_id, count), subscribed in members.items():
        least, more = divmod(count, len(subscribed))
        start = 0
        for place, member in enumerate(subscribed):
            end = start + least + (place < more)
            target[member].update((topic_id, number) for number in range(start, end))
            start = end
    return {member: frozenset(partitions) for member, partitions in target.items()}


ASSIGNORS = {UNIFORM: uniform, RANGE: range_}


@dataclass
class FakeConsumerMember:
    """One member. It may have ``assigned``, and has yet to acknowledge that it gave up ``revoking``."""

    id: str
    instance: str | None
    client_id: str = "client"
    rack: str | None = None
    rebalance_timeout: float = 0.0
    topics: frozenset[str] = frozenset()
    assignor: str | None = None
    epoch: int = JOIN
    former_epoch: int = -1
    assigned: Partitions = frozenset()
    revoking: Partitions = frozenset()
    revoke_by: float = math.inf
    session_ends_at: float = math.inf

    def move_to(self, epoch: int, assigned: Partitions, revoking: Partitions = frozenset()) -> None:
        """Sets epoch and partitions; the rebalance timeout begins with each revocation."""
        if revoking:
            self.revoke_by = time.monotonic() + self.rebalance_timeout
        self.former_epoch, self.epoch, self.assigned, self.revoking = self.epoch, epoch, assigned, revoking


@dataclass
class FakeConsumerGroup:
    """Members, group epoch and target assignment of one group."""

    removed: Removed
    members: dict[str, FakeConsumerMember] = field(default_factory=dict)
    epoch: int = 0
    assignment_epoch: int = 0
    target: dict[str, Partitions] = field(default_factory=dict)
    session_timeout: float = math.inf
    _counts: dict[str, tuple[UUID, int]] = field(default_factory=dict)

    @property
    def assignor(self) -> str:
        wanted = [each.assignor for each in self.members.values() if each.assignor]
        return max(wanted, key=wanted.count, default=UNIFORM)

    @property
    def state(self) -> str:
        if not self.members:
            return "Empty"
        if self.epoch > self.assignment_epoch:
            return "Assigning"
        settled = all(
            (each.epoch, each.assigned, each.revoking) == (self.epoch, self.target.get(each.id), frozenset())
            for each in self.members.values()
        )
        return "Stable" if settled else "Reconciling"

    def heartbeat(self, request: Any, response: Any, topics: Mapping[str, tuple[UUID, int]]) -> None:
        """Answers a heartbeat. ``topics`` maps each topic of the cluster to its id and number of partitions."""
        response.error_code = self._member_error(request)
        if response.error_code:
            return
        response.member_id, response.member_epoch = request.member_id, request.member_epoch
        if request.member_epoch == LEAVE:
            self.remove(request.member_id, time.monotonic(), "left")
            return
        if request.member_epoch == LEAVE_FOR_NOW:
            member = self.members[request.member_id]
            member.move_to(LEAVE_FOR_NOW, member.assigned)
            return
        member = self._admit(request)
        member.session_ends_at = time.monotonic() + self.session_timeout
        self._update(member, request, topics)
        owned = None if request.topic_partitions is None else _partitions(request.topic_partitions)
        before = member.assigned
        self._reconcile(member, owned)
        response.member_epoch = member.epoch
        full = request.rebalance_timeout_ms >= 0 and request.subscribed_topic_names is not None and owned is not None
        if full or member.assigned != before:
            fill(response, assignment=assignment(member.assigned))

    def remove(self, member_id: str, at: float, why: str) -> None:
        """Removes a member that leaves, is fenced, or whose session has expired."""
        del self.members[member_id]
        self.target.pop(member_id, None)
        self.epoch += 1
        self._counts = self._of_subscribed(self._counts)
        self.removed(at, member_id, why)

    def advance(self, now: float) -> None:
        """Ends sessions, and fences members that have not acknowledged a revocation within their rebalance timeout."""
        late = []
        for each in self.members.values():
            revoke_by = each.revoke_by if each.revoking else math.inf
            if (at := min(each.session_ends_at, revoke_by)) <= now:
                late.append((at, each.id, "session" if at == each.session_ends_at else "rebalance timeout"))
        for at, member_id, why in sorted(late):
            self.remove(member_id, at, why)

    def reload(self, now: float) -> None:
        """Begins sessions and revocations again, as a coordinator does that has just read the group."""
        for each in self.members.values():
            each.session_ends_at = now + self.session_timeout
            each.revoke_by = now + each.rebalance_timeout

    def commit_error(self, request: Any) -> int:
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not self.members:
            return 0
        if request.member_id in self.members and request.version < 9:
            return UNSUPPORTED_VERSION
        return self.member_error(request.member_id, epoch)

    def member_error(self, member_id: str, epoch: int) -> int:
        """Returns the error code for a request about offsets of a member in this epoch, or 0."""
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER
        return 0 if epoch == member.epoch else STALE_EPOCH

    def _member_error(self, request: Any) -> int:
        holder = self._holder(request.instance_id)
        if holder is not None and request.member_epoch == JOIN:  # also of the member that has it
            return 0 if holder.epoch == LEAVE_FOR_NOW else UNRELEASED_INSTANCE
        if holder is not None and holder.id != request.member_id:
            return FENCED
        member = self.members.get(request.member_id)
        if member is None or (request.instance_id is not None and holder is None):
            return 0 if request.member_epoch == JOIN else UNKNOWN_MEMBER
        if request.member_epoch < JOIN or request.member_epoch == member.epoch:
            return 0
        owned = request.topic_partitions
        keeps = owned is not None and _partitions(owned) <= member.assigned
        # It has the epoch before if a response was lost.
        return 0 if request.member_epoch == member.former_epoch and keeps else FENCED_EPOCH

    def _holder(self, instance: str | None) -> FakeConsumerMember | None:
        named = (each for each in self.members.values() if instance is not None and each.instance == instance)
        return next(named, None)

    def _admit(self, request: Any) -> FakeConsumerMember:
        """Returns the member; one that comes back has the partitions of the former one with its instance id."""
        if request.member_id not in self.members:
            member = FakeConsumerMember(request.member_id, request.instance_id, request.header.client_id)
            former = self._holder(request.instance_id)
            if former is not None:
                del self.members[former.id]
                self.removed(time.monotonic(), former.id, "replaced")
                self.target[member.id] = self.target.pop(former.id, frozenset())
                member.topics, member.assignor, member.assigned = former.topics, former.assignor, former.assigned
            self.members[member.id] = member
        return self.members[request.member_id]

    def _update(self, member: FakeConsumerMember, request: Any, topics: Mapping[str, tuple[UUID, int]]) -> None:
        """Takes over what the request says; a change begins a new group epoch with a new target assignment."""
        if request.rebalance_timeout_ms >= 0:
            member.rebalance_timeout = request.rebalance_timeout_ms / 1000
        member.rack = request.rack_id or member.rack
        before = member.topics
        if request.subscribed_topic_names is not None:
            member.topics = frozenset(request.subscribed_topic_names)
        member.assignor = request.server_assignor or member.assignor
        counts = self._of_subscribed(topics)
        is_first = self.epoch == 0  # begins epoch 1 also without a topic
        if is_first or member.topics != before or counts != self._counts:
            self._counts, self.epoch = counts, self.epoch + 1
        if self.epoch > self.assignment_epoch:
            self._assign()

    def _of_subscribed(self, topics: Mapping[str, tuple[UUID, int]]) -> dict[str, tuple[UUID, int]]:
        subscribed = frozenset[str]().union(*(each.topics for each in self.members.values()))
        return {name: topic for name, topic in topics.items() if name in subscribed}

    def _assign(self) -> None:
        members = sorted(self.members.values(), key=lambda each: (each.instance is None, each.instance or each.id))
        subscriptions = {
            each.id: {name: self._counts[name] for name in each.topics if name in self._counts} for each in members
        }
        self.assignment_epoch = self.epoch
        self.target = ASSIGNORS[self.assignor](subscriptions, self.target)

    def _reconcile(self, member: FakeConsumerMember, owned: Partitions | None) -> None:
        """Moves the member towards its target: it first acknowledges revocations, by what it reports as ``owned``."""
        target, epoch = self.target.get(member.id, frozenset()), member.epoch
        if member.revoking:
            if owned is None or owned & member.revoking:
                return
            epoch += 1
        elif (member.epoch, member.assigned) == (self.epoch, target):
            return
        kept, revoking = member.assigned & target, member.assigned - target
        if revoking and (owned is None or owned & revoking):
            member.move_to(epoch, kept, revoking)
            return
        others = (each for each in self.members.values() if each is not member)
        taken = member.revoking.union(*(each.assigned | each.revoking for each in others))
        member.move_to(self.epoch, kept | (target - taken))


def invalid(request: Any) -> int:
    """Returns the error code of a heartbeat that no coordinator accepts, whatever its group is, or 0."""
    subscribes = request.rebalance_timeout_ms >= 0 and request.subscribed_topic_names is not None
    if request.member_epoch == JOIN and not (subscribes and request.topic_partitions == []):
        return INVALID_REQUEST
    if request.member_epoch < LEAVE_FOR_NOW or (request.member_epoch == LEAVE_FOR_NOW and not request.instance_id):
        return INVALID_REQUEST
    assignor = request.server_assignor
    return UNSUPPORTED_ASSIGNOR if assignor is not None and assignor not in ASSIGNORS else 0


def _partitions(topics: Any) -> Partitions:
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)


def assignment(partitions: Partitions, names: Mapping[UUID, str] | None = None) -> dict[str, Any]:
    """Partitions as responses have them; a description has the topics' names, too."""
    numbers: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        numbers.setdefault(topic_id, []).append(number)
    named = {each: {} if names is None else {"topic_name": names.get(each, "")} for each in numbers}
    return {"topic_partitions": [{"topic_id": each, "partitions": numbers[each], **named[each]} for each in numbers]}
