"""Members that come, stop and are killed at random under load: nothing is lost, and in order nothing is repeated."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_group_source.offsets import BatchOffset, OffsetRange
from spark_group_source.testing import EmbeddedKafka
from tests.integration.commit_log import backward
from tests.integration.query_process import QueryProcess, eventually, source_options
from tests.integration.standing import caught_up, shorten_sessions
from tests.integration.test_mixed_group import Consumer, Java, KafkaPython, Librdkafka

pytestmark = pytest.mark.slow

PARTITIONS = 8
EVENTS = 20
DURATION_S = float(os.environ.get("CHAOS_SECONDS", "300"))
RATE = 20_000
MOST_UNSENT = 50_000
"""Records that wait for the broker; librdkafka refuses more than 100,000."""
MOST_MEMBERS = 3
STEP_S = 0.05
CATCH_UP_S = 300.0
VALUE = b"x" * 20
COLUMNS = "partition int, offset long"

Offsets = dict[int, npt.NDArray[np.int64]]
"""Offsets read, by partition."""


@contextmanager
def load(kafka: EmbeddedKafka, topic: str) -> Iterator[list[float]]:
    """Produces :data:`RATE` records a second while it is open; then the rate that was reached is in the list."""
    import confluent_kafka

    ended, reached = threading.Event(), list[float]()

    def produce() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 20, "acks": 1})
        began, sent = time.monotonic(), 0
        while not ended.wait(STEP_S):
            producer.poll(0)
            while sent < RATE * (time.monotonic() - began) and len(producer) < MOST_UNSENT:
                producer.produce(topic, VALUE, partition=sent % PARTITIONS)
                sent += 1
                if sent % 1000 == 0:
                    producer.poll(0)
        reached.append(sent / (time.monotonic() - began))
        producer.flush(CATCH_UP_S)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield reached
    finally:
        ended.set()
        thread.join()


@dataclass
class Swarm:
    """The queries of one group, those that run and those that are gone."""

    work: Path
    options: dict[str, str]
    chance: random.Random
    running: list[QueryProcess] = field(default_factory=list)
    gone: list[QueryProcess] = field(default_factory=list)
    checkpoints: list[Path] = field(default_factory=list)
    open_batches: list[OffsetRange] = field(default_factory=list)
    """What the killed ones had planned last: only this may be read again."""

    def join(self) -> str:
        """A member more: with a new checkpoint, or one whose query was killed."""
        checkpoint = self.checkpoints.pop() if self.checkpoints and self.chance.random() < 0.5 else None
        number = len(self.running) + len(self.gone)
        query = QueryProcess(self.work / f"query-{number}", self.options, checkpoint, schema=COLUMNS)
        self.running.append(query.start())
        return f"{number} joins" + (" with the checkpoint of one that was killed" if checkpoint else "")

    def stop(self) -> str:
        """One stops between two batches."""
        query = self._take()
        query.stop_between_batches()
        return f"{query.work.name} stopped"

    def kill(self) -> str:
        """All processes of one are killed, whatever it does: it may still be joining."""
        query = self._take(read=False)
        query.kill()
        self._killed(query)
        return f"{query.work.name} killed"

    def kill_reader(self) -> str:
        """The process in which the member lives is killed: the query fails."""
        query = self._take()
        os.kill(query.reader(), signal.SIGKILL)
        eventually(lambda: not query.running(), what="the failure of a query without its reader")
        self._killed(query)
        return f"the reader of {query.work.name} killed"

    def _killed(self, query: QueryProcess) -> None:
        checkpoint = Path(json.loads((query.work / "settings.json").read_text())["checkpoint"])
        self.checkpoints.append(checkpoint)
        planned = [each for each in checkpoint.glob("offsets/*") if each.name.isdigit()]
        if planned:
            last = max(planned, key=lambda each: int(each.name))
            self.open_batches += BatchOffset.from_json(json.loads(last.read_text().splitlines()[2])).reads()

    def _take(self, read: bool = True) -> QueryProcess:
        """One to be gone, that has read something if so is asked."""
        query = self.running.pop(self.chance.randrange(len(self.running)))
        self.gone.append(query)
        if read:
            query.until(query.batches, CATCH_UP_S, "a first batch")
        return query

    def offsets(self) -> Offsets:
        """What all attempts at all batches of all queries read."""
        tables = [pq.read_table(each) for each in self.work.glob("query-*/rows/*.parquet")]
        rows = pa.concat_tables(tables)
        partition, offset = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        return {each: offset[partition == each] for each in range(PARTITIONS)}


def churn(swarm: Swarm, kinds: list[Callable[[], str]], seconds: float) -> None:
    """Two members, and then as many events at random times."""
    began = time.monotonic()
    times = sorted(swarm.chance.uniform(0, seconds) for _ in range(EVENTS))
    swarm.join()
    swarm.join()
    for due in times:
        time.sleep(max(0.0, began + due - time.monotonic()))
        most, least = len(swarm.running) >= MOST_MEMBERS, len(swarm.running) <= 1
        kind = swarm.join if least else swarm.chance.choice(kinds if most else [swarm.join, *kinds])
        print(f"{time.monotonic() - began:5.0f} s: {kind()}", flush=True)
    time.sleep(max(0.0, began + seconds - time.monotonic()))


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    """The group protocol of the queries."""
    found: str = request.param
    return found


@pytest.fixture
def swarm(
    tmp_path: Path, kafka: EmbeddedKafka, topic: Callable[..., str], group: str, protocol: str
) -> Iterator[Swarm]:
    seed = int(os.environ.get("CHAOS_SEED", time.time()))
    print(f"CHAOS_SEED={seed}")
    if protocol == "consumer":
        shorten_sessions(kafka, group)
    options = source_options(kafka, topic(partitions=PARTITIONS), group, protocol)
    made = Swarm(tmp_path, options, random.Random(seed))
    yield made
    for each in made.running + made.gone:
        each.kill()


def finish(kafka: EmbeddedKafka, swarm: Swarm) -> None:
    """Lets the members read what is left, and stops them."""
    if not swarm.running:
        swarm.join()
    topic, group = swarm.options["subscribe"], swarm.options["kafka.group.id"]
    took = eventually(lambda: caught_up(kafka, topic, group), CATCH_UP_S, "reading all that is left")
    print(f"all is committed {took:.0f} s after the last record")
    # Who joined last may have found nothing left to read.
    for query in swarm.running:
        query.stop_between_batches()


def repeated(kafka: EmbeddedKafka, swarm: Swarm, more: Offsets | None = None) -> int:
    """How many records were read more than once; fails where one was not read at all."""
    total = again = 0
    offsets = swarm.offsets()
    for partition, end in kafka.end_offsets(swarm.options["subscribe"]).items():
        read = np.concatenate([offsets[partition], more[partition] if more else np.empty(0, np.int64)])
        different = np.unique(read)
        missing = np.setdiff1d(np.arange(end), different)
        assert not missing.size, (
            f"{missing.size} of {end} offsets of partition {partition} were not read: {missing[:5]}"
        )
        assert different.size == end
        again += read.size - end
        total += end
    print(f"{total:,} records, {again:,} of them repeated")
    return again


def assert_only_open_batches_repeated(swarm: Swarm) -> None:
    """No record was read more than once but those that a killed query had planned last."""
    for partition, offsets in swarm.offsets().items():
        different, times = np.unique(offsets, return_counts=True)
        again = different[times > 1]
        for batch in swarm.open_batches:
            if batch.partition == partition:
                again = again[(again < batch.start) | (again >= batch.end)]
        assert not again.size, f"{again.size} records of partition {partition} were read again: {again[:5]}"


def test_killed_members_lose_nothing(kafka: EmbeddedKafka, swarm: Swarm) -> None:
    with load(kafka, swarm.options["subscribe"]) as rate:
        churn(swarm, [swarm.stop, swarm.kill, swarm.kill_reader], DURATION_S)
    print(f"{rate[0]:,.0f} records/s")
    finish(kafka, swarm)
    repeated(kafka, swarm)
    assert_only_open_batches_repeated(swarm)
    assert backward(kafka, swarm.options["kafka.group.id"]) == []


def test_members_that_join_and_leave_in_order_read_every_record_once(kafka: EmbeddedKafka, swarm: Swarm) -> None:
    with load(kafka, swarm.options["subscribe"]) as rate:
        churn(swarm, [swarm.stop], DURATION_S)
    print(f"{rate[0]:,.0f} records/s")
    finish(kafka, swarm)
    assert repeated(kafka, swarm) == 0
    assert backward(kafka, swarm.options["kafka.group.id"]) == []


def test_killed_members_lose_nothing_in_a_group_with_other_clients(
    kafka: EmbeddedKafka, swarm: Swarm, protocol: str
) -> None:
    if protocol == "classic":
        swarm.options["kafka.partition.assignment.strategy"] = "range"
    topic, group = swarm.options["subscribe"], swarm.options["kafka.group.id"]
    with ExitStack() as running:
        others: list[Consumer] = [
            running.enter_context(kind(kafka, topic, group)) for kind in (KafkaPython, Librdkafka, Java)
        ]
        with load(kafka, topic) as rate:
            churn(swarm, [swarm.stop, swarm.kill, swarm.kill_reader], DURATION_S)
        print(f"{rate[0]:,.0f} records/s")
        finish(kafka, swarm)
    places = np.array([place for each in others for place in each.places], np.int64).reshape(-1, 2)
    repeated(kafka, swarm, {each: places[places[:, 0] == each, 1] for each in range(PARTITIONS)})
    assert all(each.places for each in others)
