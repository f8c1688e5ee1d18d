"""A query beside every other client in one group: each assignor that both know, both group protocols, and each order.

Each cell of the matrix is one test. `make test-clients` builds the clients from their registries and skips, with its
name, a client whose toolchain is not on this machine. Rows with figures go to ``build/clients/cells.tsv``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spark_group_source.testing import EmbeddedKafka
from tests.clients.cell import SESSION_MS, Cell, Side, note, timed
from tests.clients.judge import Verdict
from tests.clients.member import Member
from tests.clients.programs import BY_NAME, CLASSIC, CONSUMER, OTHERS, OURS, Program
from tests.conftest import KAFKA, WITHOUT_KIP_848
from tests.integration.standing import shorten_sessions

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PARTITIONS = 6
STATIC_SESSION_MS = 30_000
"""A static member that was killed is back within it."""

Start = Callable[..., Cell]
"""Starts a cell, by numbers of partitions of its topics."""


@cache
def built(program: Program) -> list[str]:
    """The command of a client; the first call builds it."""
    return program.build()


@pytest.fixture
def cell(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, topic: Callable[..., str], group: str, tmp_path: Path
) -> Iterator[Start]:
    """Starts a group, ends its members, and judges what it did."""
    started: list[Cell] = []

    def start(*partitions: int, prefix: str = "topic", session_ms: int = SESSION_MS) -> Cell:
        topics = {topic(partitions=count, prefix=prefix): count for count in partitions}
        if not WITHOUT_KIP_848 and session_ms == SESSION_MS:
            shorten_sessions(kafka, group)
        started.append(Cell(kafka, group, topics, tmp_path, built, session_ms))
        started[0].__enter__()
        return started[0]

    with timed() as seconds:
        yield start
        if not started:
            return
        try:
            verdict = started[0].verdict()
        finally:
            started[0].__exit__()
    trouble = started[0].trouble()
    print(note(f"{KAFKA} {request.node.name}", started[0].figures, verdict, trouble, seconds()))
    require_right(verdict, trouble, {each.program.faults for each in started[0].members} - {""})


def require_right(verdict: Verdict, trouble: list[str], faults: set[str]) -> None:
    """Fails if the group went wrong, as an expected failure if only what clients with known faults do is wrong.

    Args:
        verdict: the judge's.
        trouble: what the members logged.
        faults: links to the known faults of the group's members.
    """
    assert not verdict.unread
    assert not verdict.ahead
    assert not [line for line in trouble if line.startswith(OURS.name)]
    wrong = [*verdict.repeated, *verdict.back, *trouble]
    if wrong and faults:
        pytest.xfail(f"{', '.join(faults)}: {wrong}")
    assert not wrong


def require(*sides: Side) -> None:
    """Skips the test if a client cannot be built here, or the brokers lack KIP-848."""
    for side in sides:
        if side.program.missing():
            pytest.skip(side.program.missing())
        if side.protocol == CONSUMER and WITHOUT_KIP_848:
            pytest.skip("Kafka 4.0 has KIP-848")


def cells(*programs: Program) -> list[tuple[Side, Side]]:
    """Ours and theirs, with each assignor that both know, in both protocols."""
    found = []
    for program in programs:
        for protocol, theirs, ours in (
            (CLASSIC, program.classic, OURS.classic),
            (CONSUMER, program.consumer, OURS.consumer),
        ):
            for assignor in theirs:
                if assignor in ours:
                    found.append((Side(OURS, protocol, assignor), Side(program, protocol, assignor)))
    return found


def first_cells(*programs: Program) -> list[tuple[Side, Side]]:
    """As :func:`cells`, with the first assignor of each protocol."""
    found: dict[tuple[str, str], tuple[Side, Side]] = {}
    for ours, theirs in cells(*programs):
        found.setdefault((theirs.program.name, theirs.protocol), (ours, theirs))
    return list(found.values())


MIXED = [
    (Side(OURS, CONSUMER), Side(BY_NAME["java"], CLASSIC, "cooperative-sticky")),
    (Side(OURS, CLASSIC, "cooperative-sticky"), Side(BY_NAME["java"], CONSUMER)),
    (Side(OURS, CLASSIC, "range"), Side(BY_NAME["librdkafka"], CONSUMER)),
    (Side(OURS, CONSUMER), Side(BY_NAME["librdkafka"], CLASSIC)),
    (Side(OURS, CLASSIC, "cooperative-sticky,range"), Side(BY_NAME["librdkafka"], CLASSIC, "range")),
    (Side(OURS, CONSUMER), Side(BY_NAME["franz-go"], CLASSIC, "cooperative-sticky")),
    (Side(OURS, CONSUMER), Side(BY_NAME["sarama"], CLASSIC)),
    (Side(OURS, CONSUMER), Side(BY_NAME["kafka-python"], CLASSIC)),
    (Side(OURS, CONSUMER), Side(BY_NAME["aiokafka"], CLASSIC)),
    (Side(OURS, CONSUMER), Side(BY_NAME["kafkajs"], CLASSIC)),
]
"""Both protocols in one group, or different lists of assignors. Without an assignor: the client's default."""


def name(sides: tuple[Side, Side]) -> str:
    """Of a cell: theirs, and ours if it is configured differently."""
    ours, theirs = sides
    if (ours.protocol, ours.assignor) == (theirs.protocol, theirs.assignor):
        return str(theirs)
    return f"{theirs}-beside-{ours}"


def everything_happens(cell: Cell, ours: Side, theirs: Side, assignor: str) -> None:
    """Each side joins first and second, leaves, and is killed."""
    one = cell.start(ours)
    cell.settle(one, assignor=assignor)
    other = cell.start(theirs)
    cell.settle(one, other, assignor=assignor)
    other.leave()
    cell.settle(one)
    other = cell.start(theirs)
    cell.settle(one, other)
    other.kill()
    cell.settle(one)
    other = cell.start(theirs)
    cell.settle(one, other)
    one.leave()
    cell.settle(other)
    one = cell.start(ours)
    cell.settle(one, other, assignor=assignor)
    one.kill()
    cell.settle(other)
    one = cell.start(ours)
    cell.settle(one, other)
    other.leave()
    cell.settle(one)


@pytest.mark.parametrize("sides", cells(*OTHERS), ids=name)
def test_a_query_and_another_client_of_one_assignor_read_each_record_once(
    cell: Start, sides: tuple[Side, Side]
) -> None:
    require(*sides)
    everything_happens(cell(PARTITIONS), *sides, assignor=sides[0].assignor)


@pytest.mark.parametrize("sides", MIXED, ids=name)
def test_members_of_different_protocols_or_assignors_read_each_record_once(
    cell: Start, sides: tuple[Side, Side]
) -> None:
    require(*sides)
    everything_happens(cell(PARTITIONS), *sides, assignor="")


@pytest.mark.parametrize("sides", first_cells(*OTHERS), ids=name)
def test_control_two_members_of_another_client_read_each_record_once(cell: Start, sides: tuple[Side, Side]) -> None:
    """The same story without us: what is red here is theirs, or the tests'."""
    _, theirs = sides
    require(theirs)
    everything_happens(cell(PARTITIONS), theirs, theirs, assignor=theirs.assignor)


def three(first: str, second: str, protocol: str, assignor: str) -> tuple[Side, ...]:
    """Ours and two others of one configuration."""
    return tuple(Side(BY_NAME[each], protocol, assignor) for each in (OURS.name, first, second))


THREE = {
    "range": three("java", "librdkafka", CLASSIC, "range"),
    # Not franz-go with sarama or kafka-python: a leader with franz-go 1.22 does not see what the members of these own,
    # because a subscription of version 1 has no generation, and lets them swap partitions. Java's needs none.
    # https://github.com/twmb/franz-go/blob/v1.22.3/pkg/kgo/internal/sticky/sticky.go#L395
    "cooperative-sticky": three("java", "sarama", CLASSIC, "cooperative-sticky"),
    "roundrobin": three("kafka-python", "aiokafka", CLASSIC, "roundrobin"),
    "consumer": three("java", "librdkafka", CONSUMER, "uniform"),
    "both-protocols": (
        Side(OURS, CONSUMER),
        Side(BY_NAME["java"], CLASSIC, "cooperative-sticky"),
        Side(BY_NAME["franz-go"], CONSUMER),
    ),
}


def each_leaves_and_returns(group: Cell, sides: tuple[Side, ...]) -> None:
    """One joins after the other, each leaves and joins again, and the last one is killed."""
    members: list[Member] = []
    for side in sides:
        members.append(group.start(side))
        group.settle(*members)
    for number, side in enumerate(sides):
        members[number].leave()
        group.settle(*(each for at, each in enumerate(members) if at != number))
        members[number] = group.start(side)
        group.settle(*members)
    members[2].kill()
    group.settle(*members[:2])


@pytest.mark.parametrize("sides", THREE.values(), ids=THREE)
def test_members_of_three_clients_read_each_record_once(cell: Start, sides: tuple[Side, ...]) -> None:
    require(*sides)
    each_leaves_and_returns(cell(PARTITIONS + 1), sides)


@pytest.mark.parametrize("sides", THREE.values(), ids=THREE)
def test_control_three_members_of_two_other_clients_read_each_record_once(cell: Start, sides: tuple[Side, ...]) -> None:
    """As above, with a second member of the first of the others in our place."""
    _, first, second = sides
    require(first, second)
    each_leaves_and_returns(cell(PARTITIONS + 1), (first, first, second))


@pytest.mark.parametrize("sides", cells(*OTHERS), ids=name)
def test_members_of_two_clients_divide_several_topics(cell: Start, sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    require(ours, theirs)
    group = cell(PARTITIONS, 3, 1)
    one, other = group.start(ours), group.start(theirs)
    group.settle(one, other, assignor=ours.assignor)
    one.leave()
    group.settle(other)
    one = group.start(ours)
    group.settle(one, other)
    other.leave()
    group.settle(one)


@pytest.mark.parametrize("sides", first_cells(*(each for each in OTHERS if each.patterns)), ids=name)
def test_members_of_two_clients_divide_the_topics_of_a_pattern_and_one_that_is_created(
    cell: Start, topic: Callable[..., str], unique: Callable[[str], str], sides: tuple[Side, Side]
) -> None:
    require(*sides)
    prefix = unique("of-a-pattern")
    pattern = {"pattern": f"{prefix}-.*"}
    ours, theirs = (replace(each, settings=pattern) for each in sides)
    group = cell(PARTITIONS, prefix=prefix)
    one, other = group.start(ours), group.start(theirs)
    group.settle(one, other, assignor=ours.assignor)
    group.add_topic(topic(partitions=4, prefix=prefix), 4)
    group.settle(one, other)
    one.leave()
    group.settle(other)
    one = group.start(ours)
    group.settle(one, other)


@pytest.mark.parametrize("sides", [each for each in first_cells(*OTHERS) if each[1].protocol in each[1].program.static],
                         ids=name)  # fmt: skip
def test_static_members_of_two_clients_return_to_their_partitions(cell: Start, sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    require(ours, theirs)
    group = cell(PARTITIONS, session_ms=STATIC_SESSION_MS)
    one, other = group.start(ours, instance="one"), group.start(theirs, instance="other")
    group.settle(one, other, assignor=ours.assignor)
    kept = group.share(one), group.share(other)
    ends = [Member.leave]
    if ours.protocol == CLASSIC:  # with KIP-848 a killed member keeps its instance id until its session times out
        ends.append(Member.kill)
    for end in ends:
        end(one)
        assert group.share(one) == kept[0], "a static member does not leave"
        one = group.start(ours, instance="one")
        group.settle(one, other)
        end(other)
        assert group.share(other) == kept[1], "a static member does not leave"
        other = group.start(theirs, instance="other")
        group.settle(one, other)
        assert (group.share(one), group.share(other)) == kept
