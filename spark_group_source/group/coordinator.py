"""The requests of the group protocol, and what their answers mean.

One :class:`Coordinator` belongs to one thread. Join, sync, heartbeat and leave share one connection, offsets have
another: a JoinGroup that waits at the broker would hold up everything behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import UNKNOWN_MEMBER_ID, describe
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupError,
    ProtocolError,
)
from spark_group_source.group import assignment
from spark_group_source.group.assignment import Member
from spark_group_source.group.commits import Committed
from spark_group_source.group.counters import Timings
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Joined, Membership, Refused, Synced
from spark_group_source.group.verdicts import Verdict, fatal, verdict
from spark_group_source.offsets import TopicPartition, numbers_by_topic
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.interrupt import Interrupt, Interrupted

PROTOCOL_TYPE = "consumer"
MEMBERSHIP = "membership"
OFFSETS = "offsets"
NO_MEMBERS = (
    "What is read with 'assign' can be committed only to a group without members: give this query a"
    " 'kafka.group.id' of its own, or stop the members"
)

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Round:
    """What JoinGroup told about the new generation; ``members`` is empty unless this member is to assign."""

    joined: Joined
    assignor: str
    leads: bool
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """What became of a commit, by partition; ``refused`` is an error of the request as a whole."""

    confirmed: Offsets
    errors: Mapping[TopicPartition, int]
    refused: Refused | None = None


class Coordinator:
    """Speaks to the group's coordinator for one member, over one thread's cluster."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, timings: Timings | None = None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._timings = timings or Timings()
        self._broker_id: int | None = None

    def rediscover(self) -> None:
        """The next request asks first who the coordinator is."""
        self._broker_id = None

    def join(
        self, me: Membership, subscriptions: Mapping[str, bytes], deadline: Deadline, interrupt: Interrupt
    ) -> Round | Refused:
        """Joins the group; waits until all members have, up to the rebalance timeout.

        Args:
            subscriptions: what the leader is told, by assignor, in order of preference.

        Raises:
            Interrupted: the query ends; the join is pending at the broker, and the connection is closed.
        """
        own = self._settings
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            version=9,
            group_id=own.group_id,
            session_timeout_ms=round(own.session_timeout * 1000),
            rebalance_timeout_ms=round(own.rebalance_timeout * 1000),
            member_id=me.member_id,
            group_instance_id=own.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol(version=9, name=name, metadata=told) for name, told in subscriptions.items()],
            reason=me.reason[:255],
        )
        answer = self._call(request, MEMBERSHIP, deadline, interrupt)
        if isinstance(answer, Refused):
            return answer
        if answer.error_code:
            return self._refused("JoinGroup", answer.error_code, answer.member_id)
        leads = answer.leader == answer.member_id
        to_assign = leads and not answer.skip_assignment
        return Round(
            Joined(answer.member_id, answer.generation_id),
            answer.protocol_name,
            leads,
            tuple(Member(m.member_id, bytes(m.metadata), m.group_instance_id) for m in answer.members)
            if to_assign
            else (),
        )

    def sync(
        self, turn: Round, shares: Mapping[str, bytes], deadline: Deadline, interrupt: Interrupt
    ) -> Synced | Refused:
        """Learns this member's share; the leader tells everybody's."""
        share = SyncGroupRequest.SyncGroupRequestAssignment
        request = SyncGroupRequest(
            version=5,
            group_id=self._settings.group_id,
            generation_id=turn.joined.generation,
            member_id=turn.joined.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=turn.assignor,
            assignments=[share(version=5, member_id=who, assignment=what) for who, what in shares.items()],
        )
        answer = self._call(request, MEMBERSHIP, deadline, interrupt)
        if isinstance(answer, Refused):
            return answer
        if answer.error_code:
            return self._refused("SyncGroup", answer.error_code)
        return Synced(assignment.decode_assignment(answer.assignment))

    def heartbeat(self, me: Membership, deadline: Deadline) -> Refused | None:
        """Tells the group that this member lives; ``None`` when all is well."""
        request = HeartbeatRequest(
            version=4,
            group_id=self._settings.group_id,
            generation_id=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
        )
        answer = self._call(request, MEMBERSHIP, deadline)
        if isinstance(answer, Refused):
            return answer
        return self._refused("Heartbeat", answer.error_code) if answer.error_code else None

    def leave(self, member_id: str, reason: str, deadline: Deadline) -> Refused | None:
        """Leaves the group, so that its partitions move at once; ``None`` when the broker has confirmed."""
        identity = LeaveGroupRequest.MemberIdentity
        request = LeaveGroupRequest(
            version=5,
            group_id=self._settings.group_id,
            members=[identity(version=5, member_id=member_id, group_instance_id=None, reason=reason)],
        )
        answer = self._call(request, MEMBERSHIP, deadline)
        if isinstance(answer, Refused):
            return answer
        errno = answer.error_code or next((each.error_code for each in answer.members if each.error_code), 0)
        return self._refused("LeaveGroup", errno) if errno else None

    def clients(self, deadline: Deadline) -> list[str] | Refused:
        """Client id and host of each member of the group.

        Of a group of Kafka 4's own protocol (KIP-848) this request tells none.
        """
        request = DescribeGroupsRequest(
            version=5, groups=[self._settings.group_id], include_authorized_operations=False
        )
        answer = self._call(request, OFFSETS, deadline)
        if isinstance(answer, Refused):
            return answer
        group = answer.groups[0]
        if group.error_code:
            return self._refused("DescribeGroups", group.error_code)
        return sorted(f"{each.client_id} at {each.client_host.lstrip('/')}" for each in group.members)

    def commit(self, me: Membership, offsets: Offsets, metadata: str, deadline: Deadline) -> CommitAnswer:
        """Commits offsets as member ``me``; the broker refuses them if its generation is over.

        Without a member id, they are refused if the group has members.
        """
        by_topic: dict[str, list[Any]] = defaultdict(list)
        topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
        for tp, offset in sorted(offsets.items()):
            by_topic[tp.topic].append(
                topic_of.OffsetCommitRequestPartition(
                    version=8,
                    partition_index=tp.partition,
                    committed_offset=offset,
                    committed_leader_epoch=-1,
                    committed_metadata=metadata,
                )
            )
        request = OffsetCommitRequest(
            version=8,
            group_id=self._settings.group_id,
            generation_id_or_member_epoch=me.generation,
            member_id=me.member_id,
            group_instance_id=self._settings.instance_id,
            topics=[topic_of(version=8, name=name, partitions=parts) for name, parts in by_topic.items()],
        )
        answer = self._call(request, OFFSETS, deadline)
        if isinstance(answer, Refused):
            return CommitAnswer({}, {}, answer)
        codes = {TopicPartition(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}
        found = self._interpret_commit(offsets, codes)
        if found.refused is not None and not me.member_id and UNKNOWN_MEMBER_ID in codes.values():
            why = f"{found.refused.why}: the group has members. {NO_MEMBERS}"
            return replace(found, refused=replace(found.refused, why=why))
        return found

    def _interpret_commit(self, offsets: Offsets, codes: Mapping[TopicPartition, int]) -> CommitAnswer:
        confirmed = {tp: offset for tp, offset in offsets.items() if codes.get(tp) == 0}
        errors = {tp: errno for tp, errno in codes.items() if errno}
        # Errors of the group come with every partition; those of single partitions leave the others committed.
        whole = [errno for errno in errors.values() if verdict(errno) not in (Verdict.SKIP, Verdict.SHORTEN)]
        if not whole:
            return CommitAnswer(confirmed, errors)
        topics = {tp.topic for tp, errno in errors.items() if errno == whole[0]}
        return CommitAnswer(confirmed, errors, self._refused("OffsetCommit", whole[0], topics=topics))

    def committed(
        self, partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Committed] | Refused:
        """What the group has committed; partitions without a commit are left out.

        Asks for stable offsets: a transaction that is about to commit some makes the answer wait.
        """
        group_of = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [
            group_of.OffsetFetchRequestTopics(version=8, name=name, partition_indexes=numbers)
            for name, numbers in numbers_by_topic(partitions).items()
        ]
        request = OffsetFetchRequest(
            version=8,
            groups=[group_of(version=8, group_id=self._settings.group_id, topics=topics)],
            require_stable=True,
        )
        answer = self._call(request, OFFSETS, deadline.at_most(self._settings.offset_fetch_timeout))
        if isinstance(answer, Refused):
            return answer
        group = answer.groups[0]
        found = {}
        for topic in group.topics:
            for part in topic.partitions:
                if part.error_code and verdict(part.error_code) is not Verdict.SKIP:
                    return self._refused("OffsetFetch", part.error_code, topics=[topic.name])
                if part.committed_offset >= 0:
                    tp = TopicPartition(topic.name, part.partition_index)
                    found[tp] = Committed(part.committed_offset, part.metadata or "")
        return self._refused("OffsetFetch", group.error_code) if group.error_code else found

    def _call(self, request: Any, purpose: str, deadline: Deadline, interrupt: Interrupt | None = None) -> Any:
        """The broker's answer, or :class:`Refused` where none came."""
        try:
            if self._broker_id is None:
                self._broker_id = self._cluster.coordinator(self._settings.group_id, deadline).id
            connection = self._cluster.connection(self._broker_id, deadline, purpose)
            began = deadline.clock()
            connection.send(request, deadline)
            try:
                answer = connection.receive(deadline, interrupt)
            except Interrupted:
                # The answer is still to come: it must not be taken for that of the next request.
                connection.close()
                raise
            self._timings.answered(request.name, deadline.clock() - began)
            return answer
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            self.rediscover()
            return Refused(Verdict.REDISCOVER, str(error))
        except (GroupError, AuthenticationFailed) as error:
            return Refused(Verdict.FATAL, str(error), error=error)

    def _refused(self, request: str, errno: int, member_id: str = "", topics: Collection[str] = ()) -> Refused:
        ruling = verdict(errno)
        if ruling is Verdict.REDISCOVER:
            self.rediscover()
        error = fatal(request, self._settings.group_id, errno, topics) if ruling is Verdict.FATAL else None
        return Refused(ruling, f"{request} was answered with {describe(errno)}", member_id, error)
