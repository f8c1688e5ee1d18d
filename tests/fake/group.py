"""One group of the fake cluster: its offsets, and its members with either group protocol."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from tests.fake.classic_group import UNKNOWN_MEMBER, FakeClassicGroup, FakeMember
from tests.fake.consumer_group import FakeConsumerGroup, FakeConsumerMember


@dataclass
class FakeGroup:
    """Offsets and leader epochs of one group, and its members.

    The fake does not convert a group from one protocol to the other: while it has members of one, it refuses the other.
    """

    changed: threading.Condition
    offsets: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.classic = FakeClassicGroup(self.changed)
        self.consumer = FakeConsumerGroup()

    @property
    def members(self) -> dict[str, FakeMember | FakeConsumerMember]:
        """The members of both kinds, by id."""
        return {**self.classic.members, **self.consumer.members}

    def remove(self, member_id: str) -> int:
        """Removes a member that leaves or whose session has expired; returns the error code, or 0."""
        if member_id in self.consumer.members:
            self.consumer.remove(member_id)
            return 0
        return self.classic.remove(member_id)

    def commit_error(self, request: Any) -> int:
        """Returns the error code for a commit, or 0."""
        if request.generation_id_or_member_epoch < 0:
            return UNKNOWN_MEMBER if self.members else 0
        members = self.consumer if self.consumer.members else self.classic
        return members.commit_error(request)
