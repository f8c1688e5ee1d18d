"""A request or its answer is lost at one step of a revocation with KIP-848, on the fake Kafka and on a real one.

The faults are on the network, so the broker applies a request whose answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from spark_group_source.group.membership import Phase
from tests.contract.conftest import CONSUMER_BASE, PROXIED_OPTIONS, Bench, Proxied, Query, eventually
from tests.contract.proxy import ProxyFault, Selected

pytestmark = [
    pytest.mark.one_protocol("consumer", reason="the steps are heartbeats of KIP-848"),
    pytest.mark.real_time(reason="the proxy is between sockets"),
]


@dataclass(frozen=True)
class Step:
    """One step: the heartbeats that are it, or all requests of another name."""

    api: str = "ConsumerGroupHeartbeat"
    selected: Selected | None = None
    only_answers: bool = False

    def faults(self) -> list[ProxyFault]:
        """The faults of this step; what the broker's answer decides has no faults of the request."""
        of_answer = [ProxyFault.CUT_AFTER, ProxyFault.TRUNCATE, ProxyFault.DELAY]
        return of_answer if self.only_answers else [ProxyFault.CUT_BEFORE, ProxyFault.SWALLOW, *of_answer]


def assigned(response: Any) -> int:
    """The number of partitions in an answer; -1 without an assignment."""
    if response.assignment is None:
        return -1
    return sum(len(topic.partitions) for topic in response.assignment.topic_partitions)


def reported(request: Any) -> int:
    """The number of owned partitions in a heartbeat; -1 if it reports none."""
    topics = request.topic_partitions
    return -1 if topics is None else sum(len(topic.partitions) for topic in topics)


STEPS = {
    "join": Step(selected=lambda request, _: request.member_epoch == 0),
    "revocation": Step(selected=lambda request, response: assigned(response) == 2, only_answers=True),
    "commit": Step("OffsetCommit"),
    "acknowledgement": Step(selected=lambda request, _: request.member_epoch > 0 and reported(request) == 2),
    "assignment": Step(
        selected=lambda request, response: assigned(response) > 0 and reported(request) != 2, only_answers=True
    ),
    "leave": Step(selected=lambda request, _: request.member_epoch == -1),
}
"""In the order in which they come, after the first query has begun a batch of all four partitions."""


@pytest.fixture
def bench(proxied: Proxied, unique: Callable[[str], str], group: str) -> Iterator[Bench]:
    kafka, _ = proxied
    made = Bench(kafka, kafka.create_topic(unique("handover"), partitions=4), group, CONSUMER_BASE)
    made.produce(5, 5, 5, 5)
    yield made
    made.close()


def advanced(*queries: Query) -> bool:
    """Runs one batch of each query, if it has something to read; always true."""
    for query in queries:
        if query.poll():
            query.finish()
    return True


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name, step in STEPS.items() for fault in step.faults()],
    ids=lambda each: each if isinstance(each, str) else each.name,
)
def test_a_lost_request_or_answer_in_a_handover_loses_and_repeats_nothing(
    proxied: Proxied, bench: Bench, name: str, fault: ProxyFault
) -> None:
    _, proxy = proxied
    first = bench.start(None, **PROXIED_OPTIONS)
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    step = STEPS[name]
    if name in ("join", "revocation", "acknowledgement"):
        proxy.arm(step.api, fault, step.selected)
    second = bench.query(None, **PROXIED_OPTIONS)
    second.driver.start(second.end)
    eventually(lambda: first.me.phase is Phase.REVOKING, "the revocation to wait for the batch")
    assert bench.committed() == dict.fromkeys(range(4), 0)
    if name in ("commit", "assignment"):
        proxy.arm(step.api, fault, step.selected)
    first.finish()
    first.poll()
    eventually(lambda: advanced(first) and len(first.owns()) == len(second.owns()) == 2, "an even split")
    if name == "leave":
        proxy.arm(step.api, fault, step.selected)
        first.close()
    else:
        bench.produce(5, 5, 5, 5)
    eventually(proxy.done, "the fault")
    ends = dict.fromkeys(range(4), 5 if name == "leave" else 10)
    reading = [second] if name == "leave" else [first, second]
    eventually(lambda: advanced(*reading) and bench.committed() == ends, "all to be committed")
    if name == "leave":
        eventually(lambda: second.owns() == {0, 1, 2, 3}, "the partitions of the first")
    read = [
        (each.partition, at) for query in (first, second) for each in query.read for at in range(each.start, each.end)
    ]
    assert sorted(read) == [(number, at) for number in range(4) for at in range(ends[number])]
    assert first.driver.counters.lost == second.driver.counters.lost == 0
    assert first.driver.counters.revocation_timed_out == 0
