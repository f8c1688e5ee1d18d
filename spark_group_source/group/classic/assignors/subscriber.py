"""One member as an assignor sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_group_source.group.classic.assignors.java_order import text_order
from spark_group_source.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What a member tells the leader.

    ``owned`` and ``generation`` are the fields of the subscription. A member that does not send them owns nothing in
    generation -1. ``rack`` is ``None`` if the member tells no rack.
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
        told = member.metadata
        return cls(
            member.member_id,
            tuple(told.topics or ()),
            bytes(told.user_data or b""),
            tuple(
                TopicPartition(each.topic, number) for each in told.owned_partitions or () for number in each.partitions
            ),
            max(-1, told.generation_id),
            member.group_instance_id,
            told.rack_id or None,
        )

    @property
    def order(self) -> tuple[bool, bytes]:
        """Sorts members: static ones by their instance id, then the others by their member id."""
        return self.instance_id is None, text_order(self.id if self.instance_id is None else self.instance_id)
