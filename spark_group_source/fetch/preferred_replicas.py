"""The followers that a task reads from (KIP-392)."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock
from spark_group_source.offsets import TopicPartition

log = logging.getLogger(__name__)


class PreferredReplicas:
    """The followers that a task reads from. Without a rack there are none.

    Args:
        rack: the rack of this executor.
        max_age: how long the task reads from a follower before it asks the leader again, in seconds.
    """

    def __init__(self, rack: str | None, max_age: float, clock: Clock) -> None:
        self._rack = rack
        self._max_age = max_age
        self._clock = clock
        self._followers: dict[TopicPartition, tuple[int, float]] = {}
        self._leader_only: set[TopicPartition] = set()

    def broker(self, tp: TopicPartition, leader: int) -> int:
        """The broker to fetch from now."""
        follower, expires_at = self._followers.get(tp, (leader, float("inf")))
        if self._clock() < expires_at:
            return follower
        del self._followers[tp]
        return leader

    def rack(self, partitions: set[TopicPartition]) -> str | None:
        """The rack to send in a fetch of these partitions. ``None`` makes the leader send the records itself."""
        if partitions & self._leader_only:
            return None
        return self._rack

    def follow(self, tp: TopicPartition, follower: int, asked: int) -> None:
        """Follows the preferred read replica that the broker ``asked`` named. Only a leader may name a replica, and the
        leader may not name itself."""
        if follower == asked or tp in self._followers:
            if tp not in self._leader_only:
                named = f"broker {asked} sent no records, but named broker {follower} as preferred replica"
                log.warning("fetch: reading %s from its leader: %s", tp, named)
            self._followers.pop(tp, None)
            self._leader_only.add(tp)
            return
        log.info("fetch: reading %s from broker %d, the preferred replica for rack %s", tp, follower, self._rack)
        self._followers[tp] = follower, self._clock() + self._max_age

    def return_to_leader(self, tp: TopicPartition, reason: str) -> bool:
        """Reads the partition from its leader until the task ends. Returns whether the task read it from a follower
        before.

        While that follower is in sync, the leader would name it again, even if this executor cannot reach it.
        """
        follower, _ = self._followers.pop(tp, (None, 0.0))
        if follower is None:
            return False
        log.warning("fetch: reading %s from its leader again, because broker %d failed: %s", tp, follower, reason)
        self._leader_only.add(tp)
        return True
