"""One group of the fake cluster: its offsets, and its members with either group protocol."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tests.fake.classic_group import EMPTY, ILLEGAL_GENERATION, FakeClassicGroup, FakeMember, Removed
from tests.fake.consumer_group import UNKNOWN_GROUP, FakeConsumerGroup, FakeConsumerMember

CLASSIC, CONSUMER = "classic", "consumer"


@dataclass
class FakeGroup:
    """Offsets and leader epochs of one group, and its members.

    The fake does not convert a group with members from one protocol to the other: it refuses the other. ``kind`` is the
    protocol, empty as long as the group does not exist.
    """

    changed: threading.Condition
    removed: Removed
    offsets: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    kind: str = ""

    def __post_init__(self) -> None:
        self.classic = FakeClassicGroup(self.changed, self.removed)
        self.consumer = FakeConsumerGroup(self.removed)

    @property
    def members(self) -> dict[str, FakeMember | FakeConsumerMember]:
        """The members of both kinds, by id."""
        return {**self.classic.members, **self.consumer.members}

    @property
    def empty(self) -> bool:
        """Whether it has no members, and the last ones' rebalance has ended."""
        return self.classic.state == EMPTY and not self.consumer.members

    def become(self, kind: str) -> None:
        """Makes an empty group one of this kind. Of one of the other kind only the offsets remain."""
        if self.kind != kind:
            self.kind = kind
            self.__post_init__()

    def advance(self, now: float) -> None:
        """Does what has been due by now: ends sessions, and the phases of a rebalance."""
        self.classic.advance(now)
        self.consumer.advance(now)

    def reload(self, now: float) -> None:
        """Becomes what the next coordinator reads. Sessions begin again at ``now``, when it has read the group."""
        self.classic.reload(now)
        self.consumer.reload(now)

    def expire(self, member_id: str, now: float) -> int:
        """Ends the session of a member; returns the error code, or 0."""
        if member_id in self.consumer.members:
            self.consumer.remove(member_id, now, "session")
            return 0
        return self.classic.expire(member_id, now)

    def commit_error(self, request: Any) -> int:
        """Returns the error code for a commit, or 0."""
        if self.kind == CONSUMER:
            return self.consumer.commit_error(request)
        if not self.kind and request.generation_id_or_member_epoch >= 0:
            return UNKNOWN_GROUP if request.version >= 9 else ILLEGAL_GENERATION
        return self.classic.commit_error(request)
