"""The fake answers random requests as a real Kafka does, and its sessions and timeouts end as those do.

``LOCKSTEP_SEEDS=500`` takes more seeds than ten.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from spark_group_source.testing import EmbeddedKafka
from tests.conftest import KAFKA
from tests.contract.conftest import eventually
from tests.contract.lockstep import CLASSIC, CONSUMER, Client, Clusters, Difference, Lockstep, beside

MODELLED = ("4.0.", "4.1.")
"""The versions that the fake is a model of. Kafka 4.3 begins with other epochs, and lets a member join again at any."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not KAFKA.startswith(MODELLED), reason="the fake is a model of another version"),
]

SHORT_S = 0.8
MEMBER_SESSION_S = 6.0
"""Longer, because the member that stays has the same."""


@pytest.fixture(scope="module")
def both(kafka: EmbeddedKafka) -> Iterator[Clusters]:
    with beside(kafka.bootstrap_servers) as clusters:
        yield clusters


@pytest.fixture
def run(both: Clusters) -> Iterator[Lockstep]:
    """A run in which no request is wrong."""
    with both.start(0, orderly=True) as started:
        yield started


@pytest.mark.parametrize("seed", range(int(os.environ.get("LOCKSTEP_SEEDS", "10"))))
def test_random_requests_have_the_same_answers(both: Clusters, seed: int) -> None:
    with both.start(seed) as run:
        run.run((CLASSIC, CONSUMER)[seed % 2])
    assert run.requests > 100


def removed(run: Lockstep, why: str, alive: Client | None = None) -> None:
    """Waits until the fake has removed one member for this reason, and both clusters say the same."""

    def found() -> bool:
        if alive is None:
            run.settle()
        else:
            try:
                run.member_heartbeat(alive, alive.generation)
                run.settle(within=0.5)
            except Difference:  # one has removed it first, and the next heartbeat learns of it from both
                return False
        return [each.why for each in run.fake.removals if each.group == run.group] == [why]

    eventually(found, f"the end of a member: {why}")


def test_the_session_of_a_classic_member_ends(run: Lockstep) -> None:
    leader, other = run.client("leader"), run.client("other", session=SHORT_S)
    run.bring_together(leader, other)
    generation = leader.generation
    removed(run, "session")
    run.heartbeat(leader)
    run.bring_together(leader)
    assert leader.generation == generation + 1


@pytest.mark.parametrize("instance", [None, "i1"], ids=["dynamic", "static"])
def test_a_member_that_does_not_join_again_is_lost_at_the_rebalance_timeout(
    run: Lockstep, instance: str | None
) -> None:
    leader, other = run.client("leader", rebalance=SHORT_S), run.client("other", instance, rebalance=SHORT_S)
    run.bring_together(leader, other)
    began, former = time.monotonic(), leader.generation
    leader.version += 1  # another subscription begins a rebalance
    run.join(leader)

    def next_generation() -> bool:
        run.settle()
        return leader.generation > former

    eventually(next_generation, "the next generation")
    run.bring_together(leader)
    removed(run, "rebalance timeout")
    # A static member stays in the next generation, and is lost if it does not sync in it either.
    assert time.monotonic() - began > SHORT_S * (1 if instance is None else 2)


def test_a_member_that_does_not_sync_is_lost_at_the_rebalance_timeout(run: Lockstep) -> None:
    leader, other = run.client("leader", rebalance=SHORT_S), run.client("other", rebalance=SHORT_S)
    run.bring_together(leader)
    while other.needs == "join":
        run.bring_together(leader) if leader.needs else run.heartbeat(leader)
        if not other.parked:
            run.join(other)
        run.settle()
    run.bring_together(leader)
    removed(run, "rebalance timeout")


@pytest.mark.parametrize("leaves", [False, True], ids=["silent", "left for now"])
def test_the_session_of_a_static_member_with_the_protocol_of_kip_848_ends(
    run: Lockstep, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr(run.fake, "session_timeout", MEMBER_SESSION_S)
    setting = {"consumer.session.timeout.ms": f"{MEMBER_SESSION_S * 1000:.0f}"}
    with kafka.admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, run.group, configs=setting)])
    alive, other = run.client("alive"), run.client("other", "i1")
    for member in (alive, other):
        run.member_heartbeat(member, 0)
    if leaves:
        run.member_heartbeat(other, -2)
    removed(run, "session", alive)


def test_a_member_that_does_not_give_up_its_partitions_is_lost_at_its_rebalance_timeout(run: Lockstep) -> None:
    owner, other = run.client("owner", rebalance=MEMBER_SESSION_S / 2), run.client("other")
    for member in (owner, other):
        run.member_heartbeat(member, 0)
    run.member_heartbeat(owner, owner.generation)
    removed(run, "rebalance timeout", other)


def test_the_epochs_of_members_that_subscribe_to_no_topic(run: Lockstep) -> None:
    first, second = run.client("first"), run.client("second")
    first.topics = second.topics = ()  # as of a pattern that matches nothing
    run.member_heartbeat(first, 0)
    assert first.generation == 1
    run.member_heartbeat(second, 0)
    run.member_heartbeat(first, first.generation)
    run.member_heartbeat(second, -1)
    first.topics = ("a",)
    run.member_heartbeat(first, 0)
    run.settle()
