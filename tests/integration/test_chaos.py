"""Members that come, stop and are killed at random under load: nothing is lost, and in order nothing is repeated."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_group_source.offsets import BatchOffset
from spark_group_source.testing import EmbeddedKafka
from tests.integration.commit_log import backward
from tests.integration.query_process import Place, PlainQuery, eventually
from tests.integration.standing import Producing, caught_up, places_in, shorten_sessions

pytestmark = pytest.mark.slow

PARTITIONS = 8
EVENTS = 20
DURATION_S = float(os.environ.get("CHAOS_SECONDS", "150"))
MOST_MEMBERS = 3
CATCH_UP_S = 300.0


class Swarm:
    """The queries of one group: ``running`` ones, and the checkpoints of those that are gone."""

    def __init__(self, start: Callable[..., PlainQuery], place: Path, chance: random.Random) -> None:
        self._start, self._place, self.chance = start, place, chance
        self._names: dict[PlainQuery, str] = {}
        self.running: list[PlainQuery] = []
        self._killed: list[str] = []
        self.all: dict[str, PlainQuery] = {}
        """The last run of each checkpoint."""
        self.open: set[Place] = set()
        """What killed ones had planned last: only this may be read again."""

    def join(self) -> str:
        """A member more: with a new checkpoint, or one whose query was killed."""
        name = f"query-{len(self.all)}"
        if self._killed and self.chance.random() < 0.5:
            name = self._killed.pop()
        query = self._start(name)
        self.running.append(query)
        self._names[query], self.all[name] = name, query
        return f"{name} joins"

    def stop(self) -> str:
        """One stops between two batches."""
        query = self._take()
        query.end("stop between batches")
        return f"{self._names[query]} stopped"

    def kill(self) -> str:
        """One is killed, whatever it does: it may still be joining."""
        query = self._take()
        query.kill()
        name = self._names[query]
        self._killed.append(name)
        if planned := [each for each in self._place.glob(f"{name}/offsets/*") if each.name.isdigit()]:
            last = max(planned, key=lambda each: int(each.name))
            for each in BatchOffset.from_json(json.loads(last.read_text())).reads():
                self.open |= {(each.partition, at) for at in range(each.start, each.end)}
        return f"{name} killed"

    def _take(self) -> PlainQuery:
        return self.running.pop(self.chance.randrange(len(self.running)))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("kills", [True, False], ids=["killed", "in order"])
def test_members_that_come_and_go_at_random_lose_nothing_and_repeat_only_the_open_batches_of_killed_ones(
    kafka: EmbeddedKafka,
    topic: Callable[..., str],
    group: str,
    plain: Callable[..., PlainQuery],
    tmp_path: Path,
    protocol: str,
    kills: bool,
) -> None:
    seed = int(os.environ.get("CHAOS_SEED", time.time()))
    print(f"CHAOS_SEED={seed}")
    if protocol == "consumer":
        shorten_sessions(kafka, group)
    name = topic(partitions=PARTITIONS)
    swarm = Swarm(lambda checkpoint: plain(name, checkpoint, protocol=protocol), tmp_path, random.Random(seed))
    with Producing(kafka, name, PARTITIONS):
        began = time.monotonic()
        times = sorted(swarm.chance.uniform(0, DURATION_S) for _ in range(EVENTS))
        swarm.join()
        swarm.join()
        for due in times:
            time.sleep(max(0.0, began + due - time.monotonic()))
            leave = [swarm.stop, swarm.kill] if kills else [swarm.stop]
            most, least = len(swarm.running) >= MOST_MEMBERS, len(swarm.running) <= 1
            event = swarm.join if least else swarm.chance.choice(leave if most else [swarm.join, *leave])
            print(f"{time.monotonic() - began:5.0f} s: {event()}", flush=True)
    took = eventually(lambda: caught_up(kafka, name, group), CATCH_UP_S, "reading all that is left")
    print(f"all is committed {took:.0f} s after the last record")
    for query in swarm.running:
        query.end()
    times_read = Counter(place for query in swarm.all.values() for place in query.every_place())
    assert times_read.keys() == places_in(kafka, name), "every record was read"
    again = {place for place, count in times_read.items() if count > 1}
    print(f"{len(times_read):,} records, {len(again):,} of them repeated")
    assert again <= swarm.open
    assert backward(kafka, group) == []
