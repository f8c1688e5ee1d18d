"""The requests of membership, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from spark_group_source.clock import Deadline
from spark_group_source.group.classic import assignment
from spark_group_source.group.classic.assignment import Member
from spark_group_source.group.coordinator_client import CoordinatorClient, Watch
from spark_group_source.group.counters import Timings
from spark_group_source.group.description import PROTOCOL_TYPE, GroupDescription, describe
from spark_group_source.group.events import Joined, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Membership
from spark_group_source.offsets import Partitions
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster


@dataclass(frozen=True, slots=True)
class JoinResult:
    """What JoinGroup told about the new generation; ``members`` is empty unless this member leads.

    A static leader that is back in its place leads and does not assign.
    """

    joined: Joined
    assignor: str
    leads: bool
    assigns: bool
    members: tuple[Member, ...] = ()


class MembershipRequests:
    """Speaks to the group's coordinator for one member, on its one thread."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._settings = settings
        self._cluster = cluster
        self._channel = CoordinatorClient(cluster, settings.group_id, "membership", timings)
        # A JoinGroup that waits at the broker holds up everything behind it on its connection.
        self._liveness = CoordinatorClient(cluster, settings.group_id, "liveness", timings)

    def rediscover(self) -> None:
        """The next request asks first who the coordinator is."""
        self._channel.rediscover()
        self._liveness.rediscover()

    def join(
        self, me: Membership, subscriptions: Mapping[str, bytes], deadline: Deadline, watch: Watch
    ) -> JoinResult | RequestFailed:
        """Joins the group; waits until all members have, up to the rebalance timeout.

        Args:
            subscriptions: what the leader is told, by assignor, in order of preference.
            watch: what to do while the others are waited for.

        Raises:
            Interrupted: the query ends; the join is pending at the broker, and the connection is closed.
        """
        own = self._settings
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            version=versions.JOIN_GROUP,
            group_id=own.group_id,
            session_timeout_ms=round(own.session_timeout * 1000),
            rebalance_timeout_ms=round(own.rebalance_timeout * 1000),
            member_id=me.member_id,
            group_instance_id=own.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                protocol(version=versions.JOIN_GROUP, name=name, metadata=told) for name, told in subscriptions.items()
            ],
            reason=me.reason[:255],
        )
        answer = self._channel.call(request, deadline, watch)
        if isinstance(answer, RequestFailed):
            return answer
        if answer.error_code:
            return self._channel.refused("JoinGroup", answer.error_code, answer.member_id)
        leads = answer.leader == answer.member_id
        return JoinResult(
            Joined(answer.member_id, answer.generation_id),
            answer.protocol_name,
            leads,
            leads and not answer.skip_assignment,
            tuple(Member(m.member_id, bytes(m.metadata), m.group_instance_id) for m in answer.members),
        )

    def sync(
        self, turn: JoinResult, shares: Mapping[str, bytes], deadline: Deadline, watch: Watch
    ) -> Partitions | RequestFailed:
        """This member's share; the leader tells everybody's."""
        share = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            version=versions.SYNC_GROUP,
            group_id=self._settings.group_id,
            generation_id=turn.joined.generation,
            member_id=turn.joined.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=turn.assignor,
            assignments=[
                share(version=versions.SYNC_GROUP, member_id=who, assignment=what) for who, what in shares.items()
            ],
        )
        answer = self._channel.call(request, deadline, watch)
        if isinstance(answer, RequestFailed):
            return answer
        if answer.error_code:
            return self._channel.refused("SyncGroup", answer.error_code)
        return assignment.decode_assignment(answer.assignment)

    def heartbeat(self, me: Membership, deadline: Deadline, *, waiting: bool = False) -> RequestFailed | None:
        """Tells the group that this member lives; ``None`` when all is well.

        Args:
            waiting: another request of this member is waiting at the coordinator.
        """
        request = HeartbeatRequest(
            version=versions.HEARTBEAT,
            group_id=self._settings.group_id,
            generation_id=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
        )
        channel = self._liveness if waiting else self._channel
        answer = channel.call(request, deadline)
        if isinstance(answer, RequestFailed):
            return answer
        return channel.refused("Heartbeat", answer.error_code) if answer.error_code else None

    @property
    def throttled(self) -> float:
        """Seconds for which the coordinator reads no request, because this client exceeds a quota."""
        broker_id = self._channel.broker_id
        return 0.0 if broker_id is None else self._cluster.throttle_remaining(broker_id, "membership")

    @property
    def moved(self) -> bool:
        """Whether a heartbeat found another coordinator than the one at which a request is waiting."""
        return self._liveness.broker_id not in (None, self._channel.broker_id)

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """State and members of the group."""
        return describe(self._channel, self._settings.group_id, deadline)

    def leave(self, member_id: str, reason: str, deadline: Deadline) -> RequestFailed | None:
        """Leaves the group, so that its partitions move at once; ``None`` when the broker has confirmed."""
        identity = LeaveGroupRequest.MemberIdentity
        request = LeaveGroupRequest(
            version=versions.LEAVE_GROUP,
            group_id=self._settings.group_id,
            members=[
                identity(
                    version=versions.LEAVE_GROUP,
                    member_id=member_id,
                    group_instance_id=self._settings.instance_id,
                    reason=reason,
                )
            ],
        )
        answer = self._channel.call(request, deadline)
        if isinstance(answer, RequestFailed):
            return answer
        errno = answer.error_code or next((each.error_code for each in answer.members if each.error_code), 0)
        return self._channel.refused("LeaveGroup", errno) if errno else None
