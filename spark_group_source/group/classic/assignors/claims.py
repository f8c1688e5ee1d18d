"""Which member had which partition before this rebalance, as the members tell it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from spark_group_source.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Claim:
    """What one member says that it had, and the generation in which it had that.

    ``joined`` is the generation in the subscription itself. It may differ: ``sticky`` tells the one of its assignment.
    """

    member: str
    partitions: Sequence[TopicPartition]
    generation: int
    joined: int


@dataclass(slots=True)
class Claims:
    """What each member had. Of the members that claim one partition, the latest generation has it.

    Args:
        claims: one for each member, in the order in which Java iterates over members.
        existing: the partitions that there are. Others are nobody's, for example those of a former topic of that name.
    """

    claims: Sequence[Claim]
    existing: Collection[TopicPartition]
    owned: dict[str, set[TopicPartition]] = field(init=False)
    contested: set[TopicPartition] = field(init=False, default_factory=set)
    """Partitions that two members claim in one generation. Neither has them."""

    def __post_init__(self) -> None:
        self.owned = {each.member: set() for each in self.claims}
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
        """Who had a partition in an earlier generation than the latest of all: it is the next best owner."""
        latest = max(-1, *(each.generation for each in self.claims))
        found: dict[TopicPartition, Claim] = {}
        for claim in self.claims:
            if claim.generation < latest:
                for tp in claim.partitions:
                    if tp not in found or claim.generation > found[tp].generation:
                        found[tp] = claim
        return {tp: claim.member for tp, claim in found.items()}
