"""What tests do to the fake Kafka, and a real one does not offer: see test_fake_equals_kafka.py for the rest."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafka.protocol import consumer, metadata
from kafka.record import MemoryRecords

from tests.contract.conftest import Background, eventually
from tests.contract.lockstep import fetch_request, list_offsets_request, metadata_request
from tests.fake import FakeKafka
from tests.fake.server import message

NOT_LEADER, LOADING, NOT_COORDINATOR, UNKNOWN_TOPIC = 6, 14, 16, 3


def call(fake: FakeKafka, node: int, request: Any) -> Any:
    request.with_header(correlation_id=1, client_id="client")
    return fake._handler(node)(request.name.removesuffix("Request"), request, 0)


def join(fake: FakeKafka, node: int, member_id: str = "", instance: str | None = None) -> Any:
    request = message(
        consumer.JoinGroupRequest,
        9,
        group_id="group",
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    return call(fake, node, request)


def sync(fake: FakeKafka, member_id: str, generation: int = 1) -> Any:
    request = message(
        consumer.SyncGroupRequest,
        5,
        group_id="group",
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member_id, "assignment": b"all"}],
    )
    return call(fake, 1, request)


def heartbeat(fake: FakeKafka, node: int, member_id: str, generation: int = 1) -> int:
    request = consumer.HeartbeatRequest(
        version=4, group_id="group", generation_id=generation, member_id=member_id, group_instance_id=None
    )
    return int(call(fake, node, request).error_code)


def coordinator(fake: FakeKafka, node: int) -> int:
    request = metadata.FindCoordinatorRequest(version=4, key_type=0, coordinator_keys=["group"])
    return int(call(fake, node, request).coordinators[0].node_id)


def list_offset(fake: FakeKafka, node: int, isolation_level: int = 0, number: int = 0) -> tuple[int, int]:
    found = call(fake, node, list_offsets_request("topic", number, -1, -1, isolation_level)).topics[0].partitions[0]
    return found.error_code, found.offset


def test_the_coordinator_moves_and_tells_what_waits_at_the_former_one() -> None:
    fake = FakeKafka(brokers=2)
    first = join(fake, 1, instance="i1").member_id
    assert sync(fake, first).assignment == b"all"
    waiting = Background(lambda: join(fake, 1, instance="i2"))
    eventually(lambda: len(fake.group("group").members) == 2)
    fake.move_coordinator(2, loading=0.2)
    assert waiting.result().error_code == NOT_COORDINATOR
    assert heartbeat(fake, 1, first) == NOT_COORDINATOR
    assert heartbeat(fake, 2, first) == LOADING
    eventually(lambda: heartbeat(fake, 2, first) == 0, "the end of the loading")
    assert [(each.why, each.member_id[:2]) for each in fake.removals] == [("coordinator moved", "i2")]
    fake.move_coordinator(None)
    assert coordinator(fake, 1) == -1


def test_of_a_request_that_is_sent_again_only_the_latter_has_an_answer() -> None:
    fake = FakeKafka()
    leader = join(fake, 1, instance="i1").member_id
    joining = Background(lambda: join(fake, 1, instance="i2"))
    eventually(lambda: len(fake.group("group").members) == 2)
    join(fake, 1, leader)
    other = joining.result().member_id
    member = fake.group("group").classic.members[other]
    syncs = []
    for _ in range(2):
        before = member.sync
        syncs.append(Background(lambda: sync(fake, other, 2)))
        eventually(lambda before=before: member.sync is not before)  # type: ignore[misc]
    assert syncs[0].result() is None
    sync(fake, leader, 2)
    assert syncs[1].result().error_code == 0


def test_a_broker_with_old_metadata_knows_the_old_topics_and_coordinator() -> None:
    fake = FakeKafka(brokers=2)
    fake.freeze_metadata(2)
    fake.create_topic("topic", partitions=2)
    fake.move_coordinator(2)
    known = [call(fake, node, metadata_request("topic")).topics[0].error_code for node in (1, 2)]
    assert known == [0, UNKNOWN_TOPIC]
    assert [list_offset(fake, node, number=1)[0] for node in (1, 2)] == [NOT_LEADER, UNKNOWN_TOPIC]
    assert [coordinator(fake, node) for node in (1, 2)] == [2, 1]
    fake.thaw_metadata(2)
    assert [list_offset(fake, 2, number=1), coordinator(fake, 2)] == [(0, 0), 2]


def test_a_transaction_holds_back_the_readers_of_committed_records_until_it_ends() -> None:
    fake = FakeKafka()
    fake.create_topic("topic")
    fake.produce("topic", ["before"])
    fake.begin("topic", 0)
    fake.produce("topic", ["in it"])

    def fetched(isolation_level: int) -> list[int]:
        request = fetch_request(UUID(str(fake.ids["topic"])), 0, -1, 0, isolation_level)
        records = MemoryRecords(call(fake, 1, request).responses[0].partitions[0].records)
        batches = iter(records.next_batch, None)
        return [each.base_offset for each in batches]

    assert [(list_offset(fake, 1, level)[1], fetched(level)) for level in (0, 1)] == [(2, [0, 1]), (1, [0])]
    fake.end_transaction("topic", 0)
    assert [(list_offset(fake, 1, level)[1], fetched(level)) for level in (0, 1)] == [(3, [0, 1, 2])] * 2
    fake.advance("topic", 0, 10)
    assert list_offset(fake, 1)[1] == 13


def test_only_a_group_without_members_is_deleted_with_its_offsets() -> None:
    fake = FakeKafka()
    fake.create_topic("topic")
    assert fake.delete_group("group") == 69
    member = join(fake, 1, instance="i1").member_id
    fake.commit("group", {("topic", 0): 5})
    assert [fake.delete_group("group"), fake.delete_offsets("group", [("topic", 0)])] == [68, 86]
    fake.expire("group", member)
    assert fake.delete_offsets("group", [("topic", 0)]) == 0
    assert not fake.group("group").offsets
    assert fake.delete_group("group") == 0
    assert heartbeat(fake, 1, member) == 25
    assert [each.why for each in fake.removals] == ["session"]
