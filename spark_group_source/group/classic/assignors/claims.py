"""The partitions that members claim to have owned before this rebalance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from spark_group_source.offsets import TopicPartition


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
