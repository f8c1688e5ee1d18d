"""The fake coordinator of KIP-848 answers heartbeats as a real one does."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import describe_error_code
from spark_group_source.group.consumer_messages import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from spark_group_source.group.coordinator import CoordinatorClient
from tests.contract.conftest import TIMEOUT_S, Bench, coordinator_version, eventually

pytestmark = pytest.mark.one_protocol("consumer", reason="the classic coordinator of the fake is tested with members")


@dataclass
class RawMember:
    """Sends heartbeats and believes nothing: ``epoch`` is the last answered one."""

    bench: Bench
    client: CoordinatorClient
    id: str
    instance: str | None = None
    epoch: int = 0

    def beat(self, epoch: int | None = None, owned: Collection[int] | None = None, **fields: Any) -> Any:
        """Sends a heartbeat with the member's epoch or another; ``owned`` are numbers of the topic's partitions."""
        topic_partitions = None
        if owned is not None:
            topics = self.bench.cluster.metadata([self.bench.topic], Deadline.after(TIMEOUT_S)).topics
            part_of = ConsumerGroupHeartbeatRequest.TopicPartitions
            topic_id = topics[self.bench.topic].id
            topic_partitions = [part_of(version=1, topic_id=topic_id, partitions=sorted(owned))] if owned else []
        response = self.client.call(
            ConsumerGroupHeartbeatRequest(
                version=1,
                group_id=self.bench.group,
                member_id=self.id,
                member_epoch=self.epoch if epoch is None else epoch,
                instance_id=self.instance,
                topic_partitions=topic_partitions,
                **fields,
            ),
            Deadline.after(TIMEOUT_S),
        )
        if not response.error_code:
            self.epoch = response.member_epoch
        return response

    def report(self, epoch: int | None = None, owned: Collection[int] = (), **fields: Any) -> Any:
        """Sends a heartbeat that says everything."""
        timeout = {"rebalance_timeout_ms": 30_000, "subscribed_topic_names": [self.bench.topic]}
        return self.beat(epoch, owned, **timeout, **fields)

    def join(self, **fields: Any) -> Any:
        """Joins; retries while a real coordinator loads."""
        return eventually(lambda: (answer := self.report(0, **fields)).error_code not in (14, 15, 16) and answer)

    def join_alone(self) -> None:
        """Joins as the first member, and waits until the coordinator knows the topic."""
        self.join()
        eventually(lambda: numbers(self.report()) == [0, 1, 2, 3], "all partitions")


def numbers(response: Any) -> list[int] | None:
    """The partitions of the answer's assignment, ``None`` without one."""
    assert not response.error_code, describe_error_code(response.error_code)
    if response.assignment is None:
        return None
    return sorted(number for topic in response.assignment.topic_partitions for number in topic.partitions)


@pytest.fixture
def member(bench: Bench, unique: Callable[[str], str]) -> Callable[..., RawMember]:
    client = CoordinatorClient(bench.cluster, bench.group, "raw")
    return lambda instance=None: RawMember(bench, client, unique("member"), instance)


def test_partitions_move_to_their_new_owner_after_the_old_one_acknowledged(member: Callable[..., RawMember]) -> None:
    first, second = member(), member()
    first.join_alone()
    assert numbers(first.beat()) is None
    before = first.epoch
    assert numbers(second.join()) == []
    kept = numbers(first.beat(owned=range(4)))
    assert (len(kept or ()), first.epoch) == (2, before), "the epoch does not change before the acknowledgement"
    assert numbers(second.beat()) is None
    assert numbers(first.beat()) is None
    assert numbers(first.beat(owned=kept)) is None
    assert first.epoch == second.epoch == before + 1
    assert numbers(second.beat()) == sorted({0, 1, 2, 3} - set(kept or ()))


def test_a_full_report_is_answered_with_the_assignment(member: Callable[..., RawMember]) -> None:
    first = member()
    first.join_alone()
    assert numbers(first.report(owned=range(4))) == [0, 1, 2, 3]


def test_a_heartbeat_whose_answer_was_lost_may_be_sent_again(member: Callable[..., RawMember]) -> None:
    first, second = member(), member()
    first.join()
    assert not first.report(0).error_code
    first.join_alone()
    second.join()
    former = first.epoch
    kept = numbers(first.beat()) or []
    first.beat(owned=kept)
    assert first.epoch == former + 1
    assert numbers(first.report(former, kept)) == kept
    assert first.beat(former).error_code == 110, "without its partitions the former epoch is not known"


@pytest.mark.parametrize("epoch", [0, 99])
def test_another_epoch_is_fenced_until_the_member_leaves(member: Callable[..., RawMember], epoch: int) -> None:
    first, second = member(), member()
    first.join_alone()
    second.join()
    kept = numbers(first.beat()) or []
    first.beat(owned=kept)
    if epoch == 0 and coordinator_version(first.bench) >= (4, 2):
        assert numbers(first.report(epoch)) == kept, "the member joins again at once (KAFKA-19233)"
        return
    assert first.report(epoch).error_code == 110
    assert first.report(epoch).error_code == 110
    assert first.beat(-1).error_code == 0
    assert first.beat(-1).error_code == 25
    assert first.join().error_code == 0


def test_a_static_member_keeps_its_partitions_for_its_next_run(member: Callable[..., RawMember]) -> None:
    first, other = member("one"), member()
    first.join_alone()
    again = member("one")
    assert again.join().error_code == 111
    assert first.beat(-2).member_epoch == -2
    assert numbers(again.join()) == [0, 1, 2, 3]
    first.epoch = again.epoch
    assert first.beat().error_code == 82
    assert other.join().error_code == 0


def test_requests_of_nobody_are_refused(member: Callable[..., RawMember]) -> None:
    nobody = member()
    assert eventually(lambda: (answer := nobody.beat(3)).error_code not in (14, 15, 16) and answer).error_code == 69
    member().join()
    assert nobody.beat(3).error_code == 25
    assert nobody.beat(-1).error_code == 25
    assert nobody.join(server_assignor="none").error_code == 112
    assert nobody.beat(0).error_code == 42, "a join says everything"


def test_a_group_is_described_with_its_members(bench: Bench, member: Callable[..., RawMember]) -> None:
    first, second = member("one"), member()
    first.join_alone()
    second.join()
    client = CoordinatorClient(bench.cluster, bench.group, "describe")
    request = ConsumerGroupDescribeRequest(version=1, group_ids=[bench.group], include_authorized_operations=False)
    (group,) = client.call(request, Deadline.after(TIMEOUT_S)).groups
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Reconciling", "uniform")
    described = {each.member_id: each for each in group.members}
    assert described.keys() == {first.id, second.id}
    one = described[first.id]
    assert (one.instance_id, one.member_epoch, one.subscribed_topic_names) == ("one", first.epoch, [bench.topic])
    assert {topic.topic_name: sorted(topic.partitions) for topic in one.assignment.topic_partitions} == {
        bench.topic: [0, 1, 2, 3]
    }
    target = [
        number for each in group.members for t in each.target_assignment.topic_partitions for number in t.partitions
    ]
    assert sorted(target) == [0, 1, 2, 3]
