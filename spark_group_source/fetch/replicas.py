"""Which broker each partition is read from: its leader, or the replica that the leader finds nearest (KIP-392)."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock
from spark_group_source.offsets import TopicPartition

log = logging.getLogger(__name__)


class Replicas:
    """The followers that one reading reads from. Without a rack these are none.

    Args:
        rack: where this reader is.
        max_age: seconds until the leader is asked again.
    """

    def __init__(self, rack: str | None, max_age: float, clock: Clock) -> None:
        self._rack = rack
        self._max_age = max_age
        self._clock = clock
        self._followed: dict[TopicPartition, tuple[int, float]] = {}
        self._avoided: set[TopicPartition] = set()

    def broker(self, tp: TopicPartition, leader: int) -> int:
        """The one to fetch from now."""
        follower, until = self._followed.get(tp, (leader, float("inf")))
        if self._clock() < until:
            return follower
        del self._followed[tp]
        return leader

    def rack(self, partitions: set[TopicPartition]) -> str | None:
        """What a fetch of these says of where it comes from; without it the leader sends the records itself."""
        return None if partitions & self._avoided else self._rack

    def follow(self, tp: TopicPartition, follower: int) -> None:
        """The leader says who is nearer."""
        log.info("fetch: %s is read from broker %d, which is nearest to rack %s", tp, follower, self._rack)
        self._followed[tp] = follower, self._clock() + self._max_age

    def leave(self, tp: TopicPartition, why: str) -> bool:
        """Something went wrong: whether that was at a follower. It is not read from again by this reading.

        The leader would name the same one as long as it is in sync, even where this reader cannot reach it.
        """
        follower, _ = self._followed.pop(tp, (None, 0.0))
        if follower is None:
            return False
        log.warning("fetch: %s is read from its leader again, as from broker %d: %s", tp, follower, why)
        self._avoided.add(tp)
        return True
