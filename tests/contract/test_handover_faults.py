"""A request or its answer is lost at one step of a revocation with KIP-848: each on the fake, one on a real Kafka.

The faults are on the network, so the broker applies a request whose answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.conftest import CONSUMER_BASE, PROXIED_OPTIONS, Bench, Proxied, Query, eventually
from tests.contract.proxy import ProxyFault, Selected

pytestmark = [
    pytest.mark.one_protocol("consumer", reason="the steps are heartbeats of KIP-848"),
    pytest.mark.real_time(reason="the proxy is between sockets"),
]


OF_ANSWERS = [ProxyFault.CUT_AFTER, ProxyFault.TRUNCATE, ProxyFault.DELAY]
OF_BOTH = [ProxyFault.CUT_BEFORE, ProxyFault.SWALLOW, *OF_ANSWERS]


def assigned(response: Any) -> int:
    """The number of partitions in an answer; -1 without an assignment."""
    if response.assignment is None:
        return -1
    return sum(len(topic.partitions) for topic in response.assignment.topic_partitions)


def reported(request: Any) -> int:
    """The number of owned partitions in a heartbeat; -1 if it reports none."""
    topics = request.topic_partitions
    return -1 if topics is None else sum(len(topic.partitions) for topic in topics)


STEPS: dict[str, tuple[list[ProxyFault], Selected | None]] = {
    "join": (OF_BOTH, lambda request, _: request.member_epoch == 0),
    "revocation": (OF_ANSWERS, lambda request, response: assigned(response) == 2),
    "commit": (OF_BOTH, None),
    "acknowledgement": (OF_BOTH, lambda request, _: request.member_epoch > 0 and reported(request) == 2),
    "assignment": (OF_ANSWERS, lambda request, response: assigned(response) > 0 and reported(request) != 2),
    "leave": (OF_BOTH, lambda request, _: request.member_epoch == -1),
}
"""In the order in which they come, after the first query has begun a batch of all four partitions: the faults, and
which heartbeats are the step. What the broker's answer decides has no faults of the request."""

CASES = [("fake", name, fault) for name, (faults, _) in STEPS.items() for fault in faults] + [
    ("real", name, faults[number % len(faults)]) for number, (name, (faults, _)) in enumerate(STEPS.items())
]


@pytest.fixture
def bench(proxied: Proxied, unique: Callable[[str], str], group: str) -> Iterator[Bench]:
    kafka, _ = proxied
    made = Bench(kafka, kafka.create_topic(unique("handover"), partitions=4), group, CONSUMER_BASE)
    made.produce(5, 5, 5, 5)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("proxied", "name", "fault"),
    CASES,
    ids=lambda each: each if isinstance(each, str) else each.name,
    indirect=["proxied"],
)
def test_a_lost_request_or_answer_in_a_handover_loses_and_repeats_nothing(
    proxied: Proxied, bench: Bench, name: str, fault: ProxyFault
) -> None:
    _, proxy = proxied

    def arm(*steps: str) -> None:
        if name in steps:
            api = "OffsetCommit" if name == "commit" else "ConsumerGroupHeartbeat"
            proxy.arm(api, fault, STEPS[name][1])

    def advanced(*queries: Query) -> bool:
        for query in queries:
            query.advance()
        return True

    first = bench.start(None, **PROXIED_OPTIONS)
    eventually(lambda: first.owns() == {0, 1, 2, 3}, "all partitions")
    first.begin()
    arm("join", "revocation", "acknowledgement")
    second = bench.join_in_mid_batch(first, **PROXIED_OPTIONS)
    assert bench.committed() == dict.fromkeys(range(4), 0)
    arm("commit", "assignment")
    first.finish()
    first.poll()
    eventually(lambda: advanced(first) and len(first.owns()) == len(second.owns()) == 2, "an even split")
    if name == "leave":
        arm("leave")
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
