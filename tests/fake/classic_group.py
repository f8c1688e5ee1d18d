"""The coordinator's side of one group's members with the classic group protocol."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.consumer import JoinGroupResponse

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, UNKNOWN_MEMBER = 22, 23, 25
REBALANCING, ID_REQUIRED, FENCED = 27, 79, 82


@dataclass
class FakeMember:
    """One member; ``protocols`` maps its assignors, in order of preference, to its subscription."""

    id: str
    instance: str | None
    protocols: dict[str, bytes]
    rebalance_timeout: float
    client_id: str = "client"
    joined: bool = True
    assignment: bytes = b""


@dataclass
class FakeClassicGroup:
    """Members and generation of one group. Its methods block as long as a broker would."""

    changed: threading.Condition
    state: str = EMPTY
    generation: int = 0
    leader: str = ""
    protocol: str = ""
    members: dict[str, FakeMember] = field(default_factory=dict)
    closed: bool = False
    _pending_ids: set[str] = field(default_factory=set)
    _instances: dict[str, str] = field(default_factory=dict)
    _rebalance_ends_at: float = 0.0

    def member_error(self, member_id: str, instance: str | None, generation: int | None = None) -> int:
        """Returns the error code for a request of a member, or 0."""
        if instance is not None and self._instances.get(instance, member_id) != member_id:
            return FENCED
        if member_id not in self.members:
            return UNKNOWN_MEMBER
        return 0 if generation in (None, self.generation) else ILLEGAL_GENERATION

    def join(self, request: Any, response: Any) -> None:
        """Waits until all members have joined, or the rebalance timeout has removed the rest."""
        member_id = request.member_id or f"member-{uuid.uuid4()}"
        response.member_id = member_id
        if not request.member_id and request.group_instance_id is None:
            self._pending_ids.add(member_id)
            response.error_code = ID_REQUIRED
            return
        response.error_code = self._admit(request, member_id)
        if response.error_code:
            return
        rejoined = not self.members[member_id].joined
        if not rejoined:
            self._await_generation(member_id)
        if member_id not in self.members:
            response.error_code = UNKNOWN_MEMBER
            return
        response.generation_id, response.leader, response.protocol_name = self.generation, self.leader, self.protocol
        response.skip_assignment = rejoined and member_id == self.leader
        listed = self.members.values() if member_id == self.leader else ()
        response.members = [
            JoinGroupResponse.JoinGroupResponseMember(
                version=9, member_id=each.id, group_instance_id=each.instance, metadata=each.protocols[self.protocol]
            )
            for each in listed
        ]

    def _admit(self, request: Any, member_id: str) -> int:
        instance, protocols = request.group_instance_id, {each.name: bytes(each.metadata) for each in request.protocols}
        former = None
        if instance is not None and not request.member_id:
            former = self.members.pop(self._instances.get(instance, ""), None)
            self._instances[instance] = member_id
        elif member_id not in self._pending_ids and (error_code := self.member_error(member_id, instance)):
            return error_code
        for other in self.members.values():
            if other.id != member_id and not protocols.keys() & other.protocols.keys():
                return INCONSISTENT_PROTOCOL
        self._pending_ids.discard(member_id)
        member = FakeMember(
            member_id, instance, protocols, request.rebalance_timeout_ms / 1000, request.header.client_id
        )
        self.members[member_id] = member
        if former is not None and self.state == STABLE and self.protocol in protocols:
            # A returning static member gets its former assignment, in the same generation.
            member.joined, member.assignment = False, former.assignment
            self.leader = member_id if self.leader == former.id else self.leader
        return 0

    def _await_generation(self, member_id: str) -> None:
        self._prepare()
        since = self.generation
        while self.generation == since and member_id in self.members and not self.closed:
            self._complete()
            if self.generation == since:
                self.changed.wait(min(0.5, max(0.01, self._rebalance_ends_at - time.monotonic())))

    def _prepare(self) -> None:
        if self.state != PREPARING:
            self.state = PREPARING
            self._rebalance_ends_at = time.monotonic() + max(each.rebalance_timeout for each in self.members.values())
        self.changed.notify_all()

    def _complete(self) -> None:
        """Begins the new generation if all members have joined, or the rebalance timeout has passed."""
        absent = [each.id for each in self.members.values() if not each.joined]
        if self.state != PREPARING or (absent and time.monotonic() < self._rebalance_ends_at):
            return
        for absent_id in absent:
            del self.members[absent_id]
        joined = list(self.members.values())
        self.leader = self.leader if self.leader in self.members else joined[0].id
        common = set.intersection(*(set(each.protocols) for each in joined))
        self.protocol = next(name for name in self.members[self.leader].protocols if name in common)
        self.generation, self.state = self.generation + 1, COMPLETING
        for member in joined:
            member.joined, member.assignment = False, b""
        self.changed.notify_all()

    def sync(self, request: Any, response: Any) -> None:
        """Waits for the leader's assignment."""
        member_id, generation = request.member_id, request.generation_id
        response.error_code = self.member_error(member_id, request.group_instance_id, generation)
        if not response.error_code and self.state == COMPLETING and member_id == self.leader:
            for each in request.assignments:
                self.members[each.member_id].assignment = bytes(each.assignment)
            self.state = STABLE
            self.changed.notify_all()
        while not response.error_code and self.state == COMPLETING and not self.closed:
            self.changed.wait(0.5)
            response.error_code = self.member_error(member_id, request.group_instance_id)
        if not response.error_code and (self.state != STABLE or self.generation != generation):
            response.error_code = REBALANCING
        if not response.error_code:
            response.assignment = self.members[member_id].assignment
        response.protocol_type, response.protocol_name = "consumer", self.protocol

    def heartbeat(self, request: Any, response: Any) -> None:
        """Sets the error code: whether the group rebalances."""
        error_code = self.member_error(request.member_id, request.group_instance_id, request.generation_id)
        response.error_code = error_code or (REBALANCING if self.state == PREPARING else 0)

    def remove(self, member_id: str) -> int:
        """Removes a member that leaves or whose session has expired."""
        if self.members.pop(member_id, None) is None:
            return UNKNOWN_MEMBER
        if self.members:
            self._prepare()
        else:
            self.state, self.leader = EMPTY, ""
        self.changed.notify_all()
        return 0

    def commit_error(self, request: Any) -> int:
        """Returns the error code for a member's commit, or 0."""
        generation = request.generation_id_or_member_epoch
        error_code = self.member_error(request.member_id, request.group_instance_id, generation)
        return error_code or (REBALANCING if self.state == COMPLETING else 0)
