"""A commit that arrives after later ones, on the fake Kafka and on a real one: a proxy holds it back.

The coordinator accepts it, because its member and generation are those of now. With ``assign`` it accepts all commits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from tests.contract.conftest import BASES, PROXIED_OPTIONS, Bench, Proxied, eventually
from tests.contract.proxy import ProxyFault

pytestmark = pytest.mark.real_time(reason="the proxy is between sockets")

ASSIGN = "assign"
BY_MEMBERSHIP = BASES | {ASSIGN: {"startingOffsets": "earliest"}}


@pytest.fixture
def bench(proxied: Proxied, unique: Callable[[str], str], group: str, membership: str) -> Iterator[Bench]:
    kafka, _ = proxied
    made = Bench(kafka, kafka.create_topic(unique("late"), partitions=2), group, BY_MEMBERSHIP[membership])
    made.produce(5, 5)
    yield made
    made.close()


MEANWHILE = "idle", "in a batch", "at its end"
CASES = [("fake", *case) for case in product(BY_MEMBERSHIP, MEANWHILE)] + [
    ("real", *case) for case in zip(BY_MEMBERSHIP, MEANWHILE, strict=True)
]


@pytest.mark.parametrize(("proxied", "membership", "meanwhile"), CASES, indirect=["proxied"])
def test_a_commit_that_arrives_after_the_next_one_moves_the_group_back_for_a_moment(
    proxied: Proxied, bench: Bench, membership: str, meanwhile: str
) -> None:
    _, proxy = proxied

    def committed(end: int) -> bool:
        query.advance()
        return bench.committed() == {0: end, 1: end}

    topics = {"assign": json.dumps({bench.topic: [0, 1]})} if membership == ASSIGN else {}
    query = bench.start(None, **PROXIED_OPTIONS, **topics)
    eventually(lambda: query.owns() == {0, 1}, "all partitions")
    query.begin()
    proxy.arm("OffsetCommit", ProxyFault.HOLD)
    query.finish()
    eventually(lambda: committed(5) and proxy.done(), "the commit that is sent again")
    bench.produce(5, 5)
    query.run_batch()
    eventually(lambda: committed(10), "the next commit")
    if meanwhile == "in a batch":
        bench.produce(1, 1)
        query.begin()
    late = proxy.release()
    assert {part.error_code for topic in late.topics for part in topic.partitions} == {0}
    if meanwhile == "at its end":
        query.close()
        assert bench.committed() == {0: 10, 1: 10}
    elif meanwhile == "in a batch" and membership == ASSIGN:  # nothing but the query commits for it
        query.finish()
        eventually(lambda: committed(11), "the commit of the batch")
    else:
        eventually(lambda: committed(10), "the next commit again")
