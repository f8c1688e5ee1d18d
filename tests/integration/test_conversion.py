"""A group that the brokers convert from one group protocol to the other while its members read."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest

from spark_group_source.lag.client import GroupLagClient
from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver
from spark_group_source.testing import EmbeddedKafka
from tests.conftest import needs_kip_848
from tests.integration.query_process import eventually, source_options
from tests.integration.standing import Producing, caught_up, places_in
from tests.integration.test_mixed_group import Consumer, Librdkafka

pytestmark = [pytest.mark.slow, needs_kip_848]

PARTITIONS = 8
MOST_BATCH_S = 0.5
IDLE_S = 0.01


class Query(Consumer):
    """A query, driven as Spark drives it, with batches that take up to :data:`MOST_BATCH_S`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__()
        parsed = parse_options(options)
        self.driver = Driver(parsed.with_client_id("conversion"), application_id="conversion")

    def _run(self) -> None:
        end = BatchOffset()
        with closing(self.driver):
            self.driver.start(end)
            self.driver.await_assignment()
            while not self._ended.is_set():
                planned = self.driver.plan_batch(end, None)
                if planned == end:
                    time.sleep(IDLE_S)
                    continue
                self.places += [(each.partition, at) for each in planned.reads() for at in range(each.start, each.end)]
                time.sleep(random.uniform(0.0, MOST_BATCH_S))
                end = planned
            self.driver.complete(end)


@dataclass
class Group:
    """A group of two queries and two consumers of librdkafka; ``all`` are those of now and those that are gone."""

    kafka: EmbeddedKafka
    topic: str
    id: str
    assignor: str
    running: ExitStack
    all: list[Consumer] = field(default_factory=list)

    def start(self, position: int, protocol: str, instance: str | None) -> Consumer:
        """Starts the member at a position: the first two are queries."""
        static = {} if instance is None else {"group.instance.id": instance}
        assignor = {"partition.assignment.strategy": self.assignor} if protocol == "classic" else {}
        more = assignor | static
        if position < 2:
            own = {f"kafka.{name}": value for name, value in more.items()}
            member: Consumer = Query(source_options(self.kafka, self.topic, self.id, protocol, **own))
        else:
            member = Librdkafka(self.kafka, self.topic, self.id, protocol, **more)
        self.all.append(self.running.enter_context(member))
        return member

    def settle(self, members: int) -> None:
        """Waits until the group is stable with this number of members, which own all partitions."""
        with closing(GroupLagClient(source_options(self.kafka, self.topic, self.id))) as probe:

            def is_settled() -> bool:
                group = probe.describe()
                counts = [len(each.partitions) for each in group.members]
                return (group.state, len(counts), sum(counts)) == ("Stable", members, PARTITIONS)

            eventually(is_settled, what=f"a stable group of {members} members")

    def protocol(self) -> str:
        """The protocol of the group as the coordinator has it."""
        with closing(GroupLagClient(source_options(self.kafka, self.topic, self.id))) as probe:
            return probe.describe().protocol

    def roll(self, members: list[Consumer], protocol: str, static: bool) -> None:
        """Replaces one member after the other by one with this protocol.

        A static member stops before its successor starts; otherwise the successor is there first.
        """
        for position, former in enumerate(list(members)):
            if static:
                former.__exit__()
                members[position] = self.start(position, protocol, f"instance-{position}")
            else:
                members[position] = self.start(position, protocol, None)
                self.settle(len(members) + 1)
                former.__exit__()
            self.settle(len(members))


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """Ends all members with the test."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("assignor", "static"),
    [("range", False), ("cooperative-sticky", False), ("range", True)],
    ids=["range", "cooperative-sticky", "static"],
)
def test_a_group_is_converted_live_in_both_directions_and_every_record_is_read_once(
    kafka: EmbeddedKafka, topic: Callable[..., str], group: str, running: ExitStack, assignor: str, static: bool
) -> None:
    made = Group(kafka, topic(partitions=PARTITIONS), group, assignor, running)
    with Producing(kafka, made.topic, PARTITIONS):
        members: list[Consumer] = []
        for position in range(4):  # one by one: a query leads the group, because brokers convert no group that
            # librdkafka leads with cooperative-sticky
            members.append(made.start(position, "classic", f"instance-{position}" if static else None))
            made.settle(len(members))
        assert made.protocol() == "classic"
        for protocol in ("consumer", "classic"):
            made.roll(members, protocol, static)
            assert made.protocol() == protocol
    eventually(lambda: caught_up(kafka, made.topic, group), what="reading all")
    for member in members:
        member.__exit__()
    times = Counter(place for member in made.all for place in member.places)
    everything = places_in(kafka, made.topic)
    print(f"{len(everything)} records, {sum(times.values()) - len(times)} of them repeated")
    assert times.keys() == everything, "every record was read"
    assert max(times.values()) == 1, "no record was read twice"
    assert all(member.places for member in members)
    assert all(each.driver.counters.lost == 0 for each in made.all if isinstance(each, Query))
