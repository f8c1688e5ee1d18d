"""Older brokers, other brokers, and a cluster during its upgrade: rows are read once, and restarts continue."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import pytest

from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import OffsetRange
from tests.contract.conftest import BASE, Bench, Query, assert_commits_never_go_backwards, eventually
from tests.fake import FakeKafka, releases


@pytest.fixture(params=releases.ALL)
def older(request: pytest.FixtureRequest, fake: FakeKafka, group: str) -> Iterator[Bench]:
    """Two brokers of one release, or of another maker."""
    fake.offered = dict.fromkeys(fake.brokers, releases.ALL[request.param])
    bench = Bench(fake, fake.create_topic("topic", partitions=4), group, BASE)
    yield bench
    bench.close()
    assert_commits_never_go_backwards(fake)


def offsets(read: list[OffsetRange]) -> list[tuple[int, int]]:
    return sorted((each.partition, offset) for each in read for offset in range(each.start, each.end))


def all_offsets(*counts: int) -> list[tuple[int, int]]:
    return [(number, offset) for number, count in enumerate(counts) for offset in range(count)]


def test_a_query_its_restart_a_new_checkpoint_and_a_rewind(older: Bench) -> None:
    older.produce(3, 2, 1, 4)
    first = older.start().idle()
    assert offsets(first.read) == all_offsets(3, 2, 1, 4)
    first.close()
    assert older.committed() == {0: 3, 1: 2, 2: 1, 3: 4}
    older.produce(1, 1, 1, 1)
    again = older.start(logged=first.end).idle()
    assert offsets(again.read) == [(0, 3), (1, 2), (2, 1), (3, 4)]
    again.close()
    older.produce(1)
    new = older.start().idle()
    assert offsets(new.read) == [(0, 4)]
    new.close()
    older.rewind({0: 1, 3: 3})
    rewound = older.start(logged=new.end).idle()
    assert offsets(rewound.read) == [(0, 1), (0, 2), (0, 3), (0, 4), (3, 3), (3, 4)]


def test_two_members_hand_over_without_a_loss_or_a_repetition(older: Bench) -> None:
    older.produce(5, 5, 5, 5)
    one = older.start()
    one.begin()
    two = older.join()
    one.finish()
    two.driver.await_assignment()
    eventually(lambda: one.idle() and len(one.owns()) == 2 and two.idle() and len(two.owns()) == 2, "the hand-over")
    older.produce(2, 2, 2, 2)
    eventually(lambda: has_read([one, two], 28), "all records")
    assert offsets(one.read + two.read) == all_offsets(7, 7, 7, 7)
    two.close()
    eventually(lambda: one.idle() and len(one.owns()) == 4, "all partitions")


def test_the_successor_of_a_removed_member_repeats_its_batch(older: Bench) -> None:
    older.produce(2, 2, 2, 2)
    one = older.start()
    one.begin()
    older.expire(one)
    one.close()
    two = older.start().idle()
    assert offsets(two.read) == all_offsets(2, 2, 2, 2)


def test_a_run_ends_at_the_ends_of_its_start(older: Bench) -> None:
    older.produce(2, 0, 1)
    run = older.query().start(available_now=True)
    run.begin()
    run.finish()
    older.produce(5)
    run.until_end()
    assert offsets(run.read) == all_offsets(2, 0, 1)


@pytest.mark.one_protocol("classic", reason="only Kafka 4 has the other one")
def test_a_static_member_is_refused_where_the_coordinator_knows_none(on_fake: Bench) -> None:
    on_fake.fake.offered = dict.fromkeys(on_fake.fake.brokers, releases.kafka(2, 1))
    with pytest.raises(GroupSourceError, match=r"'kafka\.group\.instance\.id' needs static members.*Kafka 2\.3"):
        on_fake.start(kafka_group_instance_id="one")


@pytest.mark.one_protocol("classic", reason="Kafka 4 rejects the other one before")
def test_a_broker_that_deletes_the_commits_of_idle_partitions_is_rejected_at_the_start(on_fake: Bench) -> None:
    on_fake.fake.offered = dict.fromkeys(on_fake.fake.brokers, releases.kafka(2, 0))
    with pytest.raises(
        GroupSourceError, match=r"supports version 0 to 4 of OffsetCommitRequest.*Use Kafka 2\.1 or later"
    ):
        on_fake.start()


@pytest.mark.one_protocol("classic", reason="only Kafka 4 has the other one")
def test_a_static_member_joins_where_the_first_versions_with_static_members_are_gone(on_fake: Bench) -> None:
    on_fake.fake.offered = dict.fromkeys(on_fake.fake.brokers, releases.kafka(4, 1) | {11: (7, 9)})
    assert on_fake.start(kafka_group_instance_id="one").idle().owns()


def test_what_brokers_lack_is_one_line_at_the_start(older: Bench, caplog: pytest.LogCaptureFixture) -> None:
    older.start().idle()
    lines = [record.getMessage() for record in caplog.records if "these brokers have no" in record.getMessage()]
    assert len(lines) == any(each[3][1] < 10 for each in older.fake.offered.values())


def has_read(queries: list[Query], records: int) -> bool:
    """Whether the queries have read so many records, together and each up to the end of what it owns."""
    return len([at for query in queries for at in offsets(query.idle().read)]) >= records


@pytest.mark.one_protocol("classic", reason="only Kafka 4 has the other one")
@pytest.mark.real_time(reason="brokers stop and start")
def test_a_rolling_upgrade_from_2_1_to_4_1_loses_and_repeats_nothing(on_fake: Bench) -> None:
    fake = on_fake.fake
    fake.offered = dict.fromkeys(fake.brokers, releases.kafka(2, 1))
    one, two = on_fake.start(), on_fake.start()
    produced = 0
    for release, node in product(((2, 8), (4, 1)), fake.brokers):
        on_fake.produce(1, 1, 1, 1)
        produced += 1
        one.begin()
        fake.offer(node, releases.kafka(*release))
        one.finish()
        restarted = on_fake.query(logged=two.end)
        two.close()
        restarted.read = two.read
        two = restarted.start()
        eventually(partial(has_read, [one, two], 4 * produced), "all records")
    assert offsets(one.read + two.read) == all_offsets(*[produced] * 4)
