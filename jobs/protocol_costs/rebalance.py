"""What a rebalance costs a group, and what an idle group costs its coordinator. The members are without Spark."""

from __future__ import annotations

import math
import threading
import time

from protocol_costs.waiting import POLL_S, Options, check_time
from spark_group_source.clock import Deadline
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Membership
from spark_group_source.group.timings import Timings
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic

SETTLED_S = 6.5
"""A rebalance is over if nothing has changed for this time, in which each member has sent a heartbeat."""


class Requests(Timings):
    """Counts the requests of all members."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def record(self, request: str, seconds: float) -> None:
        """See :meth:`Timings.record`."""
        with self._lock:
            self.count += 1


class Ownership:
    """The listener of all members, and their offsets. ``stood_still`` has the seconds without an owner by partition."""

    def __init__(self) -> None:
        self.stood_still: dict[TopicPartition, float] = {}
        self.changed_at = time.monotonic()
        self._revoked_at: dict[TopicPartition, float] = {}
        self._lock = threading.Lock()

    def partitions_assigned(self, partitions: Partitions, me: Membership, deadline: Deadline) -> None:
        """A member owns these from now on."""
        with self._lock:
            self.changed_at = time.monotonic()
            for tp in partitions & self._revoked_at.keys():
                seconds = self.changed_at - self._revoked_at.pop(tp)
                self.stood_still[tp] = self.stood_still.get(tp, 0.0) + seconds

    def partitions_revoked(self, partitions: Partitions) -> None:
        """A member has given these up."""
        with self._lock:
            self.changed_at = time.monotonic()
            self._revoked_at.update(dict.fromkeys(partitions, self.changed_at))

    def partitions_lost(self, partitions: Partitions, reason: str) -> None:
        """Members lose nothing in this measurement."""
        raise AssertionError(reason)

    def awaited(self) -> Partitions:
        """No revocation waits."""
        return frozenset()

    def reserve(self, partitions: Partitions) -> None:
        """Nothing is planned."""

    def retry_due(self, me: Membership) -> float:
        """Nothing is to be retried."""
        return math.inf

    def retry_pending(self, me: Membership, deadline: Deadline) -> None:
        """Nothing to record."""


class Group:
    """The members of one group."""

    def __init__(self, options: Options, partitions: int) -> None:
        self._options = options
        self._partitions = partitions
        self._ownership = Ownership()
        self._requests = Requests()
        self._began = time.monotonic()
        self._members: list[Member] = []

    def join(self) -> None:
        """Adds a member; it begins to join."""
        parsed = parse_options(self._options)
        cluster = Cluster(parsed.with_client_id(f"member-{len(self._members)}").wire)
        self._members.append(Member(cluster, parsed.group, self._ownership, timings=self._requests))
        name = self._options["subscribe"]
        self._members[-1].start({name: Topic(name, "", {})}, self._ownership)

    def leave(self) -> None:
        """Removes the member that joined last."""
        member = self._members.pop()
        # A member that leaves notifies of no revocation.
        self._ownership.partitions_revoked(frozenset(member.snapshot().owned))
        member.close()

    def restart_counts(self) -> None:
        """The next report covers what happens from now on."""
        self._ownership.stood_still.clear()
        self._requests.count = 0
        self._began = time.monotonic()

    def settle(self) -> None:
        """Waits until the members own all partitions, and nothing changes any more."""
        while not self._is_settled():
            check_time(self._began, "all partitions to have an owner")
            time.sleep(POLL_S)

    def _is_settled(self) -> bool:
        owned = sum(len(member.snapshot().owned) for member in self._members)
        changed_at = max(self._began, self._ownership.changed_at)
        return owned == self._partitions and time.monotonic() - changed_at >= SETTLED_S

    def stood_still(self) -> list[float]:
        """How many seconds each partition that changed its owner had none, since :meth:`restart_counts`."""
        return list(self._ownership.stood_still.values())

    def seconds_to_last_change(self) -> float:
        """How long it took until nothing changed any more, since :meth:`restart_counts`."""
        return self._ownership.changed_at - self._began

    def requests_per_minute(self) -> float:
        """Requests of one member in a minute, since :meth:`restart_counts`."""
        return self._requests.count / len(self._members) / (time.monotonic() - self._began) * 60
