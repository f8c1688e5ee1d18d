"""The coordinator's side of one group's members with the classic group protocol, as in Kafka 4.

Timers are no threads: :meth:`FakeClassicGroup.advance` does what was due, in its order and as of its time. Each
request calls it, and so does each JoinGroup and SyncGroup that waits.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fake.server import fill

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
NOT_COORDINATOR, ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, UNKNOWN_MEMBER = 16, 22, 23, 25
REBALANCING, ID_REQUIRED, FENCED = 27, 79, 82

FIRST_JOIN_TIMEOUT = 300.0
"""Seconds that a new member may wait for its first generation."""

Removed = Callable[[float, str, str], None]
"""Called with the time at which a member was removed, its id and the reason."""


@dataclass
class FakeMember:
    """One member; ``protocols`` maps its assignors, in order of preference, to its subscription.

    ``join`` and ``sync`` are the responses that it waits for. As long as it does, its session cannot end, unless it is
    new.
    If a broker never answers, the error code becomes None: the member has sent the request again, or is removed while
    it waits for its assignment.
    """

    id: str
    instance: str | None
    protocols: dict[str, bytes]
    rebalance_timeout: float
    session_timeout: float = math.inf
    client_id: str = "client"
    assignment: bytes = b""
    new: bool = True
    session_ends_at: float = math.inf
    join: Any = None
    sync: Any = None

    def renew(self, now: float) -> None:
        self.session_ends_at = now + self.session_timeout


@dataclass
class FakeClassicGroup:
    """Members and generation of one group. Its methods block as long as a broker would."""

    changed: threading.Condition
    removed: Removed
    state: str = EMPTY
    generation: int = 0
    leader: str = ""
    protocol: str = ""
    protocol_type: str = ""
    members: dict[str, FakeMember] = field(default_factory=dict)
    closed: bool = False
    _pending: dict[str, float] = field(default_factory=dict)
    """Ids that a client must join with, and when it has to have done so."""
    _unsynced: set[str] = field(default_factory=set)
    _phase_ends_at: float = math.inf
    _stored: tuple[int, str, str, list[FakeMember]] = (0, "", "", [])
    """What the next coordinator reads: it knows only what the leader's SyncGroup completed."""

    def member_error(self, member_id: str, instance: str | None, generation: int | None = None) -> int:
        """Returns the error code for a request of a member, or 0."""
        if instance is not None and (holder := self._holder(instance)) is not None and holder.id != member_id:
            return FENCED
        if member_id not in self.members or (instance is not None and holder is None):
            return UNKNOWN_MEMBER
        return 0 if generation in (None, self.generation) else ILLEGAL_GENERATION

    def _holder(self, instance: str) -> FakeMember | None:
        return next((each for each in self.members.values() if each.instance == instance), None)

    def join(self, request: Any, response: Any) -> None:
        """Waits until all members have joined, or the rebalance timeout has removed the rest."""
        now, member_id, instance = time.monotonic(), request.member_id, request.group_instance_id
        protocols = {each.name: bytes(each.metadata) for each in request.protocols}
        new_id = member_id or f"{instance or request.header.client_id}-{uuid.uuid4()}"
        supported = any(all(name in each.protocols for each in self.members.values()) for name in protocols)
        holder = self._holder(instance) if instance is not None and not member_id else None
        if not supported:
            response.error_code = INCONSISTENT_PROTOCOL
        elif not member_id and instance is None and request.version >= 4:
            self._pending[new_id] = now + request.session_timeout_ms / 1000
            response.error_code, response.member_id = ID_REQUIRED, new_id
        elif member_id and member_id not in self._pending:
            response.error_code = self.member_error(member_id, instance)
        if response.error_code:
            return
        member = self.members.get(new_id)
        same = member is not None and list(member.protocols.items()) == list(protocols.items())
        answered = same and self.state in (COMPLETING, STABLE) and (self.state, new_id) != (STABLE, self.leader)
        if holder is not None:
            member = self._replace(holder, new_id)
        elif member is None:
            client_id = request.header.client_id
            member = self.members[new_id] = FakeMember(new_id, instance, protocols, 0.0, client_id=client_id)
            self._pending.pop(new_id, None)
            self.protocol_type = "consumer"
            self.leader = self.leader or new_id
        if answered:
            self._answer_join(member, response)
            return
        member.protocols = protocols
        member.rebalance_timeout = request.rebalance_timeout_ms / 1000
        member.session_timeout = request.session_timeout_ms / 1000
        if member.new:
            member.session_ends_at = now + FIRST_JOIN_TIMEOUT
        if member.join is not None:
            member.join.error_code = None
        member.join = response
        self.changed.notify_all()
        if holder is not None:
            member.renew(now)
        if holder is not None and self.state == STABLE and self.protocol == self._selected():
            # A returning static member gets its former assignment, in the same generation.
            self._answer_join(member, response)
            response.skip_assignment = member.id == self.leader
            self._store()
            return
        self._rebalance(now)
        while member.join is response and not self.closed:
            self._wait()

    def _replace(self, former: FakeMember, new_id: str) -> FakeMember:
        """Gives a static member a new id, which fences the former one."""
        for waiting in filter(None, (former.join, former.sync)):
            waiting.error_code = FENCED
        if former.join is not None:
            former.join.member_id = former.id
        member = replace(former, id=new_id, new=False, join=None, sync=None)
        former.join = former.sync = None
        self.members = {each.id: each for each in (*self.members.values(), member) if each is not former}
        self.leader = new_id if self.leader == former.id else self.leader
        self._unsynced.discard(former.id)
        self.removed(time.monotonic(), former.id, "replaced")
        return member

    def _answer_join(self, member: FakeMember, response: Any) -> None:
        response.member_id, response.generation_id, response.leader = member.id, self.generation, self.leader
        response.protocol_type, response.protocol_name, response.skip_assignment = "consumer", self.protocol, False
        members = self.members.values() if member.id == self.leader else ()
        known = [(each.id, each.instance, each.protocols[self.protocol]) for each in members]
        names = "member_id", "group_instance_id", "metadata"
        fill(response, members=[dict(zip(names, each, strict=True)) for each in known])
        member.join = None

    def _wait(self) -> None:
        """Waits until something has changed, or the next timer has ended."""
        ends_at, _ = self._next_timer()
        self.changed.wait(None if ends_at == math.inf else max(0.0, ends_at - time.monotonic()))
        self.advance(time.monotonic())

    def _rebalance(self, now: float) -> None:
        """Begins a rebalance if none is under way. The generation begins at once if all members have joined."""
        first = self.state == EMPTY
        if self.state == COMPLETING:
            for each in self.members.values():
                each.assignment = b""
                self._answer_sync(each, REBALANCING)
        if self.state != PREPARING:
            self.state = PREPARING
            self._unsynced.clear()
            self._phase_ends_at = now + self._rebalance_timeout()
        if first or (not self._pending and all(each.join is not None for each in self.members.values())):
            self._next_generation(now)
        self.changed.notify_all()

    def _rebalance_timeout(self) -> float:
        return max((each.rebalance_timeout for each in self.members.values()), default=0.0)

    def _next_generation(self, now: float) -> None:
        """Begins the next generation, without the members that have not joined; but static ones stay."""
        for each in [each for each in self.members.values() if each.join is None and each.instance is None]:
            self._drop(each.id, "rebalance timeout", now)
        joined = [each.id for each in self.members.values() if each.join is not None]
        if self.members and not joined:
            self._phase_ends_at = now + self._rebalance_timeout()
            return
        self.generation += 1
        self.changed.notify_all()
        if not self.members:
            self.state, self.leader, self.protocol = EMPTY, "", ""
            self._store()
            return
        self.leader = self.leader if self.leader in joined else joined[0]
        self.state, self.protocol, self._unsynced = COMPLETING, self._selected(), set(self.members)
        self._phase_ends_at = now + self._rebalance_timeout()
        for member in self.members.values():
            member.new = False
            member.renew(now)
            if member.join is not None:
                self._answer_join(member, member.join)

    def _selected(self) -> str:
        """The assignor that most members prefer of those that all have."""
        every = [each.protocols for each in self.members.values()]
        votes = [next(name for name in mine if all(name in each for each in every)) for mine in every]
        return max(votes, key=votes.count)

    def sync(self, request: Any, response: Any) -> None:
        """Waits for the leader's assignment."""
        now, member_id = time.monotonic(), request.member_id
        named = request.version >= 5
        error_code = self.member_error(member_id, request.group_instance_id, request.generation_id)
        if named and (request.protocol_name is None or (not error_code and request.protocol_name != self.protocol)):
            error_code = INCONSISTENT_PROTOCOL
        response.error_code = error_code or (REBALANCING if self.state == PREPARING else 0)
        if response.error_code:
            return
        member = self.members[member_id]
        self._unsynced.discard(member_id)
        if member.sync is not None:
            member.sync.error_code = None
        member.sync = response
        if self.state == STABLE:
            self._answer_sync(member)
        elif member_id == self.leader:
            given = {each.member_id: bytes(each.assignment) for each in request.assignments}
            self.state = STABLE
            for each in self.members.values():
                each.assignment = given.get(each.id, b"")
                if each.sync is not None:
                    each.renew(now)
                    self._answer_sync(each)
            self._store()
        self.changed.notify_all()
        while member.sync is response and not self.closed:
            self._wait()

    def _answer_sync(self, member: FakeMember, error_code: int = 0) -> None:
        if member.sync is not None:
            member.sync.error_code = error_code
            if not error_code:
                member.sync.protocol_type, member.sync.protocol_name = "consumer", self.protocol
                member.sync.assignment = member.assignment
            member.sync = None

    def heartbeat(self, request: Any, response: Any) -> None:
        """Sets the error code: whether the group rebalances."""
        response.error_code = self.member_error(request.member_id, request.group_instance_id, request.generation_id)
        if not response.error_code:
            self.members[request.member_id].renew(time.monotonic())
            response.error_code = REBALANCING if self.state == PREPARING else 0

    def leave(self, leaving: Iterable[tuple[str, str | None]]) -> list[int]:
        """Removes members by id and instance id; returns their error codes. An operator has only the instance id."""
        now, errors = time.monotonic(), []
        for member_id, instance in leaving:
            if member_id in self._pending:
                del self._pending[member_id]
                errors.append(0)
                continue
            holder = self._holder(instance) if instance is not None and not member_id else None
            found = holder.id if holder is not None else member_id
            errors.append(self.member_error(found, instance))
            if not errors[-1]:
                self._drop(found, "left", now)
        if 0 in errors and self.state != EMPTY:
            self._rebalance(now)
        return errors

    def expire(self, member_id: str, now: float) -> int:
        """Ends the session of a member; returns the error code, or 0."""
        if member_id not in self.members:
            return UNKNOWN_MEMBER
        self._drop(member_id, "session", now)
        self._rebalance(now)
        return 0

    def commit_error(self, request: Any) -> int:
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        instance = request.group_instance_id
        if generation < 0 and self.state == EMPTY:
            return 0
        if generation < 0 and not member_id and instance is None:
            return UNKNOWN_MEMBER
        if error_code := self.member_error(member_id, instance, generation):
            return error_code
        if self.state == COMPLETING:
            return REBALANCING
        self.members[member_id].renew(time.monotonic())
        return 0

    def advance(self, now: float) -> None:
        """Does what has been due by now: ends sessions and the phases of a rebalance."""
        while (due := self._next_timer())[0] <= now:
            at, member_id = due
            if member_id in self.members:
                self.expire(member_id, at)
            elif member_id:
                del self._pending[member_id]
                if self.state == PREPARING:
                    self._rebalance(at)
            elif self.state == PREPARING:
                self._next_generation(at)
            else:
                for each in self._unsynced & self.members.keys():
                    self._drop(each, "rebalance timeout", at)
                self._rebalance(at)

    def _next_timer(self) -> tuple[float, str]:
        """When the next timer ends, and the member whose it is; none if it is the phase of a rebalance."""
        timers = [
            (each.session_ends_at, each.id)
            for each in self.members.values()
            if each.new or (each.join is None and each.sync is None)
        ]
        timers += [(ends_at, member_id) for member_id, ends_at in self._pending.items()]
        if self.state == PREPARING or self._unsynced:
            timers.append((self._phase_ends_at, ""))
        return min(timers, default=(math.inf, ""))

    def _drop(self, member_id: str, why: str, at: float) -> None:
        member = self.members.pop(member_id)
        if member.join is not None:
            member.join.error_code, member.join.member_id, member.join = UNKNOWN_MEMBER, "", None
        if member.sync is not None:  # which a broker forgets to answer
            member.sync.error_code, member.sync = None, None
        self._unsynced.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")
        self.removed(at, member_id, why)

    def _store(self) -> None:
        # Of the assignors only the group's is stored.
        members = [
            replace(each, join=None, sync=None, protocols={self.protocol: each.protocols[self.protocol]})
            for each in self.members.values()
        ]
        self._stored = self.generation, self.leader, self.protocol, members

    def reload(self, now: float) -> None:
        """Becomes what the next coordinator reads: the last generation that was complete, even if a later one began."""
        before = self.members
        for member in before.values():
            self._answer_sync(member, NOT_COORDINATOR)
            if member.join is not None:
                member.join.error_code, member.join.member_id, member.join = NOT_COORDINATOR, member.id, None
        self.generation, self.leader, self.protocol, members = self._stored
        self.members = {each.id: replace(each) for each in members}
        for member in self.members.values():
            member.renew(now)
        self.state = STABLE if members else EMPTY
        self._pending, self._unsynced = {}, set()
        for member_id in before.keys() - self.members.keys():
            self.removed(now, member_id, "coordinator moved")
        self.changed.notify_all()
