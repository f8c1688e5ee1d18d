"""The target of an AvailableNow run, on a clock that the test sets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.errors import (
    BrokerUnavailable,
    DataLoss,
    DeadlineExceeded,
    GroupError,
    GroupSourceError,
    TopicError,
)
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import COMMIT_TAG, CommittedOffset
from spark_group_source.group.description import GroupDescription, MemberDescription
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query import available_now
from spark_group_source.query.available_now import AvailableNowTarget
from spark_group_source.query.offset_tracker import UNDECIDED
from spark_group_source.wire.identity import ClusterIdentity
from spark_group_source.wire.metadata import Metadata, Topic
from spark_group_source.wire.offset_lookup import ListedOffsets
from spark_group_source.wire.stale_metadata import CONFIRM_TIMEOUT
from spark_group_source.wire.wire_options import WireOptions
from tests.unit.hand_clock import Hand

A, B, NEW = (TopicPartition("t", number) for number in range(3))
ME = Membership(member_id="me")
SETTINGS = GroupSettings("g", Subscription(("t",)), WireOptions(()), session_timeout=40.0, rebalance_timeout=60.0)


class World:
    """The cluster, the group and the time of one test."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.identity = ClusterIdentity()
        self.logs = {A: (0, 10), B: (3, 3)}
        self.offsets: dict[TopicPartition, int] = {}
        self.refused: RequestFailed | None = None
        self.unstable: set[TopicPartition] = set()
        """Partitions whose offset another program commits in a transaction that is still open."""
        self.trouble: GroupSourceError | None = None
        self.missing: set[TopicPartition] = set()
        self.silent: set[TopicPartition] = set()
        self.topic_error = 0
        self.lagging: set[TopicPartition] = set()
        """Partitions that broker 0 does not know yet."""
        self.brokers = [0]
        self.silent_until = {0: 0.0, 1: 0.0}
        """When each broker answers again."""
        self.looks = 0
        self.group: GroupDescription | RequestFailed = GroupDescription("Stable", "range", ())
        self.markers: dict[TopicPartition, set[int]] = {}
        """Offsets that no consumer gets, and with a negative sign those that only read_committed hides."""
        self.scanned: list[OffsetRange] = []
        self.scans_fail = False
        self.tagged = False

    @property
    def options(self) -> WireOptions:
        return WireOptions(())

    def metadata(self, *_: Any) -> Metadata:
        self.looks += 1
        return self._known_to(0)

    def _known_to(self, broker: int) -> Metadata:
        known = self.logs.keys() - (self.lagging if broker == 0 else set())
        partitions = {} if self.topic_error else {tp.partition: 1 for tp in known}
        return Metadata({}, {"t": Topic("t", "id", partitions, error=self.topic_error)})

    def broker_ids(self) -> list[int]:
        return self.brokers

    def metadata_from(self, broker: int, *_: Any) -> Metadata:
        if self.hand.now < self.silent_until[broker]:
            raise BrokerUnavailable("No answer.")
        return self._known_to(broker)

    def describe(self, _: Any) -> GroupDescription | RequestFailed:
        return self.group

    def committed(
        self, partitions: Iterable[TopicPartition], _: Any, unavailable: dict[TopicPartition, RequestFailed]
    ) -> dict[TopicPartition, CommittedOffset] | RequestFailed:
        text = COMMIT_TAG if self.tagged else ""
        known = {tp for tp in partitions if tp in self.offsets}
        unavailable |= dict.fromkeys(known & self.unstable, RequestFailed(ErrorAction.RETRY, "UNSTABLE_OFFSET_COMMIT"))
        return self.refused or {tp: CommittedOffset(self.offsets[tp], text) for tp in known - self.unstable}

    def list_offsets(self, _: Any, wanted: Mapping[TopicPartition, int], *, partial: bool, **__: Any) -> ListedOffsets:
        assert partial
        if self.trouble is not None and wanted:
            raise self.trouble
        answering = wanted.keys() - self.missing - self.silent
        offsets = {tp: self.logs[tp][2 + wanted[tp] if wanted[tp] == -2 else 1] for tp in answering}
        return ListedOffsets(offsets, missing=self.missing & wanted.keys())

    def with_records(
        self, ranges: Sequence[OffsetRange], wire: WireOptions, *, read_committed: bool, **more: object
    ) -> set[TopicPartition]:
        if self.scans_fail:
            raise DeadlineExceeded("No answer.")
        assert more["identity"] is self.identity
        self.scanned += ranges
        hidden = {tp: {abs(at) for at in found if at >= 0 or read_committed} for tp, found in self.markers.items()}
        return {each.tp for each in ranges if set(range(each.start, each.end)) - hidden.get(each.tp, set())}


def pause_with(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    # For this module alone: a thread of an earlier test may be sleeping as well.
    monkeypatch.setattr(available_now, "time", SimpleNamespace(sleep=sleep))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(available_now, "list_offsets", made.list_offsets)
    monkeypatch.setattr("spark_group_source.fetch.visible.with_records", made.with_records)
    pause_with(monkeypatch, made.hand.sleep)
    return made


def make(
    world: World,
    fail_on_data_loss: bool = True,
    settings: GroupSettings = SETTINGS,
    me: Membership = ME,
    **options: str,
) -> AvailableNowTarget:
    clients = KafkaClients(world, world)  # type: ignore[arg-type]
    given = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "subscribe": "t"}
    parsed = parse_options(given | {"failOnDataLoss": str(fail_on_data_loss).lower()} | options)
    return AvailableNowTarget(clients, settings, lambda: me, parsed, world.hand)


def wait(target: AvailableNowTarget, world: World, seconds: float) -> None:
    """Looks again and again for so long."""
    until = world.hand.now + seconds
    while world.hand.now < until:
        assert not target.is_reached()
        target.wait()


OTHER = MemberDescription("m-2", "other", "10.0.0.2", partitions=frozenset({A}))


@pytest.fixture
def target(world: World) -> AvailableNowTarget:
    made = make(world)
    made.set_once()
    return made


def test_the_target_is_the_end_offsets_of_the_first_lookup(world: World, target: AvailableNowTarget) -> None:
    world.logs = {A: (0, 50), B: (3, 60), NEW: (0, 70)}
    target.set_once()
    assert target.limit({A: 50, B: 60, NEW: 70}) == {A: 10, B: 3, NEW: 0}


def test_the_target_has_partitions_that_only_some_brokers_know(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lagging = world.metadata()
    world.logs[NEW] = (0, 70)
    monkeypatch.setattr(world, "broker_ids", lambda: [0, 1])
    monkeypatch.setattr(world, "metadata_from", lambda broker, *_: lagging if broker == 0 else World.metadata(world))
    monkeypatch.setattr(world, "metadata", lambda *_: lagging)
    target = make(world)
    target.set_once()
    assert target.limit({A: 50, B: 60, NEW: 90}) == {A: 10, B: 3, NEW: 70}


@pytest.mark.parametrize("trouble", ["no leader", "unknown partition", "topic error", "unknown topic", "no broker"])
def test_retriable_errors_leave_nothing_out(world: World, trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.silent = {A} if trouble == "no leader" else set()
    world.missing = {A} if trouble == "unknown partition" else set()
    world.topic_error = {"topic error": 5, "unknown topic": 3}.get(trouble, 0)
    world.trouble = BrokerUnavailable("No broker.") if trouble == "no broker" else None

    def heal(seconds: float) -> None:
        world.hand.now += seconds
        world.silent, world.missing, world.topic_error, world.trouble = set(), set(), 0, None

    pause_with(monkeypatch, heal)
    target = make(world)
    target.set_once()
    assert target.limit({A: 50, B: 60}) == {A: 10, B: 3}


def test_a_commit_in_an_open_transaction_hides_no_progress_of_other_partitions(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.logs = {A: (0, 10), B: (0, 10)}
    world.offsets, world.unstable = {A: 10, B: 10}, {A}
    target = make(world)
    target.set_once()
    assert not target.is_reached()
    assert target.unreached == {A: 10}
    assert not caplog.text
    world.unstable = set()
    assert target.is_reached()


def test_a_commit_that_hides_in_a_transaction_is_where_it_was(world: World, target: AvailableNowTarget) -> None:
    world.offsets = {A: 4}
    assert not target.is_reached()
    world.unstable = {A}
    assert not target.is_reached()
    assert target._committed == {A: 4}, "and when it is back, that is no progress"


@pytest.mark.parametrize("what", ["t-0", "t"])
def test_a_deleted_topic_is_data_loss_or_left_out(world: World, what: str, caplog: pytest.LogCaptureFixture) -> None:
    world.missing, world.topic_error = ({A}, 0) if what == "t-0" else (set(), 3)
    with pytest.raises(DataLoss, match=f"{what} does not exist any more"):
        make(world).set_once()
    target = make(world, fail_on_data_loss=False)
    target.set_once()
    assert f"{what} does not exist any more" in caplog.text
    assert target.limit({A: 50, B: 60}) == ({A: 0, B: 3} if what == "t-0" else {A: 0, B: 0})


def test_a_partition_deleted_during_the_run_is_data_loss_or_skipped_with_a_warning(
    world: World, target: AvailableNowTarget, caplog: pytest.LogCaptureFixture
) -> None:
    skipping = make(world, fail_on_data_loss=False)
    skipping.set_once()
    assert not target.is_reached()
    assert not skipping.is_reached()
    world.missing = {A}
    with pytest.raises(DataLoss, match="t-0 does not exist any more.*failOnDataLoss"):
        target.is_reached()
    assert skipping.is_reached()
    assert "t-0 does not exist any more" in caplog.text
    assert skipping.limit({A: 50}) == {A: 0}, "a recreated partition is not part of this run"


@pytest.mark.parametrize(("committed", "at"), [({A: 4}, "4"), ({B: 3}, "no commit")], ids=["a commit", "no leader"])
def test_without_progress_the_run_waits_for_a_session_and_a_rebalance(
    world: World, target: AvailableNowTarget, committed: dict[TopicPartition, int], at: str
) -> None:
    world.offsets = committed
    world.silent = {A} - committed.keys()
    wait(target, world, 99.0)
    with pytest.raises(DeadlineExceeded, match=f"'g'.*10. s, and no other member owns the rest: t-0 at {at} of 10"):
        wait(target, world, 4.0)


def test_a_long_batch_of_the_run_is_no_time_without_progress(world: World, target: AvailableNowTarget) -> None:
    world.offsets = {A: 4}
    for _ in range(3):
        wait(target, world, 10.0)
        world.hand.now += 500.0
    wait(target, world, 40.0)


def test_a_run_waits_without_limit_for_a_living_member_that_owns_the_rest(
    world: World, target: AvailableNowTarget, caplog: pytest.LogCaptureFixture
) -> None:
    world.offsets, world.group = {A: 4}, GroupDescription("Stable", "range", (OTHER,))
    with caplog.at_level(logging.INFO):
        wait(target, world, 1_000.0)
    assert "the run waits for other at 10.0.0.2: t-0 at 4 of 10" in caplog.text
    world.group = GroupDescription("PreparingRebalance", "", (replace(OTHER, partitions=frozenset()),))
    wait(target, world, 1_000.0)
    mine = replace(OTHER, member_id="me")
    world.group = GroupDescription("Stable", "range", (mine, replace(OTHER, partitions=frozenset({B}))))
    with pytest.raises(DeadlineExceeded, match="no other member owns the rest"):
        wait(target, world, 120.0)


def test_between_the_rebalances_of_a_hand_over_nobody_owns_the_rest_for_as_long_as_a_batch_takes(world: World) -> None:
    target = make(world, settings=replace(SETTINGS, session_timeout=4.0, rebalance_timeout=6.0))
    target.set_once()
    world.offsets, world.group = {A: 4}, GroupDescription("Stable", "range", (OTHER,))
    wait(target, world, 9.0)
    world.group = GroupDescription("Stable", "range", (replace(OTHER, partitions=frozenset()),))
    wait(target, world, 8.0)
    with pytest.raises(DeadlineExceeded, match="no other member owns the rest"):
        wait(target, world, 4.0)


def test_a_run_does_not_end_while_the_group_has_gone_back_behind_its_target(world: World) -> None:
    world.logs[B] = (3, 7)
    world.offsets = {A: 10}
    target = make(world)
    target.set_once()
    assert not target.is_reached()
    world.offsets = {A: 4, B: 7}
    assert not target.is_reached()
    assert target.unreached == {A: 10}
    world.offsets[A] = 10
    assert target.is_reached()


def test_a_run_does_not_end_before_an_empty_partition_is_reset(world: World, target: AvailableNowTarget) -> None:
    world.offsets = {A: 10}
    assert not target.is_reached({B: UNDECIDED})
    assert target.unreached == {B: 3}
    assert target.is_reached()


@pytest.mark.parametrize(
    ("hidden", "isolation"), [(9, "read_uncommitted"), (9, "read_committed"), (-9, "read_committed")]
)
def test_a_partition_is_read_if_no_record_follows_its_commit(world: World, hidden: int, isolation: str) -> None:
    """As librdkafka commits, before the marker of the last transaction."""
    world.offsets, world.group, world.markers = {A: 9, B: 3}, GroupDescription("Stable", "", (OTHER,)), {A: {hidden}}
    target = make(world, **{"kafka.isolation.level": isolation})  # type: ignore[arg-type]
    target.set_once()
    wait(target, world, available_now.SCAN_AFTER)
    until = world.hand.now + 3.0
    while not target.is_reached():
        assert world.hand.now < until
        target.wait()
    assert world.scanned == [OffsetRange(*A, 9, 10)]


def test_what_only_another_client_skips_is_left_where_this_source_has_committed(world: World) -> None:
    world.markers, world.group = {A: {-9}}, GroupDescription("Stable", "", (OTHER,))
    target = make(world)
    target.set_once()
    for tagged, reached in ((True, False), (False, True)):
        world.tagged = tagged
        world.offsets = {A: 9, B: 3}
        seen = False
        until = world.hand.now + 20.0
        while world.hand.now < until and not seen:
            seen = target.is_reached()
            target.wait()
        assert seen == reached


def test_a_long_tail_is_scanned_in_parts_and_one_with_records_once(world: World) -> None:
    world.logs[A] = (0, 20_000)
    world.offsets, world.group = {A: 10, B: 3}, GroupDescription("Stable", "", (OTHER,))
    world.markers = {A: set(range(10, 19_999))}
    target = make(world)
    target.set_once()
    wait(target, world, 60.0)
    assert [(each.start, each.end) for each in world.scanned] == [
        (10, 110),
        (110, 1110),
        (1110, 11_110),
        (11_110, 20_000),
    ]
    world.offsets[A] = 19_999
    assert not target.is_reached()
    world.markers[A].add(19_999)
    world.offsets[A] = 15_000
    wait(target, world, available_now.SCAN_AFTER)
    until = world.hand.now + 10.0
    while not target.is_reached():
        assert world.hand.now < until
        target.wait()


def test_what_retention_has_deleted_after_the_commit_is_not_waited_for(world: World) -> None:
    world.offsets, world.group = {A: 4, B: 3}, GroupDescription("Stable", "", (OTHER,))
    target = make(world)
    target.set_once()
    world.logs[A] = (10, 10)
    wait(target, world, available_now.SCAN_AFTER)
    until = world.hand.now + 3.0
    while not target.is_reached():
        assert world.hand.now < until
        target.wait()
    assert world.scanned == []


def test_a_scan_that_fails_is_repeated(world: World) -> None:
    world.offsets, world.group, world.markers = {A: 9, B: 3}, GroupDescription("Stable", "", (OTHER,)), {A: {9}}
    target = make(world)
    target.set_once()
    world.scans_fail = True
    wait(target, world, 30.0)
    world.scans_fail = False
    until = world.hand.now + 10.0
    while not target.is_reached():
        assert world.hand.now < until
        target.wait()


def test_a_run_fails_if_a_partition_with_commits_has_neither_a_leader_nor_an_owner(
    world: World, target: AvailableNowTarget
) -> None:
    world.offsets, world.trouble = {A: 4, B: 3}, BrokerUnavailable("No leader.")
    with pytest.raises(DeadlineExceeded, match="no other member owns the rest: t-0 at 4 of 10. Check that these part"):
        wait(target, world, 120.0)


def test_records_that_retention_removes_while_the_run_waits_for_them_end_the_wait(world: World) -> None:
    world.offsets, world.group = {A: 4, B: 3}, GroupDescription("Stable", "", (OTHER,))
    target = make(world)
    target.set_once()
    wait(target, world, 30.0)
    assert len(world.scanned) == 1
    world.logs[A] = (10, 10)
    until = world.hand.now + 90.0
    while not target.is_reached():
        assert world.hand.now < until
        target.wait()


def test_what_this_query_owns_is_not_scanned(world: World) -> None:
    world.offsets, world.markers = {A: 9, B: 3}, {A: {9}}
    target = make(world, me=Membership(member_id="me", owned={A: 1}))
    target.set_once()
    wait(target, world, 30.0)
    assert world.scanned == []


def test_a_run_does_not_end_while_a_lower_start_of_its_own_is_not_committed(
    world: World, target: AvailableNowTarget
) -> None:
    world.offsets = {A: 10, B: 3}
    assert not target.is_reached({A: 4})
    assert target.unreached == {A: 10}
    assert target.is_reached({A: 10}), "it is to be committed again for its tag"


def test_a_start_that_is_not_committed_ends_no_run_although_it_is_at_the_target(
    world: World, target: AvailableNowTarget
) -> None:
    world.offsets, world.silent = {B: 3}, {A}
    assert not target.is_reached({A: 10})


def test_what_a_waiting_run_reads_beyond_its_target_is_no_progress(world: World) -> None:
    world.logs[B] = (3, 7)
    world.offsets = {A: 10}
    world.group = GroupDescription("Stable", "range", (replace(OTHER, partitions=frozenset({B})),))
    target = make(world, availableNowTimeout="10m")
    target.set_once()
    wait(target, world, 300.0)
    target.wait()
    assert target.limit({A: 14}) == {A: 14}
    assert target.extended
    target.batch_planned(BatchOffset({A: OffsetRange(*A, 10, 14)}))
    wait(target, world, 299.0)
    with pytest.raises(DeadlineExceeded, match="no progress"):
        wait(target, world, 4.0)


@pytest.mark.parametrize("group", ["hidden", "unknown"])
def test_a_run_does_not_fail_while_owners_are_unknown(world: World, target: AvailableNowTarget, group: str) -> None:
    world.offsets = {A: 4}
    hidden = GroupDescription("Unknown", "", (), members_hidden=True)
    world.group = hidden if group == "hidden" else RequestFailed(ErrorAction.REDISCOVER, "moved")
    wait(target, world, 500.0)


@pytest.mark.parametrize("blind", ["group", "logs"])
def test_failed_lookups_neither_end_the_run_nor_count_as_progress(
    world: World, blind: str, caplog: pytest.LogCaptureFixture
) -> None:
    target = make(world, availableNowTimeout="10m")
    target.set_once()
    world.refused = RequestFailed(ErrorAction.REDISCOVER, "moved") if blind == "group" else None
    world.trouble = BrokerUnavailable("No broker.") if blind == "logs" else None
    wait(target, world, 590.0)
    with pytest.raises(DeadlineExceeded, match="t-0 at no commit of 10"):
        wait(target, world, 15.0)
    assert caplog.text.count("cannot look up how far the group has committed") <= 11, "once a minute"


def test_a_fatal_error_ends_the_run_at_once(world: World, target: AvailableNowTarget) -> None:
    world.topic_error = 29
    with pytest.raises(TopicError, match="'t'.*29"):
        make(world).set_once()
    world.topic_error = 0
    assert world.hand.now == 0.0
    world.trouble = DataLoss("Gone.")
    with pytest.raises(DataLoss, match="Gone"):
        target.is_reached()
    world.trouble = None
    world.refused = RequestFailed(ErrorAction.FATAL, "denied", error=GroupError("denied", "Grant it.", error_code=30))
    with pytest.raises(GroupError, match="denied"):
        target.is_reached()


def test_the_interval_between_lookups_grows_without_progress_and_resets_with_it(
    world: World, target: AvailableNowTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    pause_with(monkeypatch, slept.append)
    target.is_reached()
    for _ in range(5):
        target.wait()
    assert slept == [0.1, 0.2, 0.4, 0.8, 1.0]
    world.offsets = {A: 4}
    target.is_reached()
    target.wait()
    assert slept[-1] == 0.1


def test_the_lookup_of_the_target_is_retried_for_a_limited_time(world: World) -> None:
    world.silent = {A}
    with pytest.raises(BrokerUnavailable, match="returns the end of t-0"):
        make(world).set_once()
    assert world.looks > 10
    assert available_now.TARGET_TIMEOUT - 2 < world.hand.now <= available_now.TARGET_TIMEOUT


@pytest.mark.parametrize(("silent_until", "partitions"), [(0.0, {A, B}), (14.0, {A, B}), (1000.0, {A})])
def test_one_broker_of_several_is_not_enough_to_know_which_partitions_exist_unless_the_others_stay_silent(
    world: World, silent_until: float, partitions: set[TopicPartition]
) -> None:
    world.brokers, world.lagging, world.silent_until[1] = [0, 1], {B}, silent_until
    target = make(world)
    target.set_once()
    assert target.partitions == partitions
    assert world.hand.now <= CONFIRM_TIMEOUT + 2
    if silent_until:
        assert world.hand.now >= min(silent_until, CONFIRM_TIMEOUT)
