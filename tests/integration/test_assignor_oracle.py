"""The assignors against those of Kafka's own Java client, which answers the same cases.

``range`` and ``roundrobin`` must give the same result. The sticky assignors may differ where members have equal rights
to a partition. But when the group's leader changes between the two clients, no partition may move.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
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
from spark_group_source.testing.ivy import kafka_libs
from spark_group_source.testing.java import BRIEF, java
from tests.assignments import JAVAS, Answer, Case, is_complete, ours

EXAMPLES = int(os.environ.get("ORACLE_EXAMPLES", "100"))
"""Groups of each assignor; for a change of an assignor, take some thousands."""
PROGRAM = Path(__file__).with_name("AssignorOracle.java")
TOPICS = ["t", "u", "orders", "Aa", "BB"]  # the last two have one hash
RACKS = st.sampled_from([None, "a", "b", "c"])
Ask = Callable[[Case], Any]


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
    """What one member tells the leader."""

    id: str
    instance_id: str | None
    rack: str | None
    version: int
    topics: list[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1

    def subscription(self, assignor: str, existing: set[TopicPartition] | None) -> str:
        """The subscription in hex, with claims of existing partitions only where these are given."""
        owned = self.owned if existing is None else self.owned & existing
        topic_of = ConsumerProtocolSubscription.TopicPartition
        last = sticky.encode(owned, self.generation) if assignor == "sticky" else struct.pack(">i", self.generation)
        return bytes(
            ConsumerProtocolSubscription(
                version=self.version,
                topics=self.topics,
                user_data=last,
                owned_partitions=[
                    topic_of(topic=topic, partitions=numbers) for topic, numbers in numbers_by_topic(owned).items()
                ],
                generation_id=self.generation,
                rack_id=self.rack,
            ).encode()
        ).hex()


@dataclass(frozen=True)
class Group:
    """Members and topics; these are partitions as lists of racks."""

    members: list[Told]
    topics: dict[str, list[list[str | None]]]

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
        members = [  # version 0 has no claims
            replace(each, version=max(1, each.version), owned=partitions(answer[each.id]), generation=generation)
            for each in self.members
        ]
        return Group(members, self.topics)

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


def partitions(assigned: dict[str, list[int]]) -> Partitions:
    """The partitions that one member is assigned."""
    return frozenset(TopicPartition(topic, number) for topic, numbers in assigned.items() for number in numbers)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Groups whose members claim partitions in one generation or several, which may have two owners, or not exist."""
    names = draw(st.lists(st.sampled_from(TOPICS), min_size=1, unique=True))
    replicas = st.lists(RACKS, max_size=3) if draw(st.booleans()) else st.just(list[str | None]())
    sizes = st.integers(0, 12) if draw(st.booleans()) else st.just(draw(st.integers(0, 12)))
    topics = {name: [draw(replicas) for _ in range(draw(sizes))] for name in names}
    every = [TopicPartition(name, number) for name in [*names, "gone"] for number in range(len(topics.get(name, [0])))]
    claims = st.frozensets(st.sampled_from(every)) if draw(st.booleans()) else st.just(frozenset[TopicPartition]())
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
            draw(claims),
            draw(st.sampled_from([5, 5, 5, 4, 3, -1])),
        )
        for index, each in enumerate(ids)
    ]
    return Group(members, topics)


every_group = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_assignments_equal_those_of_kafkas_client(assignor: str, oracle: Ask) -> None:
    @every_group
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
    compared: list[Group] = []

    @every_group
    @given(groups())
    def check(group: Group) -> None:
        mine, javas = settled(ours, group, assignor), settled(oracle, group, assignor)
        assert mine is not None
        assert group.is_balanced(mine)
        if javas is None:
            return
        compared.append(group)
        assert group.is_balanced(javas)
        if len({frozenset(each.topics) for each in group.members}) == 1:
            assert sizes(mine) == sizes(javas)
        for leader, answer in ((oracle, mine), (ours, javas)):
            if group.is_near(answer):
                assert leader(group.after(answer, 50).case(assignor)) == answer

    check()
    assert len(compared) > EXAMPLES / 2


def settled(assign: Ask, group: Group, assignor: str) -> Answer | None:
    """The assignment when no partition waits for its former owner; ``None`` if Java does not answer what is meant.

    Java's sticky assignors may fail, not end, move partitions forever because of racks, or assign topics to members
    that are not subscribed to them.
    """
    answer: Answer = {}
    for generation in range(10, 30):
        case = group.case(assignor, clean=assign is not ours)
        answer, before = assign(case), answer
        if "error" in answer or not is_complete(case, answer):
            assert assign is not ours
            return None
        if answer == before or assignor == "sticky":
            return answer
        group = group.after(answer, generation)
    assert assign is not ours
    return None


def sizes(answer: Answer) -> list[int]:
    return sorted(len(partitions(assigned)) for assigned in answer.values())
