"""One member as an assignor sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark_group_source.group.classic.assignors.java_order import text_order
from spark_group_source.offsets import TopicPartition


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
