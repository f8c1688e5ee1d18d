"""Random requests to the fake and to another cluster, in lockstep: both must answer alike.

Members, instances, topics and one operator send requests of both group protocols, most of them sensible, some with a
wrong generation, id or instance. After each request both clusters describe the group, and the parked requests that one
answers must be answered by the other.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any
from uuid import UUID, uuid4

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.protocol import admin, consumer, metadata

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.consumer.messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.fake.consumer_group import ASSIGNORS, UNIFORM, Partitions, Subscriptions, uniform
from tests.fake.server import message

FAKE, OTHER = "fake", "other"
STEPS = 80
ANSWER_S = 10.0
"""Until the other cluster has answered what the fake has answered, and describes the group in the same way."""
PARKED_S = 0.02
"""After this, a request without an answer from the fake is parked."""

TOPICS = {"a": 3, "b": 2}
"""Topics and their partitions."""
RECORDS = 3
"""Records in partition 0 of each topic, a second apart."""
SESSION_S, REBALANCE_S = 30.0, 60.0
FIRST_TIME = 1_700_000_000_000

NOT_COMPARED = {
    *("throttle_time_ms", "heartbeat_interval_ms"),  # settings
    *("host", "port", "client_host", "brokers"),  # addresses
    *("node_id", "leader_id", "controller_id", "replica_nodes", "isr_nodes"),  # numbers of brokers
    *("error_message", "cluster_id", "records", "tags"),  # texts, bytes of the producer, and kafka-python's own
    *("authorized_operations", "topic_authorized_operations", "cluster_authorized_operations"),  # no authorizer
    *("member_metadata", "timestamp"),  # the source does not read these, and the fake leaves them out
    "subscribed_topic_regex",  # null or empty
}
"""Fields of answers in which the clusters may differ, and why."""

NEW_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""What a coordinator appends to the id of a member. The member may not know it yet."""


class Difference(AssertionError):
    """The clusters do not answer alike."""

    def __init__(self, what: str, fake: Any, other: Any, history: Sequence[str] = ()) -> None:
        super().__init__("\n".join([what, f"  fake:  {fake}", f"  other: {other}", *history]))
        self.found = what, fake, other


class Side:
    """One of the clusters: its names of what both have."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        host, _, port = address.partition(",")[0].rpartition(":")
        self._address = host, int(port)
        self.symbols: dict[str, str] = {}
        """By member id and topic id: the name in the test."""
        self.ids: dict[str, str] = {}
        """The other way round."""

    def connect(self, client_id: str) -> Connection:
        options = WireOptions((self._address,), client_id, request_timeout=ANSWER_S)
        return Connection.open(*self._address, options, Deadline.after(ANSWER_S))

    def learn(self, symbol: str, identity: str) -> None:
        self.symbols[identity], self.ids[symbol] = symbol, identity

    def topic_id(self, topic: str) -> UUID:
        return UUID(self.ids.get(topic, str(UUID(int=1))))

    def normal(self, value: Any) -> Any:
        """A comparable form of a part of an answer, without what is not compared."""
        if isinstance(value, dict):
            return {key: self.normal(each) for key, each in value.items() if key not in NOT_COMPARED}
        if isinstance(value, list):
            return sorted((self.normal(each) for each in value), key=repr)
        if isinstance(value, (str, UUID)):
            return self.symbols.get(str(value)) or NEW_ID.sub("-?", str(value))
        return value


@dataclass
class Client:
    """A process that may be a member: what it last learned, and the connections on which it waits for an answer."""

    name: str
    instance: str | None
    session: float
    rebalance: float
    lives: int = 0
    id: str = ""
    generation: int = -1
    leads: tuple[str, ...] = ()
    """The ids, in the other cluster, of the members of the generation that it leads."""
    protocols: tuple[str, ...] = ("range",)
    version: int = 0
    """Of its subscription."""
    needs: str = "join"
    parked: dict[str, Connection] = field(default_factory=dict)
    owned: dict[str, list[tuple[UUID, int]]] = field(default_factory=dict)
    topics: tuple[str, ...] = ("a",)
    assignor: str | None = None


class Lockstep:
    """One run: a group without a past, some clients, and requests, random ones unless the run is ``orderly``."""

    def __init__(self, both: Clusters, seed: int, *, orderly: bool = False) -> None:
        self.fake, self._sides, self._topics = both.fake, both.sides, both.topics
        self.random = random.Random(seed)
        self._orderly = orderly
        self.group = f"lockstep-{seed}-{uuid4()}"
        self._description = admin.DescribeGroupsRequest(version=5, groups=[self.group])
        self._member_description = ConsumerGroupDescribeRequest(version=1, group_ids=[self.group])
        self.requests = 0
        self.history: list[str] = []
        self._connections = {name: side.connect("operator") for name, side in self._sides.items()}
        self._clients: list[Client] = []
        self._names = 0
        self._assignor = self.random.choice(["uniform", "range"])
        """Members want the same, if any: of two that equally many want, a coordinator may take either."""
        self._leader = ""
        self._chosen: dict[int, tuple[str, str]] = {}

    def close(self) -> None:
        for connections in (self._connections, *(each.parked for each in self._clients)):
            for connection in connections.values():
                connection.close()

    # Sending and comparing

    def send(self, what: str, build: Callable[[Side], Any]) -> dict[str, Any]:
        """Sends a request that no cluster parks, and returns the answers, which are alike."""
        self.history.append(what)
        answers = {}
        for name, side in reversed(self._sides.items()):  # the fake last
            self.requests += 1
            try:
                answers[name] = self._connections[name].call(build(side), Deadline.after(ANSWER_S))
            except GroupSourceError as error:
                raise Difference(f"{what}: the {name} cluster", "an answer", error) from error
        self._compare(what, answers)
        return answers

    def _compare(self, what: str, answers: dict[str, Any]) -> None:
        found = {name: self._sides[name].normal(answer.to_dict()) for name, answer in answers.items()}
        if found[FAKE] != found[OTHER]:
            raise Difference(what, found[FAKE], found[OTHER])

    def park(self, client: Client, what: str, build: Callable[[Side], Any]) -> None:
        """Sends a JoinGroup or a SyncGroup on connections of its own. A request that still waits is given up."""
        self.history.append(what)
        if client.parked and not client.id:
            self._learn_instances()
        for connection in client.parked.values():
            connection.close()
        client.parked = {name: side.connect(client.name) for name, side in self._sides.items()}
        for name, connection in client.parked.items():
            self.requests += 1
            connection.send(build(self._sides[name]), Deadline.after(ANSWER_S))
        client.needs = what.partition(" ")[0]
        client.parked[FAKE].wait_for_response(Deadline.after(PARKED_S))

    def settle(self, within: float = ANSWER_S) -> None:
        """Takes the answers of parked requests, until both clusters have answered the same ones and say the same."""
        self._take_answers()
        deadline = Deadline.after(within)
        while True:
            try:
                self._describe()
                break
            except Difference:
                if deadline.expired():
                    raise
                time.sleep(0.02)
        late = [each for each in self._parked() if each.parked[OTHER].wait_for_response(Deadline.after(0.0))]
        for client in late:
            if not client.parked[FAKE].wait_for_response(Deadline.after(1.0)):
                answer = client.parked[OTHER].receive(Deadline.after(ANSWER_S))
                raise Difference(f"{client.needs} of {client.name} waits", "no answer", answer.to_dict())
        if late:
            self._take_answers()

    def _parked(self) -> list[Client]:
        return [each for each in self._clients if each.parked]

    def _describe(self) -> None:
        for request in (self._description, self._member_description):
            answers = {name: each.call(request, Deadline.after(ANSWER_S)) for name, each in self._connections.items()}
            self._compare(f"state after {self.history[-1] if self.history else 'nothing'}", answers)

    def _take_answers(self) -> None:
        """Takes and compares the answers of all parked requests that the fake has answered."""
        if not any(each.parked[FAKE].wait_for_response(Deadline.after(0.0)) for each in self._parked()):
            return
        ready = [each for each in self._parked() if each.parked[FAKE].wait_for_response(Deadline.after(0.01))]
        for client, answers in [(each, self._receive(each)) for each in ready]:
            (self._joined if client.needs == "join" else self._synced)(client, answers)

    def _receive(self, client: Client) -> dict[str, Any]:
        """Returns both answers of a parked request, and learns the client's id."""
        answers = {}
        for name, connection in client.parked.items():
            if not connection.wait_for_response(Deadline.after(ANSWER_S)):
                raise Difference(f"{client.needs} of {client.name}: the {name} cluster", "an answer", "none")
            answers[name] = connection.receive(Deadline.after(ANSWER_S))
            connection.close()
        client.parked = {}
        if client.needs == "join" and not client.id and {each.error_code for each in answers.values()} <= {0, 79}:
            client.lives, client.generation = client.lives + 1, -1
            client.id = f"{client.name}.{client.lives}"
            for name, side in self._sides.items():
                side.learn(client.id, answers[name].member_id)
        return answers

    def _learn_instances(self) -> None:
        """Learns the ids of static members, which nobody is told if their first request is given up."""
        self._names += 1
        for name, side in self._sides.items():
            for each in self._connections[name].call(self._description, Deadline.after(ANSWER_S)).groups[0].members:
                if each.member_id not in side.symbols and each.group_instance_id:
                    side.learn(f"{each.group_instance_id}.{self._names}", each.member_id)

    def _synced(self, client: Client, answers: dict[str, Any]) -> None:
        self._compare(f"sync of {client.name}", answers)
        client.needs = "" if answers[OTHER].error_code == 0 else "join"

    def _joined(self, client: Client, answers: dict[str, Any]) -> None:
        other = answers[OTHER]
        if {each.error_code for each in answers.values()} == {0}:
            client.needs, client.generation = "sync", other.generation_id
            client.leads = tuple(each.member_id for each in other.members)
            self._adopt_choices(answers)
        self._compare(f"join of {client.name}", answers)
        if other.error_code in (25, 82):
            client.id = ""

    def _adopt_choices(self, answers: dict[str, Any]) -> None:
        """Gives the fake the leader and the assignor of the other, where a coordinator may choose any.

        Kafka takes any member if the leader has gone, and any of the assignors that equally many members prefer.
        """
        fake, other = answers[FAKE], answers[OTHER]
        classic = self.fake.group(self.group).classic
        leaders = {name: self._sides[name].symbols.get(answer.leader, "?") for name, answer in answers.items()}
        chosen = self._chosen.get(other.generation_id)
        if chosen is None and self._leader not in leaders.values():
            chosen = self._chosen[other.generation_id] = leaders[FAKE], leaders[OTHER]
            classic.leader = self._sides[FAKE].ids[leaders[OTHER]]
        self._leader = leaders[OTHER]
        if leaders[FAKE] != leaders[OTHER] and chosen == (leaders[FAKE], leaders[OTHER]):
            fake.leader, fake.members, fake.skip_assignment = self._sides[FAKE].ids[leaders[OTHER]], [], False
            other.members = []
        if fake.protocol_name != other.protocol_name:
            every = [each.protocols for each in classic.members.values()]
            votes = [next(name for name in mine if all(name in each for each in every)) for mine in every]
            if votes.count(fake.protocol_name) == votes.count(other.protocol_name):
                classic.protocol = fake.protocol_name = other.protocol_name

    # What the clients do

    def run(self, steps: Mapping[str, int]) -> None:
        """Takes random ones of these steps of one group protocol, which have weights."""
        for step in self.random.choices(list(steps), list(steps.values()), k=STEPS):
            try:
                getattr(self, f"_{step}")()
                self.settle()
            except Difference as error:
                raise Difference(*error.found, self.history[-12:]) from error

    def await_coordinator(self) -> None:
        """Waits until the other cluster has a coordinator: it creates the topic of offsets when one is looked up."""
        find = metadata.FindCoordinatorRequest(version=4, coordinator_keys=[self.group])
        deadline = Deadline.after(6 * ANSWER_S)
        while not deadline.expired():
            self._connections[OTHER].call(find, deadline)
            if not self._connections[OTHER].call(self._description, deadline).groups[0].error_code:
                return
            time.sleep(0.1)

    def _chance(self, probability: float) -> bool:
        return not self._orderly and self.random.random() < probability

    def client(
        self, name: str, instance: str | None = None, session: float = SESSION_S, rebalance: float = REBALANCE_S
    ) -> Client:
        """Adds a client."""
        self._clients.append(Client(name, instance, session, rebalance))
        return self._clients[-1]

    def _client(self) -> Client:
        """One of the clients, or a new one."""
        if len(self._clients) < 4 and (not self._clients or self._chance(0.15)):
            self._names += 1
            used = {each.instance for each in self._clients}
            free = [each for each in ("i1", "i2") if each not in used]
            instance = self.random.choice(free) if free and self._chance(0.35) else None
            return self.client(f"c{self._names}", instance)
        return self.random.choice(self._clients)

    # The classic protocol

    def _progress(self) -> None:
        """What a client in order would do next."""
        for client in self.random.sample(self._clients, len(self._clients)):
            if not client.parked and client.needs:
                self._go_on(client)
                return
        self._heartbeat()

    def _go_on(self, client: Client) -> None:
        (self.join if client.needs == "join" else self._sync)(client)

    def bring_together(self, *clients: Client) -> None:
        """Joins and syncs until these clients are members of one generation."""
        deadline = Deadline.after(ANSWER_S)
        while any(each.needs for each in clients) and not deadline.expired():
            for client in clients:
                if client.needs and not client.parked:
                    self._go_on(client)
                    self.settle()
            for client in clients:
                if not client.needs:
                    self.heartbeat(client)

    def _join(self) -> None:
        client = self._client()
        if self._chance(0.3):
            client.protocols = self.random.choice([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)])
        if self._chance(0.2):
            client.version += 1
        if self._chance(0.1):
            client.id = ""  # as after a restart
        self.join(client)

    def join(self, client: Client) -> None:
        """Sends a JoinGroup."""
        member, instance = client.id, client.instance
        if self._chance(0.03):
            member = "nobody"
        elif self._chance(0.03) and client.generation >= 0:
            instance = "i1"
        subscription = _subscription([self._topics.get(each, each) for each in client.topics], client.version)
        fields: dict[str, Any] = {"group_instance_id": instance, "protocol_type": "consumer"}
        fields["protocols"] = [{"name": name, "metadata": subscription} for name in client.protocols]
        fields["session_timeout_ms"] = round(client.session * 1000)
        fields["rebalance_timeout_ms"] = round(client.rebalance * 1000)
        what = f"join of {client.name} as {member!r} {instance or ''} {','.join(client.protocols)} v{client.version}"
        self.park(client, what, lambda side: self._of_member(side, member, consumer.JoinGroupRequest, 9, **fields))

    def _of_member(self, side: Side, member: str, kind: Any, version: int, **fields: Any) -> Any:
        return message(kind, version, group_id=self.group, member_id=side.ids.get(member, member), **fields)

    def _sync(self, client: Client | None = None) -> None:
        """Sends a SyncGroup, of any client or of this one."""
        client = client or self._client()
        member, generation = self._identity(client)
        name = "other" if self._chance(0.03) else None if self._chance(0.5) else client.protocols[0]
        named = self._sides[OTHER].symbols
        given = [named[each] for each in client.leads if each in named and not self._chance(0.05)]

        fields: dict[str, Any] = {"generation_id": generation, "group_instance_id": client.instance}
        fields |= {"protocol_type": "consumer", "protocol_name": name}

        def build(side: Side) -> Any:
            given_out = {side.ids[each]: f"{generation} {each}".encode() for each in given}
            assignments = [{"member_id": each, "assignment": text} for each, text in given_out.items()]
            return self._of_member(side, member, consumer.SyncGroupRequest, 5, assignments=assignments, **fields)

        self.park(client, f"sync of {client.name} as {member!r} in {generation}, {name}, for {given}", build)

    def _identity(self, client: Client) -> tuple[str, int]:
        """Member id and generation, sometimes wrong ones."""
        member, generation = client.id, client.generation
        if self._chance(0.06):
            member = self.random.choice(["nobody", "", *(each.id for each in self._clients)])
        if self._chance(0.08):
            generation += self.random.choice([-1, 1])
        return member, generation

    def _heartbeat(self) -> None:
        self.heartbeat(self._client())

    def heartbeat(self, client: Client) -> None:
        """Sends a Heartbeat."""
        member, generation = self._identity(client)
        instance = "i2" if self._chance(0.05) else client.instance
        fields = {"generation_id": generation, "group_instance_id": instance}
        what = f"heartbeat of {member!r} {instance or ''} in {generation}"
        answers = self.send(what, lambda side: self._of_member(side, member, consumer.HeartbeatRequest, 4, **fields))
        code = answers[OTHER].error_code
        if not client.parked and member == client.id and code:
            client.needs = "join"
            client.id = "" if code in (25, 82) else client.id

    def _leave(self) -> None:
        clients = self.random.sample(self._clients, min(len(self._clients), self.random.choice([1, 1, 1, 2])))
        leaving: list[tuple[str, str | None]] = []
        for client in clients:
            by_instance = client.instance is not None and self._chance(0.4)
            leaving.append(("" if by_instance else client.id or "nobody", client.instance if by_instance else None))
        if self._chance(0.1):
            leaving.append(self.random.choice([("nobody", None), ("", None), ("", "nobody"), ("nobody", "i1")]))

        def build(side: Side) -> Any:
            members = [
                {"member_id": side.ids.get(name, name), "group_instance_id": instance} for name, instance in leaving
            ]
            return message(consumer.LeaveGroupRequest, 5, group_id=self.group, members=members)

        self.send(f"leave of {leaving}", build)
        for client in clients:
            client.id, client.needs = ("", client.needs) if client.parked else ("", "join")

    # The protocol of KIP-848

    def _member_progress(self) -> None:
        client = self._client()
        self.member_heartbeat(client, client.generation if client.id else 0)

    def _member_join(self) -> None:
        client = self._client()
        if self._chance(0.3):
            client.topics = self.random.choice([("a",), ("b",), ("a", "b"), ("a", "unknown"), ()])
        if self._chance(0.2):
            client.assignor = self.random.choice([None, self._assignor])
        self.member_heartbeat(client, 0)

    def _member_stray(self) -> None:
        """A heartbeat with a wrong epoch, id, instance, assignor or partitions."""
        client = self._client()
        epoch = self.random.choice([client.generation - 1, client.generation + 1, -2, -3, client.generation])
        self.member_heartbeat(client, epoch, stray=True)

    def _member_leave(self) -> None:
        client = self._client()
        self.member_heartbeat(client, -2 if client.instance and self._chance(0.6) else -1)

    def member_heartbeat(self, client: Client, epoch: int, *, stray: bool = False) -> None:
        """Sends a ConsumerGroupHeartbeat."""
        if not client.id or (epoch == 0 and client.instance and self._chance(0.5)):
            client.lives += 1
            client.id = str(UUID(int=self.random.getrandbits(128)))
            for side in self._sides.values():
                side.learn(f"{client.name}.{client.lives}", client.id)
            client.owned = {}
        member = "nobody" if stray and self._chance(0.3) else client.id
        instance = "i2" if stray and epoch and self._chance(0.2) else client.instance
        assignor = "unknown" if stray and self._chance(0.2) else client.assignor
        full = epoch == 0 or self._chance(0.2)
        reports = self._chance(0.6)
        forgets = stray and self._chance(0.3)
        topics = [self._topics.get(each, each) for each in client.topics]
        fields: dict[str, Any] = {
            "group_id": self.group,
            "member_id": member,
            "instance_id": instance,
            "member_epoch": epoch,
        }
        if full:
            fields |= {"rebalance_timeout_ms": round(client.rebalance * 1000), "server_assignor": assignor}
            fields |= {"subscribed_topic_names": topics}

        def build(side: Side) -> Any:
            if not full and not reports:
                return message(ConsumerGroupHeartbeatRequest, 1, **fields)
            owned = [] if epoch == 0 or forgets else client.owned.get(side.name, [])
            listed = [{"topic_id": topic_id, "partitions": [number]} for topic_id, number in owned]
            return message(ConsumerGroupHeartbeatRequest, 1, **fields, topic_partitions=listed)

        what = f"heartbeat of {client.name} as {member[:8]} {instance or ''} in {epoch}"
        what += f" full, {','.join(client.topics)} {assignor}" if full else ""
        with self._same_target():
            answers = self.send(what, build)
        if member != client.id or instance != client.instance:
            return
        other = answers[OTHER]
        if other.error_code or epoch < 0:
            gone = other.error_code in (25, 69, 82, 110, 111) or (epoch < 0 and not other.error_code)
            client.id, client.generation = ("", 0) if gone else (client.id, client.generation)
            return
        client.generation = other.member_epoch
        for name, answer in answers.items():
            if answer.assignment is not None:
                client.owned[name] = [
                    (topic.topic_id, number)
                    for topic in answer.assignment.topic_partitions
                    for number in topic.partitions
                ]

    @contextlib.contextmanager
    def _same_target(self) -> Iterator[None]:
        """Lets the fake's uniform assignor choose what the other cluster has chosen, where that is as uniform.

        Which member gets how many depends on the order of Java's hash maps.
        """

        def chosen(subscriptions: Subscriptions, former: Mapping[str, Partitions]) -> dict[str, Partitions]:
            mine, others = uniform(subscriptions, former), self._target()
            return others if _as_uniform(others, mine, subscriptions) else mine

        ASSIGNORS[UNIFORM] = chosen
        try:
            yield
        finally:
            ASSIGNORS[UNIFORM] = uniform

    def _target(self) -> dict[str, Partitions]:
        """The target assignment of the other cluster, with the topic ids of the fake."""
        ids = self._sides[FAKE].ids
        answer = self._connections[OTHER].call(self._member_description, Deadline.after(ANSWER_S))
        return {
            each.member_id: frozenset(
                (UUID(ids[topic.topic_name]), number)
                for topic in each.target_assignment.topic_partitions
                for number in topic.partitions
            )
            for each in answer.groups[0].members
        }

    # Offsets

    def _commit(self) -> None:
        client = self._client()
        member, generation = self._identity(client)
        if self._chance(0.15):
            member, generation = "", -1
        version = self.random.choice([8, 9, 10])  # 10 if the other cluster has it
        version = min(version, self._connections[OTHER].supported[consumer.OffsetCommitRequest.API_KEY][1])
        wanted = self.random.sample(["a", "b", "unknown"], self.random.choice([1, 1, 2]))
        offset, text = self.random.randrange(100), "x" * (5000 if self._chance(0.05) else self.random.randrange(3))
        number = self.random.choice([0, 1, 2])
        part = {"partition_index": number, "committed_offset": offset, "committed_metadata": text}
        part["committed_leader_epoch"] = -1 if offset % 2 else 0
        fields: dict[str, Any] = {"generation_id_or_member_epoch": generation}
        fields["group_instance_id"] = client.instance if member else None

        def build(side: Side) -> Any:
            names = [self._topics.get(each, each) for each in wanted]
            named = [{"topic_id": side.topic_id(name)} if version >= 10 else {"name": name} for name in names]
            topics = [{"partitions": [part], **each} for each in named]
            return self._of_member(side, member, consumer.OffsetCommitRequest, version, topics=topics, **fields)

        self.send(f"commit v{version} of {wanted}-{number} by {member!r} in {generation}", build)

    def _fetch_offsets(self) -> None:
        client = self._client()
        member, generation = self._identity(client)
        version = self.random.choice([8, 9, 9])
        anyone, every = self._chance(0.3), self._chance(0.3)

        def build(side: Side) -> Any:
            group: dict[str, Any] = {"group_id": self.group, "topics": None}
            if version >= 9:
                group |= {"member_id": None if anyone else side.ids.get(member, member)}
                group |= {"member_epoch": -1 if anyone else generation}
            if not every:
                names = self._topics["a"], "unknown"
                group["topics"] = [{"name": name, "partition_indexes": [0, 1, 7]} for name in names]
            return message(consumer.OffsetFetchRequest, version, groups=[group], require_stable=True)

        self.send(f"offsets v{version} for {member!r} in {generation}", build)

    def _delete(self) -> None:
        self.history.append("delete the group")
        request = admin.DeleteGroupsRequest(version=2, groups_names=[self.group])
        other = self._connections[OTHER].call(request, Deadline.after(ANSWER_S)).results[0].error_code
        if (fake := self.fake.delete_group(self.group)) != other:
            raise Difference("deletion of the group", fake, other)

    # Without a group

    def _look(self) -> None:
        """A request about topics or the coordinator, with a wrong name, partition or leader epoch now and then."""
        topic = "unknown" if self._chance(0.2) else self._topics[self.random.choice("ab")]
        number, epoch = self.random.choice([0, 0, 1, 7]), self.random.choice([-1, -1, 0, 1])
        kind = self.random.choice(["offsets", "epochs", "metadata", "coordinator", "fetch"])
        when = self.random.choice([-1, -2, FIRST_TIME - 5, FIRST_TIME + 1000, FIRST_TIME + 1500, FIRST_TIME + 10**9])
        offset, asked = self.random.choice([0, 1, RECORDS, RECORDS + 1]), self.random.choice([0, 1, 2])
        committed = self.random.choice([0, 1])

        def build(side: Side) -> Any:
            if kind == "metadata":
                return metadata_request(topic)
            if kind == "coordinator":
                return metadata.FindCoordinatorRequest(version=4, coordinator_keys=[self.group])
            part: dict[str, Any] = {"current_leader_epoch": epoch}
            if kind == "offsets":
                part |= {"partition_index": number, "timestamp": when}
                topics = [{"name": topic, "partitions": [part]}]
                return message(consumer.ListOffsetsRequest, 7, isolation_level=committed, topics=topics)
            if kind == "epochs":
                part |= {"partition": number, "leader_epoch": asked}
                topics = [{"topic": topic, "partitions": [part]}]
                return message(consumer.OffsetForLeaderEpochRequest, 4, replica_id=-1, topics=topics)
            part |= {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1000}
            limits = {"max_wait_ms": 1, "min_bytes": 1, "max_bytes": 1000, "isolation_level": committed}
            of_topic = {"topic_id": side.topic_id(topic), "partitions": [part]}
            return message(consumer.FetchRequest, 13, **limits, topics=[of_topic])

        self.send(f"{kind} of {topic[:7]}-{number} in {epoch}, {when}, {offset}, {asked}", build)


OF_BOTH = {"commit": 10, "fetch_offsets": 6, "delete": 1, "look": 6}
CLASSIC = {"progress": 40, "join": 14, "sync": 4, "heartbeat": 10, "leave": 5} | OF_BOTH
CONSUMER = {"member_progress": 45, "member_join": 12, "member_stray": 12, "member_leave": 6} | OF_BOTH
"""The steps of each protocol, and how often they come."""


def _as_uniform(target: Mapping[str, Partitions], than: Mapping[str, Partitions], subscriptions: Subscriptions) -> bool:
    """Whether a target assignment gives the same partitions to the same members, and as equally many to each."""
    if target.keys() != than.keys() or sorted(chain(*target.values())) != sorted(chain(*than.values())):
        return False
    topics = {member: {topic_id for topic_id, _ in each.values()} for member, each in subscriptions.items()}
    fits = all(topic_id in topics[member] for member, each in target.items() for topic_id, _ in each)
    return fits and sum(len(each) ** 2 for each in target.values()) <= sum(len(each) ** 2 for each in than.values())


def _subscription(topics: list[str], version: int) -> bytes:
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    data = str(version).encode()
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + len(data).to_bytes(4, "big") + data


def metadata_request(topic: str) -> Any:
    topics = [{"name": topic, "topic_id": UUID(int=0)}]
    return message(metadata.MetadataRequest, 12, topics=topics, allow_auto_topic_creation=False)


@dataclass
class Clusters:
    """The two clusters, and the names of their topics."""

    fake: FakeKafka
    sides: dict[str, Side]
    topics: dict[str, str]

    @contextlib.contextmanager
    def start(self, seed: int, *, orderly: bool = False) -> Iterator[Lockstep]:
        run = Lockstep(self, seed, orderly=orderly)
        try:
            run.await_coordinator()
            yield run
        finally:
            run.close()


@contextlib.contextmanager
def beside(bootstrap_servers: str) -> Iterator[Clusters]:
    """A fake beside the other cluster, in both of which this creates and fills the topics."""
    with FakeKafka() as fake:
        sides = {FAKE: Side(FAKE, fake.bootstrap_servers), OTHER: Side(OTHER, bootstrap_servers)}
        topics = {name: f"{name}-{uuid4()}" for name in TOPICS}
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=bootstrap_servers)) as admins:
            for name, count in TOPICS.items():
                fake.create_topic(topics[name], count)
                admins.create_topics([NewTopic(topics[name], count, 1)], wait_for_metadata=True)
        with contextlib.closing(KafkaProducer(bootstrap_servers=bootstrap_servers)) as producer:
            for topic, record in product(topics.values(), range(RECORDS)):
                at = FIRST_TIME + 1000 * record
                fake.produce(topic, ["v"], 0, at)
                producer.send(topic, b"v", partition=0, timestamp_ms=at).get(ANSWER_S)
        for side, topic in product(sides.values(), topics.values()):
            with contextlib.closing(side.connect("operator")) as connection:
                found = connection.call(metadata_request(topic), Deadline.after(ANSWER_S))
            side.learn(topic, str(found.topics[0].topic_id))
        yield Clusters(fake, sides, topics)
