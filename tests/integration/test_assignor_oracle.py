"""The assignors against those of Kafka's own Java client, which answers the same cases.

``range`` and ``roundrobin`` must give the same result. The sticky assignors may differ where members have equal rights
to a partition. But when the group's leader changes between the two clients, no partition may move.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_group_source.group.assignors import sticky
from spark_group_source.offsets import Partitions, TopicPartition, numbers_by_topic
from spark_group_source.testing.ivy import BRIEF, java, kafka_libs
from tests.assignments import JAVAS, Answer, Case, is_complete, ours

EXAMPLES = int(os.environ.get("ORACLE_EXAMPLES", "100"))
"""Groups of each assignor, which each rebalance up to three times; for a change of an assignor, take some thousands."""
PROGRAM = Path(__file__).with_name("AssignorOracle.java")
TOPICS = ["t", "u", "orders", "Aa", "BB"]  # the last two have one hash
RACKS = st.sampled_from([None, "a", "b", "c"])
Ask = Callable[[Case], Any]
Topics = dict[str, list[list[str | None]]]


@pytest.fixture(scope="module")
def oracle() -> Iterator[Ask]:
    """Asks Java: the assignment, or the error with which its assignor failed."""
    command = [java(), BRIEF, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{kafka_libs()}/*", str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        told, answers = process.stdin, process.stdout
        assert told is not None
        assert answers is not None

        def ask(case: Case) -> Any:
            print(json.dumps(case), file=told, flush=True)
            return json.loads(answers.readline())

        yield ask
        told.close()


@pytest.mark.parametrize("recorded", JAVAS, ids=itemgetter("name"))
def test_recorded_assignments_equal_those_of_kafkas_client(recorded: Case, oracle: Ask) -> None:
    assert oracle(recorded) == recorded["answer"]


@dataclass(frozen=True)
class Told:
    """What one member tells the leader. ``last`` is the generation in its user data."""

    id: str
    instance_id: str | None
    rack: str | None
    version: int
    topics: list[str]
    form: str = "written"
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    last: int = -1

    def subscription(self, assignor: str, existing: set[TopicPartition] | None) -> str:
        """The subscription in hex, with claims of existing partitions only where these are given."""
        owned = self.owned if existing is None else self.owned & existing
        topic_of = ConsumerProtocolSubscription.TopicPartition
        return bytes(
            ConsumerProtocolSubscription(
                version=self.version,
                topics=self.topics,
                user_data=self._user_data(assignor, owned),
                owned_partitions=[
                    topic_of(topic=topic, partitions=numbers) for topic, numbers in numbers_by_topic(owned).items()
                ],
                generation_id=self.generation,
                rack_id=self.rack,
            ).encode()
        ).hex()

    def _user_data(self, assignor: str, owned: Partitions) -> bytes | None:
        if self.form != "written":
            return {"none": None, "empty": b"", "junk": b"junk", "short": b"\1"}[self.form]
        if assignor == "sticky":
            # Clients before Kafka 2.3 tell no generation.
            return sticky.encode(owned, self.last) if self.last >= -1 else sticky.encode(owned, -1)[:-4]
        return struct.pack(">i", self.last)


@dataclass(frozen=True)
class Group:
    """Members and topics; these are partitions as lists of racks."""

    members: list[Told]
    topics: Topics

    def case(self, assignor: str, clean: bool = False) -> Case:
        """What is to be assigned; without claims of partitions that do not exist if it is to be ``clean``."""
        existing = {TopicPartition(topic, number) for topic, all_ in self.topics.items() for number in range(len(all_))}
        told = [
            {
                "id": each.id,
                "instance_id": each.instance_id,
                "subscription": each.subscription(assignor, existing if clean else None),
            }
            for each in self.members
        ]
        return {"assignor": assignor, "members": told, "topics": self.topics}

    def after(self, answer: Answer, generation: int) -> Group:
        """The same group when all members claim what they were assigned in this generation."""
        members = [
            replace(
                each,
                version=max(1, each.version),  # version 0 has no claims
                form="written",
                owned=partitions(answer[each.id]),
                generation=generation,
                last=generation,
            )
            for each in self.members
        ]
        return Group(members, self.topics)

    def claimed(self, assignor: str) -> dict[str, Partitions]:
        """What members claim of the existing partitions to which they are subscribed."""
        return {
            each.id: frozenset(
                tp
                for tp in each.owned
                if tp.topic in each.topics and tp.partition < len(self.topics.get(tp.topic, ()))
                if (each.form == "written" if assignor == "sticky" else each.version > 0)
            )
            for each in self.members
        }

    def is_near(self, answer: Answer) -> bool:
        """Whether each partition has a replica in its owner's rack, or its owner has no rack."""
        return all(
            not each.rack or each.rack in self.topics[tp.topic][tp.partition]
            for each in self.members
            for tp in partitions(answer[each.id])
        )

    def is_balanced(self, answer: Answer) -> bool:
        """Whether no member has at least two partitions more than another that is subscribed to one of them."""
        return all(
            len(partitions(answer[large.id])) < len(partitions(answer[small.id])) + 2
            for large in self.members
            for small in self.members
            if small.topics and set(answer[large.id]) & set(small.topics)
        )


def partitions(share: dict[str, list[int]]) -> Partitions:
    """The partitions of one member's share."""
    return frozenset(TopicPartition(topic, number) for topic, numbers in share.items() for number in numbers)


GENERATIONS = st.sampled_from([5, 5, 5, 4, 3, -1])
FORMS = st.sampled_from(["written"] * 5 + ["none", "empty", "junk", "short"])


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Groups in which members claim all sorts of things."""
    names = draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    replicas = st.lists(RACKS, max_size=3) if draw(st.booleans()) else st.just(list[str | None]())
    sizes = st.integers(0, 12) if draw(st.booleans()) else st.just(draw(st.integers(0, 12)))
    topics = {name: [draw(replicas) for _ in range(draw(sizes))] for name in names}
    equal = draw(st.booleans())
    ids = draw(
        st.lists(st.text("abyz09-é\uffff\U0001d4b3", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)
    )
    racks = RACKS | st.sampled_from(["", "z"]) if draw(st.booleans()) else st.none()
    members = [
        Told(
            each,
            f"i{-index}" if draw(st.booleans()) else None,
            draw(racks),
            draw(st.sampled_from([3, 3, 3, 2, 1, 0])),
            names if equal else draw(st.lists(st.sampled_from([*names, "unknown"]), unique=True)),
            draw(FORMS),
            generation=draw(GENERATIONS),
            last=draw(st.sampled_from([5, 5, 5, 4, -1, -2])),
        )
        for index, each in enumerate(ids)
    ]
    return Group(draw(claims(members, topics)), topics)


@st.composite
def claims(draw: st.DrawFn, members: list[Told], topics: dict[str, Any]) -> list[Told]:
    """The members, with partitions that they own; one partition may have several owners, or not exist."""
    every = [TopicPartition(name, number) for name, all_ in topics.items() for number in range(len(all_))]
    owners = (
        st.integers(-1, len(members) - 1) if draw(st.booleans()) else st.just(draw(st.integers(-1, len(members) - 1)))
    )
    owned: list[set[TopicPartition]] = [set() for _ in members]
    unsubscribed = draw(st.booleans())
    for tp in every:
        if (owner := draw(owners)) >= 0 and (unsubscribed or tp.topic in members[owner].topics):
            owned[owner].add(tp)
    odd = [*every, TopicPartition("gone", 0), *(TopicPartition(name, 40) for name in topics)]
    if draw(st.booleans()):
        more = st.tuples(st.sampled_from(owned), st.sampled_from(odd))
        for mine, tp in draw(st.lists(more, max_size=10)):
            mine.add(tp)
    return [replace(each, owned=frozenset(mine)) for each, mine in zip(members, owned, strict=True)]


@st.composite
def successors(draw: st.DrawFn, group: Group) -> Group:
    """The group in its next rebalance: some members and topics have changed."""
    members = [each for each in group.members if draw(st.integers(0, 6))]
    if not members or draw(st.booleans()):
        members.append(replace(group.members[0], id="new", owned=frozenset(), generation=-1, last=-1, instance_id=None))
    topics = dict(group.topics)
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(topics)))
        topics[name] = [*topics[name], ["a"]]
    return Group(list({each.id: each for each in members}.values()), topics)


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_assignments_equal_those_of_kafkas_client(assignor: str, oracle: Ask) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(groups())
    def check(group: Group) -> None:
        case = group.case(assignor)
        answer = ours(case)
        assert is_complete(case, answer)
        assert answer == oracle(case)

    check()


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "sticky"])
def test_sticky_assignments_are_as_good_as_those_of_kafkas_client_and_both_clients_keep_them(
    assignor: str, oracle: Ask
) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(groups(), st.data())
    def check(group: Group, data: st.DataObject) -> None:
        for generation in (10, 30, 50):
            mine = settled(ours, group, assignor, generation)
            assert mine is not None
            assert group.is_balanced(mine)
            javas = settled(oracle, group, assignor, generation)
            if javas is not None:
                compare(group, mine, javas, counts)
                for leader, answer in ((oracle, mine), (ours, javas)):
                    if group.is_near(answer):
                        assert leader(group.after(answer, generation + 20).case(assignor)) == answer
            if not data.draw(st.booleans()):
                break
            last = mine if javas is None or data.draw(st.booleans()) else javas
            group = data.draw(successors(group.after(last, generation + 20)))

    def compare(group: Group, mine: Answer, javas: Answer, counts: Counter[str]) -> None:
        assert group.is_balanced(javas)
        counts["rebalances"] += 1
        equal = len({frozenset(each.topics) for each in group.members}) == 1
        if equal:
            assert sizes(mine) == sizes(javas)
        claimed = group.claimed(assignor)
        disjoint = sum(map(len, claimed.values())) == len(frozenset[TopicPartition]().union(*claimed.values()))
        if disjoint and not any(each.rack for each in group.members):
            moved, javas_moved = (
                sum(len(owned - partitions(answer[member])) for member, owned in claimed.items())
                for answer in (mine, javas)
            )
            assert moved <= javas_moved or not equal
            counts["moved"] += moved
            counts["moved by Java"] += javas_moved

    check()
    assert counts["rebalances"] > EXAMPLES / 2
    assert counts["moved"] <= counts["moved by Java"]


def settled(assign: Ask, group: Group, assignor: str, generation: int) -> Answer | None:
    """The assignment when no partition waits for its former owner; ``None`` if Java does not answer what is meant.

    Java's sticky assignors may fail, not end, move partitions forever because of racks, or assign topics to members
    that are not subscribed to them.
    """
    answer: Answer = {}
    for latest in range(generation, generation + 20):
        case = group.case(assignor, clean=assign is not ours)
        answer, before = assign(case), answer
        if "error" in answer or not is_complete(case, answer):
            assert assign is not ours
            return None
        if answer == before or assignor == "sticky":
            return answer
        group = group.after(answer, latest)
    assert assign is not ours
    return None


def sizes(answer: Answer) -> list[int]:
    return sorted(len(partitions(share)) for share in answer.values())
