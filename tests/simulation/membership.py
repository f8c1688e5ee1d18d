"""Who is a member of the group, as its coordinator has it, and which members are dead."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from spark_group_source.group.classic.protocol import JOIN_SLACK
from tests.fake import FakeKafka
from tests.fake.classic_group import COMPLETING, PREPARING
from tests.fake.group import FakeGroup
from tests.simulation.scheduler import Scheduler
from tests.simulation.troubles import BOUND

if TYPE_CHECKING:
    from tests.simulation.spark import Query


class Membership:
    """The members of the group of one run. ``queries`` are those that ever started.

    Attributes:
        clients: the client id of each member that was ever in the group.
        joined: the processes that have been in the group.
        heard: when each process last sent the group a sign of life that was answered.
        joins: when each process last sent a join.
        unanswered: when a join of each process was dropped, which waits as long as a rebalance may take.
        coordinated_since: when a coordinator took the group over: each session begins again.
    """

    def __init__(self, run: Scheduler, kafka: FakeKafka, group: str, queries: dict[str, Query]) -> None:
        self.run, self.kafka, self.name, self.queries = run, kafka, group, queries
        self.clients: dict[str, str] = {}
        self.joined: set[str] = set()
        self.heard: dict[str, float] = {}
        self.joins: dict[str, float] = {}
        self.unanswered: dict[str, float] = {}
        self.coordinated_since = -math.inf

    @property
    def group(self) -> FakeGroup:
        """The group as its coordinator has it."""
        return self.kafka.group(self.name)

    def members(self) -> dict[str, str]:
        """The client id of each member."""
        self.group.advance(self.run.now)
        found = {each.id: each.client_id for each in self.group.members.values()}
        self.clients |= found
        return found

    def query(self, member: str) -> Query | None:
        """The query whose member this is or was: of its present or last run, or of any if it is a static one."""
        client = self.clients.get(member, "")
        return next((query for query in self.queries.values() if query.client in client), None)

    def is_member(self, query: Query) -> bool:
        """Whether the present run of a query has a member."""
        return any(query.client in client for client in self.members().values())

    def owners(self, only: str | None = None) -> dict[tuple[str, int], str]:
        """Who owns each partition, or each of one member, as the coordinator has assigned them."""
        names = self.kafka.names()
        found: dict[tuple[str, int], str] = {}
        for member in self.group.consumer.members.values():
            if only is None or only == member.id:
                for topic_id, number in member.assigned | member.revoking:
                    if topic_id in names:
                        found[names[topic_id], number] = member.id
        for classic in self.group.classic.members.values():
            if only is None or only == classic.id:
                found |= dict.fromkeys(decoded(classic.assignment), classic.id)
        return found

    def owned(self, query: Query) -> set[tuple[str, int]]:
        """The partitions that a query's member owns and knows of."""
        classic = not query.options.keys() & {"assign", "kafka.group.protocol"}
        if classic and query.life is not None and query.life.process.name not in self.joined:
            return set()
        clients = self.members()
        found: set[tuple[str, int]] = set()
        for (topic, number), member in self.owners().items():
            if topic in self.kafka.ids and query.client in clients.get(member, ""):
                found.add((topic, number))
        return found

    def rebalancing(self) -> bool:
        """Whether partitions are being handed over."""
        if self.group.classic.state in (PREPARING, COMPLETING):
            return True
        return any(each.revoking for each in self.group.consumer.members.values())

    def waits_for_dead(self) -> bool:
        """Whether something in the group waits for a process that was killed, or for a join that was dropped: until
        sessions have ended and rebalances have timed out."""
        if any(not self.is_alive(client) for client in self.members().values()):
            return True
        for query in self.queries.values():
            killed_at = query.killed_at
            if killed_at > 0:
                killed_at = max(killed_at, self.coordinated_since)
            longest = self.kafka.session_timeout
            if self.rebalancing():
                longest += query.rebalance_timeout
            if self.run.now - killed_at < longest or self.waits_for_join(query):
                return True
        return False

    def waits_for_join(self, query: Query) -> bool:
        """Whether the query waits for the answer to a join that a broker has dropped."""
        if query.life is None:
            return False
        dropped_at = self.unanswered.get(query.life.process.name, -math.inf)
        return self.run.now - dropped_at < query.rebalance_timeout + JOIN_SLACK + BOUND

    def is_alive(self, client: str) -> bool:
        """Whether a client is that of a living process."""
        return any(query.alive and query.client in client for query in self.queries.values())

    def session_end(self, query: Query) -> float:
        """Until when a query may read: one session after its last sign of life that was answered."""
        if query.life is None or "assign" in query.options:
            return math.inf
        return self.heard.get(query.life.process.name, math.inf) + self.kafka.session_timeout


@cache
def decoded(assignment: bytes) -> tuple[tuple[str, int], ...]:
    """The partitions of a classic member's assignment."""
    if not assignment:
        return ()
    found = ConsumerProtocolAssignment.decode(assignment)
    return tuple((topic.topic, number) for topic in found.assigned_partitions for number in topic.partitions)
