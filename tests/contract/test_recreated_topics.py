"""A topic that is deleted and recreated at once, again and again: each life is read from its first record."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import pytest
from kafka.errors import TopicAlreadyExistsError

from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka, Fault

LIVES = 10
PARTITIONS = 20
SEED = 24
"""Chooses the records of each life, which partitions have no leader at first, and how long batches take."""


LATEST, NOT_LEADER = -1, 6
OFTEN = {"kafka_metadata_max_age_ms": "200", "offsetCommit_retryIntervalMs": "50"}

Spans = dict[int, list[tuple[int, int]]]


class Reader:
    """Runs batches of one query after another on a thread; each query continues at the checkpoint of the one before."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._chance = random.Random(SEED)
        self._stop = threading.Event()
        self._restart = threading.Event()
        self.queries: list[Query] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                logged = self.queries[-1].end if self.queries else None
                self.queries.append(query := self._bench.query(logged, failOnDataLoss="false", **OFTEN))
                query.start()
                self._restart.clear()
                while not self._stop.is_set() and not self._restart.is_set():
                    if query.poll():
                        self._stop.wait(self._chance.choice((0, 0, 0.3)))  # a topic goes during a batch, too
                        query.finish()
                query.close()
        except BaseException as error:
            self.error = error
            raise

    def restart(self) -> None:
        self._restart.set()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def reads(self) -> dict[str, Spans]:
        """Offsets of the ranges of each partition, by the topic's id."""
        found: dict[str, Spans] = defaultdict(lambda: defaultdict(list))
        for each in [each for query in list(self.queries) for each in list(query.read)]:
            found[each.topic_id][each.partition].append((each.start, each.end))
        return found


@contextlib.contextmanager
def reader(bench: Bench) -> Iterator[Reader]:
    with contextlib.closing(Reader(bench)) as started:
        yield started


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


def whole_life(reads: Reader, before: Collection[str], counts: list[int]) -> str | None:
    """The id of the life that came after those of ``before``, if each of its records is read."""
    if reads.error:
        raise reads.error
    new = {id_: spans for id_, spans in reads.reads().items() if id_ not in before}
    assert len(new) <= 1, new
    return next((id_ for id_, spans in new.items() if read_whole(spans, counts)), None)


def of_ends(request: Any) -> bool:
    return any(part.timestamp == LATEST for topic in request.topics for part in topic.partitions)


def test_each_life_of_a_topic_is_read_from_its_first_record(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(SEED)
    fake = bench.kafka if isinstance(bench.kafka, FakeKafka) else None
    lives: dict[str, list[int]] = {}
    with reader(bench) as reads:
        eventually(lambda: reads.error or (reads.queries and len(reads.queries[0].me.owned) == 4), "all partitions")
        for life in range(LIVES):
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
                eventually(partial(lambda least: reads.error or fake.request_count("ListOffsets") > least, enough))
                for number, node in leaders.items():
                    fake.elect(bench.topic, number, leader=node)
            if life % 3 == 2:
                reads.restart()

            id_ = eventually(partial(whole_life, reads, lives.keys(), counts), f"each record of life {life}")
            lives[id_] = counts
        assert len(lives) == LIVES
        for id_, spans in reads.reads().items():
            assert read_whole(spans, lives[id_])
        eventually(
            lambda: bench.committed() == {number: counts[number] for number in range(10)},
            "the commits of the last life",
        )
    if fake is not None:
        fake.commits.clear()  # those of each life begin again
