"""The requests of the classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Heartbeats normally go over the connection of the other membership requests. While a JoinGroup or SyncGroup is pending
on that connection, they are sent on a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from spark_group_source.clock import Deadline
from spark_group_source.errors import REBALANCE_IN_PROGRESS, OptionError, ProtocolError
from spark_group_source.group.classic.assignment import Assignment, JoinedMember, read_assignment
from spark_group_source.group.classic.states import Joined
from spark_group_source.group.coordinator import MEMBERSHIP, CoordinatorClient, WhileWaiting
from spark_group_source.group.description import PROTOCOL_TYPE, GroupDescription, describe
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.timings import Timings
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
        self.client = CoordinatorClient(cluster, settings.group_id, MEMBERSHIP, timings, settings.coordinator)
        # A pending JoinGroup or SyncGroup blocks later requests on its connection: heartbeats need another connection.
        self._liveness_client = CoordinatorClient(cluster, settings.group_id, "liveness", timings, settings.coordinator)

    def rediscover(self) -> None:
        """Finds the coordinator again before the next request."""
        self.client.rediscover()
        self._liveness_client.rediscover()

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
        if self._settings.instance_id is not None:
            failure = self._without_static_members(deadline)
            if failure is not None:
                return failure
        response = self.client.call(self._join_request(me, subscriptions), deadline, while_waiting)
        if isinstance(response, RequestFailed):
            return response
        if response.error_code:
            return self.client.failure("JoinGroup", response.error_code, response.member_id)
        leads = response.leader == response.member_id
        return JoinResult(
            Joined(response.member_id, response.generation_id, me.generation),
            response.protocol_name,
            leads,
            leads and not response.skip_assignment,
            tuple(JoinedMember(m.member_id, bytes(m.metadata), m.group_instance_id) for m in response.members),
        )

    def _join_request(self, me: Membership, subscriptions: Mapping[str, bytes]) -> JoinGroupRequest:
        settings = self._settings
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        return JoinGroupRequest(
            group_id=settings.group_id,
            session_timeout_ms=round(settings.session_timeout * 1000),
            rebalance_timeout_ms=round(settings.rebalance_timeout * 1000),
            member_id=me.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                protocol(name=assignor, metadata=subscription) for assignor, subscription in subscriptions.items()
            ],
            reason=me.reason[:255],
        )

    def _without_static_members(self, deadline: Deadline) -> RequestFailed | None:
        """Connects to the coordinator, and returns the failure if there is one. It is also a failure if the coordinator
        would ignore the instance id."""
        failure = self.client.connect(deadline)
        if failure is not None:
            return failure
        for version in versions.STATIC_MEMBERS:
            if self.client.supports(ApiKey.JoinGroup, version):
                return None
        error = OptionError(
            f"'kafka.group.instance.id' needs static members, which the group's coordinator, broker"
            f" {self.client.broker_id}, does not have: its JoinGroup is below version {versions.STATIC_MEMBERS.start}.",
            "Remove the option, or use Kafka 2.3 or later.",
        )
        return RequestFailed.final(error)

    def sync(
        self, join_result: JoinResult, assignments: Mapping[str, bytes], deadline: Deadline, while_waiting: WhileWaiting
    ) -> Assignment | RequestFailed:
        """Returns this member's assignment. The leader sends all ``assignments``, encoded, by member id."""
        assignment_of = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            group_id=self._settings.group_id,
            generation_id=join_result.joined.generation,
            member_id=join_result.joined.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=join_result.assignor,
            assignments=[
                assignment_of(member_id=member_id, assignment=encoded) for member_id, encoded in assignments.items()
            ],
        )
        response = self.client.call(request, deadline, while_waiting)
        if isinstance(response, RequestFailed):
            return response
        if response.error_code:
            return self.client.failure("SyncGroup", response.error_code)
        self.client.confirm_generation()
        try:
            return read_assignment(response.assignment)
        except ProtocolError as error:
            return RequestFailed(ErrorAction.RETRY, str(error))

    def heartbeat(
        self, me: Membership, deadline: Deadline, *, join_or_sync_pending: bool = False
    ) -> RequestFailed | None:
        """Sends a heartbeat, on the second connection if ``join_or_sync_pending``; ``None`` if it succeeded."""
        request = HeartbeatRequest(
            group_id=self._settings.group_id,
            generation_id=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
        )
        client = self.client
        if join_or_sync_pending:
            client = self._liveness_client
        response = client.call(request, deadline)
        if isinstance(response, RequestFailed):
            return response
        if response.error_code in (0, REBALANCE_IN_PROGRESS):
            client.confirm_generation()
        if not response.error_code:
            return None
        return client.failure("Heartbeat", response.error_code)

    def find_coordinator(self, deadline: Deadline) -> RequestFailed | None:
        """Looks up the group's coordinator again, while a JoinGroup or SyncGroup is pending."""
        return self._liveness_client.find_coordinator(deadline)

    @property
    def coordinator_moved(self) -> bool:
        """Whether a heartbeat or lookup found another coordinator than that of the pending JoinGroup or SyncGroup."""
        return self._liveness_client.broker_id not in (None, self.client.broker_id)

    def describe(self, deadline: Deadline) -> GroupDescription | RequestFailed:
        """Returns the group's state and members."""
        return describe(self.client, self._settings.group_id, deadline)

    def leave(self, member_id: str, reason: str, deadline: Deadline) -> RequestFailed | None:
        """Sends LeaveGroup, so that other members get the partitions at once; ``None`` if it succeeded."""
        identity = LeaveGroupRequest.MemberIdentity
        request = LeaveGroupRequest(
            group_id=self._settings.group_id,
            member_id=member_id,
            members=[identity(member_id=member_id, group_instance_id=self._settings.instance_id, reason=reason)],
        )
        response = self.client.call(request, deadline)
        if isinstance(response, RequestFailed):
            return response
        error_code = response.error_code
        for member in response.members:
            if not error_code:
                error_code = member.error_code
        if not error_code:
            return None
        return self.client.failure("LeaveGroup", error_code)
