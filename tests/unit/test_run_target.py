"""The end of an AvailableNow run, on a clock that is turned by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from spark_group_source import run_target
from spark_group_source.errors import BrokerUnavailable, DataLoss, DeadlineExceeded, GroupSourceError
from spark_group_source.fetch.positions import LogOffset
from spark_group_source.group.commits import Committed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.state import Refused
from spark_group_source.group.subscription import Subscription
from spark_group_source.group.verdicts import Verdict
from spark_group_source.offsets import TopicPartition
from spark_group_source.run_target import RunTarget
from spark_group_source.wire.cluster import Metadata, Topic

A, B, NEW = (TopicPartition("t", number) for number in range(3))
SETTINGS = GroupSettings("g", Subscription(("t",)), session_timeout=40.0, rebalance_timeout=60.0)


class World:
    """The cluster, the group and the time of one test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.logs = {A: (0, 10), B: (3, 3)}
        self.offsets: dict[TopicPartition, int] = {}
        self.refused: Refused | None = None
        self.trouble: GroupSourceError | None = None

    def clock(self) -> float:
        return self.now

    def metadata(self, *_: Any) -> Metadata:
        return Metadata({}, {"t": Topic("t", "id", {tp.partition: 1 for tp in self.logs})})

    def committed(self, partitions: Iterable[TopicPartition], _: Any) -> dict[TopicPartition, Committed] | Refused:
        return self.refused or {tp: Committed(self.offsets[tp]) for tp in partitions if tp in self.offsets}

    def log_offsets(self, _: Any, wanted: Mapping[TopicPartition, int], **__: Any) -> dict[TopicPartition, LogOffset]:
        if self.trouble is not None and wanted:
            raise self.trouble
        return {tp: LogOffset(self.logs[tp][2 + at if at == -2 else 1]) for tp, at in wanted.items()}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(run_target, "log_offsets", made.log_offsets)
    return made


@pytest.fixture
def target(world: World) -> RunTarget:
    made = RunTarget(world, world, SETTINGS, False, world.clock)  # type: ignore[arg-type]
    made.freeze()
    return made


def test_the_target_is_what_the_log_held_when_it_was_frozen_first(world: World, target: RunTarget) -> None:
    world.logs = {A: (0, 50), B: (3, 60), NEW: (0, 70)}
    target.freeze()
    assert target.cap({A: 50, B: 60, NEW: 70}) == {A: 10, B: 3, NEW: 0}


def test_it_is_reached_when_every_partition_with_records_is_committed(world: World, target: RunTarget) -> None:
    assert not target.reached()
    world.offsets = {A: 9}
    assert not target.reached()
    world.offsets = {A: 10}
    assert target.reached(), "B holds nothing and may have no commit"


def test_what_was_reached_once_stays_reached(world: World, target: RunTarget) -> None:
    world.offsets = {A: 10}
    assert target.reached()
    world.offsets = {}
    assert target.reached()


def test_a_commit_beyond_the_target_reaches_it(world: World, target: RunTarget) -> None:
    world.offsets = {A: 99}
    assert target.reached()


def test_it_is_waited_for_as_long_as_there_is_progress(world: World, target: RunTarget) -> None:
    for offset in range(1, 10):
        world.now += 99.0
        world.offsets = {A: offset}
        assert not target.reached()


def test_without_progress_a_session_and_a_hand_over_are_waited_for_and_no_longer(
    world: World, target: RunTarget
) -> None:
    world.offsets = {A: 4}
    assert not target.reached()
    world.now = 100.0
    assert not target.reached()
    world.now = 100.1
    with pytest.raises(DeadlineExceeded, match="'g'.*100 s: t-0 at 4 of 10.*does not commit"):
        target.reached()


@pytest.mark.parametrize("blind", ["group", "logs"])
def test_looks_that_fail_count_as_no_progress(world: World, target: RunTarget, blind: str) -> None:
    if blind == "group":
        world.refused = Refused(Verdict.REDISCOVER, "moved")
    else:
        world.trouble = BrokerUnavailable("No broker.")
    assert not target.reached()
    world.now = 100.1
    with pytest.raises(DeadlineExceeded, match="of 10"):
        target.reached()


def test_trouble_that_cannot_heal_ends_the_run(world: World, target: RunTarget) -> None:
    world.trouble = DataLoss("Gone.")
    with pytest.raises(DataLoss):
        target.reached()


def test_pauses_grow_while_nothing_moves_and_begin_anew_when_it_does(
    world: World, target: RunTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    target.reached()
    for _ in range(5):
        target.wait()
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.0]
    world.offsets = {A: 4}
    target.reached()
    target.wait()
    assert slept[-1] == 0.1
