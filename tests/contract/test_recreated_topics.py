"""A topic that is deleted and recreated at once. On the fake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_group_source.group.commits import GroupOffsets
from spark_group_source.group.membership import RequestFailed
from spark_group_source.wire import versions
from tests.contract.conftest import Bench, eventually
from tests.fake import Fault

SKIPS = {"kafka_metadata_max_age_ms": "200", "failOnDataLoss": "false"}


@pytest.fixture(params=["by id", "by name"])
def commits_name_topics(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits name a topic by its id; brokers before Kafka 4.1 know only its name."""
    if request.param == "by name":
        monkeypatch.setattr(versions, "OFFSET_COMMIT_BY_TOPIC_ID", 99)


def recreate(bench: Bench, count: int) -> str:
    """Recreates the topic with this number of records in each partition; returns the former id."""
    former = str(bench.fake.ids[bench.topic])
    bench.fake.delete_topic(bench.topic)
    bench.fake.create_topic(bench.topic, 4)
    bench.produce(*[count] * 4)
    return former


def assert_new_query_reads(bench: Bench, count: int) -> None:
    """A query that knows nothing of the former topic reads this number of records of each partition."""
    query = bench.start()
    eventually(lambda: len(query.owns()) == 4, "all partitions")
    query.idle()
    assert {each.partition: (each.start, each.end) for each in query.read} == dict.fromkeys(range(4), (0, count))
    bench.fake.commits.clear()  # those of each life begin again


@pytest.mark.usefixtures("commits_name_topics")
def test_a_batch_of_the_former_topic_is_not_committed_to_its_successor(on_fake: Bench) -> None:
    query = on_fake.start_batch(5, 5, 5, 5, **SKIPS)
    recreate(on_fake, 7)
    query.finish()
    query.driver.complete(query.end)
    query.close()
    assert 5 not in on_fake.committed().values()
    assert_new_query_reads(on_fake, 7)


@pytest.mark.one_protocol("classic", reason="with KIP-848 the coordinator revokes a deleted topic")
@pytest.mark.usefixtures("commits_name_topics")
def test_positions_in_both_lives_of_a_topic_are_not_mixed_up_in_one_commit(on_fake: Bench) -> None:
    on_fake.produce(5, 5, 5, 5)
    query, other = on_fake.start(None, **SKIPS), on_fake.join(None, **SKIPS)
    eventually(lambda: len(query.idle().owns()) == len(other.idle().owns()) == 2, "an even split")
    on_fake.produce(1, 1, 1, 1)
    query.begin()
    recreate(on_fake, 9)
    on_fake.next("OffsetCommit", Fault(error=14))  # of the starts in the new topic, which stay pending
    other.close()
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")
    query.finish()
    query.driver.complete(query.end)
    query.close()
    assert set(on_fake.committed().values()) <= {0}
    assert_new_query_reads(on_fake, 9)


def test_a_restart_continues_where_another_query_stands_in_the_recreated_topic(on_fake: Bench) -> None:
    on_fake.produce(5, 5, 5, 5)
    query = on_fake.start(None, **SKIPS).idle()
    query.close()
    recreate(on_fake, 7)
    other = on_fake.start(None, **SKIPS).idle()
    other.close()
    assert on_fake.committed() == dict.fromkeys(range(4), 7)
    on_fake.fake.commits.clear()
    assert on_fake.start(query.end, **SKIPS).idle().read == []
    assert on_fake.committed() == dict.fromkeys(range(4), 7)


def test_a_start_under_the_former_topic_id_is_looked_up_again(on_fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    former, looked_up = [recreate(on_fake, 5)], GroupOffsets.topics

    def lags(offsets: GroupOffsets, names: Any, deadline: Any, **named: Any) -> Any:
        found = looked_up(offsets, names, deadline, **named)
        if not former or isinstance(found, RequestFailed):
            return found
        return {on_fake.topic: replace(found[on_fake.topic], id=former.pop())}

    monkeypatch.setattr(GroupOffsets, "topics", lags)
    query = on_fake.start(kafka_metadata_max_age_ms="200")
    eventually(lambda: query.idle() and on_fake.committed() == dict.fromkeys(range(4), 5), "the commits")
    assert not former
