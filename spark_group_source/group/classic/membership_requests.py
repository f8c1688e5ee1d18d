"""Sends the requests of a membership: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import REBALANCE_IN_PROGRESS, ProtocolError
from spark_group_source.group.classic.assignment import JoinedMember, decode_assignment
from spark_group_source.group.classic.events import Joined
from spark_group_source.group.coordinator_client import CoordinatorClient, WhileWaiting
from spark_group_source.group.counters import Timings
from spark_group_source.group.description import PROTOCOL_TYPE, GroupDescription, describe
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.membership import Membership
from spark_group_source.group.settings import GroupSettings
from spark_group_source.offsets import Partitions
from spark_group_source.wire import versions
from spark_group_source.wire.cluster import Cluster


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The response to a JoinGroup; ``members`` is empty unless this member is the group's leader.

    ``assigns`` is false for a leader that is a returning static member: the group keeps its assignments.
    """

    joined: Joined
    assignor: str
    leads: bool
    assigns: bool
    members: tuple[JoinedMember, ...] = ()


class MembershipRequests:
    """The requests of one member to its coordinator. All methods are for one thread, usually the member's."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._settings = settings
        self._cluster = cluster
        self._client = CoordinatorClient(cluster, settings.group_id, "membership", timings, settings.coordinator)
        # A pending JoinGroup or SyncGroup blocks later requests on its connection: heartbeats need another connection.
        self._heartbeat_client = CoordinatorClient(
            cluster, settings.group_id, "liveness", timings, settings.coordinator
        )

    def rediscover(self) -> None:
        """Finds the coordinator again before the next request."""
        self._client.rediscover()
        self._heartbeat_client.rediscover()

    def join(
        self, me: Membership, subscriptions: Mapping[str, bytes], deadline: Deadline, while_waiting: WhileWaiting
    ) -> JoinResult | RequestFailed:
        """Joins the group; the response arrives when all members have joined or the rebalance timeout has passed.

        Args:
            subscriptions: encoded subscription by assignor, in order of preference.
            while_waiting: heartbeats while the other members join.

        Raises:
            Interrupted: the query ends; the join is pending at the broker, and the connection is closed.
        """
        settings = self._settings
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            version=versions.JOIN_GROUP,
            group_id=settings.group_id,
            session_timeout_ms=round(settings.session_timeout * 1000),
            rebalance_timeout_ms=round(settings.rebalance_timeout * 1000),
            member_id=me.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                protocol(version=versions.JOIN_GROUP, name=assignor, metadata=subscription)
                for assignor, subscription in subscriptions.items()
            ],
            reason=me.reason[:255],
        )
        response = self._client.call(request, deadline, while_waiting)
        if isinstance(response, RequestFailed):
            return response
        if response.error_code:
            return self._client.failure("JoinGroup", response.error_code, response.member_id)
        leads = response.leader == response.member_id
        return JoinResult(
            Joined(response.member_id, response.generation_id),
            response.protocol_name,
            leads,
            leads and not response.skip_assignment,
            tuple(JoinedMember(m.member_id, bytes(m.metadata), m.group_instance_id) for m in response.members),
        )

    def sync(
        self, join_result: JoinResult, assignments: Mapping[str, bytes], deadline: Deadline, while_waiting: WhileWaiting
    ) -> Partitions | RequestFailed:
        """Returns this member's assignment; the leader sends every member's, encoded, by member id."""
        assignment_of = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            version=versions.SYNC_GROUP,
            group_id=self._settings.group_id,
            generation_id=join_result.joined.generation,
            member_id=join_result.joined.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=join_result.assignor,
            assignments=[
                assignment_of(version=versions.SYNC_GROUP, member_id=member_id, assignment=encoded)
                for member_id, encoded in assignments.items()
            ],
        )
        response = self._client.call(request, deadline, while_waiting)
        if isinstance(response, RequestFailed):
            return response
        if response.error_code:
            return self._client.failure("SyncGroup", response.error_code)
        self._client.knows_generation()
        try:
            return decode_assignment(response.assignment)
        except ProtocolError as error:
            return RequestFailed(ErrorAction.RETRY, str(error))

    def heartbeat(
        self, me: Membership, deadline: Deadline, *, join_or_sync_pending: bool = False
    ) -> RequestFailed | None:
        """Sends a heartbeat, on the second connection if ``join_or_sync_pending``; ``None`` if it succeeded."""
        request = HeartbeatRequest(
            version=versions.HEARTBEAT,
            group_id=self._settings.group_id,
            generation_id=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
        )
        client = self._heartbeat_client if join_or_sync_pending else self._client
        response = client.call(request, deadline)
        if isinstance(response, RequestFailed):
            return response
        if response.error_code in (0, REBALANCE_IN_PROGRESS):
            client.knows_generation()
        return client.failure("Heartbeat", response.error_code) if response.error_code else None

    def find_coordinator(self, deadline: Deadline) -> RequestFailed | None:
        """Looks up where the group's coordinator is now, while a JoinGroup or SyncGroup is pending."""
        return self._heartbeat_client.find_coordinator(deadline)

    @property
    def throttled(self) -> float:
        """Seconds until the coordinator reads the next request, because this client exceeds a quota."""
        broker_id = self._client.broker_id
        return 0.0 if broker_id is None else self._cluster.throttle_remaining(broker_id, "membership")

    @property
    def coordinator_moved(self) -> bool:
        """Whether a heartbeat or lookup found another coordinator than that of the pending JoinGroup or SyncGroup."""
        return self._heartbeat_client.broker_id not in (None, self._client.broker_id)

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """Returns the group's state and members."""
        return describe(self._client, self._settings.group_id, deadline)

    def leave(self, member_id: str, reason: str, deadline: Deadline) -> RequestFailed | None:
        """Sends LeaveGroup, so that other members get the partitions at once; ``None`` if it succeeded."""
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
        response = self._client.call(request, deadline)
        if isinstance(response, RequestFailed):
            return response
        errno = response.error_code or next((member.error_code for member in response.members if member.error_code), 0)
        return self._client.failure("LeaveGroup", errno) if errno else None
