"""The assignors against those of Kafka's own Java client, which answers the same cases."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_group_source.group.assignors import ASSIGNORS, sticky
from spark_group_source.group.assignors.base import hash_order, text_hash
from spark_group_source.offsets import Partitions, TopicPartition, numbers_by_topic
from spark_group_source.testing.ivy import BRIEF, java, kafka_libs
from tests.assignments import ENDLESS, JAVAS, Answer, Case, check_complete, ours

EXAMPLES = int(os.environ.get("ORACLE_EXAMPLES", "400"))
"""Groups of each assignor; each rebalances up to three times."""
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


@pytest.mark.parametrize(
    "recorded",
    [each for each in JAVAS if each["answer"] != ENDLESS],  # that one would keep a core busy for all that follow
    ids=itemgetter("name"),
)
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

    def case(self, assignor: str, clean: bool) -> Case:
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


def torn(seed: int) -> Group:
    """A group whose members are subscribed to different topics, and claim each other's partitions."""
    chance = Random(seed)
    topics: Topics = {f"t{index}": [[]] * chance.randint(1, 12) for index in range(chance.randint(1, 6))}
    members = [
        Told(
            f"m{chance.random()}",
            None,
            None,
            3,
            chance.sample(sorted(topics), chance.randint(1, len(topics))),
            generation=(generation := chance.choice([3, 4, 5])),
            last=generation,
        )
        for _ in range(chance.randint(2, 8))
    ]
    owned: dict[str, set[TopicPartition]] = {each.id: set() for each in members}
    for topic, partitions in topics.items():
        subscribed = [each.id for each in members if topic in each.topics]
        for number in range(len(partitions)):
            for candidates, probability in ((subscribed[:2], 0.9), (subscribed, 0.3)):
                if candidates and chance.random() < probability:
                    owned[chance.choice(candidates)].add(TopicPartition(topic, number))
    return Group([replace(each, owned=frozenset(owned[each.id])) for each in members], topics)


@st.composite
def successors(draw: st.DrawFn, group: Group, answer: Answer, generation: int) -> Group:
    """The group in its next rebalance: most members have what they were assigned; some things have changed."""
    members = []
    for each in group.members:
        share = frozenset(TopicPartition(topic, number) for topic, all_ in answer[each.id].items() for number in all_)
        fate = draw(st.sampled_from(["stays"] * 6 + ["misses it", "leaves"]))
        if fate == "stays":
            members.append(replace(each, owned=share, generation=generation, last=generation, form="written"))
        elif fate == "misses it":
            members.append(each)
    if not members or draw(st.booleans()):
        members.append(replace(group.members[0], id="new", owned=frozenset(), generation=-1, last=-1, instance_id=None))
    topics = dict(group.topics)
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(topics)))
        topics[name] = [*topics[name], ["a"]]
    return Group(list({each.id: each for each in members}.values()), topics)


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_assignments_equal_those_of_kafkas_client(assignor: str, oracle: Ask) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(groups() | st.builds(torn, st.integers(0, 2**40)), st.data())
    def check(group: Group, data: st.DataObject) -> None:
        for generation in range(6, 9):
            case = group.case(assignor, clean=False)
            answer = ours(case)
            check_complete(case, answer)
            expected = oracle(group.case(assignor, clean=True))
            if is_answered(group, assignor, expected):
                assert answer == expected
            if not data.draw(st.booleans()):
                break
            group = data.draw(successors(group, answer, generation))

    check()


def is_answered(group: Group, assignor: str, expected: Any) -> bool:
    """Whether Java answers what is meant. With its sticky assignors it does not in three odd groups.

    - A member claims partitions of a topic that it has unsubscribed, in an earlier generation than others: Java may
      give them back, or fail.
    - A member is subscribed to nothing, and a hash map has it first: Java takes it for one that is subscribed to
      everything.
    - Shares become more even in a circle: Java does not end.
    """
    if "sticky" in assignor:
        latest = max(max(each.generation, each.last) for each in group.members)
        first = hash_order(group.members, lambda each: text_hash(each.id))[0]
        if not first.topics and any(each.topics for each in group.members):
            return False
        if any(
            min(each.generation, each.last) < latest and {tp.topic for tp in each.owned} - set(each.topics)
            for each in group.members
        ):
            return False
        if expected == ENDLESS:
            return False
    assert "error" not in expected
    return True
