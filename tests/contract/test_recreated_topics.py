"""A topic that is deleted and recreated at once, again and again: each life is read from its first record."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import TopicAlreadyExistsError

from spark_group_source.query.starts import StartOffsetResolver
from spark_group_source.wire import versions
from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka, Fault

LIVES = 10
PARTITIONS = 20
SEED = 24
"""Chooses the records of each life, and which partitions have no leader at first."""


LATEST, NOT_LEADER = -1, 6
OFTEN = {"kafka_metadata_max_age_ms": "200", "offsetCommit_retryIntervalMs": "50"}

Spans = dict[int, list[tuple[int, int]]]


class Reader:
    """Runs batches of one query after another; each query continues at the checkpoint of the one before."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.queries: list[Query] = []

    def end_batch(self) -> None:
        if self.queries[-1].running is not None:
            self.queries[-1].finish()

    def restart(self) -> None:
        logged = None
        if self.queries:
            self.end_batch()
            self.queries[-1].close()
            logged = self.queries[-1].end
        self.queries.append(self._bench.start(logged, failOnDataLoss="false", **OFTEN))

    def reads(self) -> dict[str, Spans]:
        """Ends the batch and begins another; returns the offsets of all ranges, by the topic's id and partition."""
        self.end_batch()
        self.queries[-1].poll()
        found: dict[str, Spans] = defaultdict(lambda: defaultdict(list))
        for each in [each for query in self.queries for each in query.read]:
            found[each.topic_id][each.partition].append((each.start, each.end))
        return found

    def whole_life(self, before: Collection[str], counts: list[int]) -> str | None:
        """The id of the life that came after those of ``before``, if each of its records is read."""
        new = {id_: spans for id_, spans in self.reads().items() if id_ not in before}
        assert len(new) <= 1, new
        return next((id_ for id_, spans in new.items() if read_whole(spans, counts)), None)


def create(bench: Bench) -> bool:
    try:
        bench.kafka.create_topic(bench.topic, PARTITIONS)
    except TopicAlreadyExistsError:
        return False  # the deletion is not done yet
    return True


def create_without_leaders(fake: FakeKafka, topic: str, leaderless: list[int]) -> dict[int, int]:
    """Creates a topic of which these partitions have no leader; returns who would lead them."""
    with fake._changed:
        fake.create_topic(topic, PARTITIONS)
        leaders = {number: int(fake.logs[topic][number].leader or 1) for number in leaderless}
        for number in leaderless:
            fake.logs[topic][number].leader = None
    return leaders


def read_whole(spans: Spans, counts: list[int]) -> bool:
    """Whether ranges cover each record of a life; fails if they skip or repeat one."""
    for each in spans.values():
        ends = [0, *(end for _, end in each)]
        assert [start for start, _ in each] == ends[:-1], f"skipped or read twice: {dict(spans)}"
    return {number: each[-1][1] for number, each in spans.items()} == {
        number: count for number, count in enumerate(counts) if count
    }


def of_ends(request: Any) -> bool:
    return any(part.timestamp == LATEST for topic in request.topics for part in topic.partitions)


def test_each_life_of_a_topic_is_read_from_its_first_record(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(SEED)
    fake = bench.kafka if isinstance(bench.kafka, FakeKafka) else None
    lives: dict[str, list[int]] = {}
    reader = Reader(bench)
    reader.restart()
    eventually(lambda: len(reader.queries[0].me.owned) == 4, "all partitions")
    for life in range(LIVES):
        if life % 2:
            reader.end_batch()  # otherwise the topic goes during a batch
        bench.kafka.delete_topic(bench.topic)
        # More records than the life before, or fewer: its ends lie behind or before those that were read.
        counts = [chance.choice((0, 3, 7, 12)) for _ in range(PARTITIONS)]
        if fake is None:
            eventually(lambda: create(bench), "the new topic")
            bench.produce(*counts)
        else:
            leaders = create_without_leaders(fake, bench.topic, chance.sample(range(PARTITIONS), life))
            fake.next("ListOffsets", Fault(error=NOT_LEADER, only=of_ends), times=2 * (life % 4))
            bench.produce(*counts)
            enough = fake.request_count("ListOffsets") + 4
            eventually(partial(lambda least: reader.reads() and fake.request_count("ListOffsets") > least, enough))
            for number, node in leaders.items():
                fake.elect(bench.topic, number, leader=node)
        if life % 3 == 2:
            reader.restart()
        id_ = eventually(partial(reader.whole_life, lives.keys(), counts), f"each record of life {life}")
        lives[id_] = counts
    assert len(lives) == LIVES
    for id_, spans in reader.reads().items():
        assert read_whole(spans, lives[id_])
    ends = {number: counts[number] for number in range(10)}
    eventually(lambda: (reader.reads(), bench.committed() == ends)[1], "the commits of the last life")
    if fake is not None:
        fake.commits.clear()  # those of each life begin again


SKIPS = {"failOnDataLoss": "false"} | OFTEN


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
    query, other = on_fake.start(None, **SKIPS), on_fake.query(None, **SKIPS)
    other.driver.start(other.end)
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


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_lagging_broker_with_the_former_id_does_not_make_a_topic_recreated(on_fake: Bench, fail: str) -> None:
    former = recreate(on_fake, 5)
    query = on_fake.start(None, **OFTEN, failOnDataLoss=fail)
    eventually(lambda: len(query.owns()) == 4, "all partitions")
    query.idle()
    read = list(query.read)
    answered: list[Any] = []

    def lags(response: Any) -> None:
        answered.append(response)
        for topic in response.topics:
            topic.topic_id = UUID(former)

    on_fake.fake.next("Metadata", Fault(edit=lags, broker=1), times=1000)
    eventually(lambda: query.idle() and len(answered) > 9, "lookups of the query")
    on_fake.fake.clear_faults()
    assert query.idle().read == read
    assert on_fake.committed() == dict.fromkeys(range(4), 5)


def test_a_start_under_the_former_id_of_a_topic_is_looked_up_again(
    on_fake: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, looked_up = recreate(on_fake, 5), StartOffsetResolver._topic_ids
    answers = [dict.fromkeys([on_fake.topic], former)]

    def lags(resolver: StartOffsetResolver, partitions: Any, *rest: Any) -> dict[str, str]:
        return answers.pop() if partitions and answers else looked_up(resolver, partitions, *rest)

    monkeypatch.setattr(StartOffsetResolver, "_topic_ids", lags)
    query = on_fake.start(None, **OFTEN)
    eventually(lambda: query.idle() and on_fake.committed() == dict.fromkeys(range(4), 5), "the commits")
    assert not answers
