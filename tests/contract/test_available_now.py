"""AvailableNow is complete: the run ends when the group's commits have reached its target everywhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.errors import DeadlineExceeded
from spark_group_source.offsets import LATEST, TopicPartition
from spark_group_source.query import available_now
from spark_group_source.query.starts.callback import OffsetsByTopic
from spark_group_source.wire.offset_lookup import ListedOffsets, list_offsets
from tests.contract.conftest import Background, Bench, Query, eventually
from tests.fake import FakeKafka, Fault


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available_now, "POLL_INTERVALS", (0.01, 0.05))


def beside_another(on_fake: Bench, **options: str) -> tuple[Query, Query]:
    """A run that has read its half of what was there, and the other member, in the middle of its batch."""
    other = on_fake.start()
    run = on_fake.join(None, **options)
    on_fake.split(other, run)
    on_fake.produce(5, 5, 5, 5)
    other.begin()
    run.driver.prepare_for_available_now()
    run.run_batch()
    return other, run


def test_a_run_waits_until_another_member_has_committed_its_partitions(on_fake: Bench) -> None:
    other, run = beside_another(on_fake)
    last = Background(run.poll)
    on_fake.await_request("OffsetFetch", 4)
    assert last.waits
    other.finish()
    other.poll()
    assert last.result() == []
    assert on_fake.committed() == {0: 5, 1: 5, 2: 5, 3: 5}


def test_a_run_takes_over_the_partitions_of_a_dead_member(on_fake: Bench) -> None:
    other, run = beside_another(on_fake)
    last = Background(run.poll)
    other.member._leaving.set()  # dies during its batch, without leaving, and its session ends
    other.member._closing.set()
    on_fake.expire(other)
    reads = last.result()
    while reads:
        run.finish()
        reads = run.poll()
    assert on_fake.committed() == {0: 5, 1: 5, 2: 5, 3: 5}
    assert sum(each.size for each in run.read) == 20


def test_a_run_does_not_wait_for_an_empty_partition_without_a_commit(on_fake: Bench, fake: FakeKafka) -> None:
    on_fake.produce(5)
    run = on_fake.query().start(available_now=True)
    run.run_batch()
    # As another client leaves it, which commits only what it has read.
    for number in (1, 2, 3):
        del fake.group(on_fake.group).offsets["topic", number]
    assert run.poll() == []


SHORT = {"kafka_session_timeout_ms": "2000", "kafka_max_poll_interval_ms": "3000"}


def test_a_run_waits_for_a_living_owner_only_as_long_as_the_option_says(
    on_fake: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner is in a batch for longer than a session and a rebalance, and has the same client id as the run."""
    other = on_fake.start(kafka_client_id="etl")
    run = on_fake.join(None, **SHORT, kafka_client_id="etl", availableNowTimeout="12s")
    on_fake.split(other, run)
    on_fake.produce(5, 5, 5, 5)
    run.driver.prepare_for_available_now()
    run.run_batch()
    held = min(other.owns())
    began = time.monotonic()
    with (
        caplog.at_level("INFO"),
        pytest.raises(DeadlineExceeded, match=rf"topic-{held} at 0 of 5.*availableNowTimeout"),
    ):
        run.until_end()
    assert 12.0 < time.monotonic() - began < 13.0
    assert "the run waits for etl at" in caplog.text


def test_two_runs_that_wait_for_each_other_both_end(on_fake: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders answer one after the other: of two runs that begin at once, each may see a later end in the other's."""
    runs = [on_fake.join(), on_fake.join()]
    on_fake.split(*runs)
    on_fake.produce(6, 6, 6, 6)
    looking_up = runs[0]

    def crossed(cluster: Any, specs: Mapping[TopicPartition, int], **given: Any) -> ListedOffsets:
        found = list_offsets(cluster, specs, **given)
        mine = looking_up.owns() if LATEST in specs.values() else set()
        found.offsets = {tp: end - 1 if tp.partition in mine else end for tp, end in found.offsets.items()}
        return found

    monkeypatch.setattr(available_now, "list_offsets", crossed)
    for looking_up in runs:
        looking_up.driver.prepare_for_available_now()
        looking_up.run_batch()

    def end(run: Query) -> None:
        run.until_end()
        run.close()

    for each in [Background(lambda run=run: end(run)) for run in runs]:  # type: ignore[misc]
        each.result()
    assert on_fake.committed() == {0: 6, 1: 6, 2: 6, 3: 6}
    assert sum(each.size for run in runs for each in run.read) == 24


def test_a_waiting_run_lets_spark_go_on_and_gives_up_partitions_meanwhile(on_fake: Bench) -> None:
    """Another source of the query may have a batch, for which the other member waits."""
    other, run = beside_another(on_fake, **SHORT)
    before = run.end
    assert run.poll() == []
    assert run.end.as_json() != before.as_json(), "Spark asks again only after another offset"
    assert not run.me.awaited
    waiting = Background(run.until_end)
    other.finish()
    other.poll()
    waiting.result()
    assert on_fake.committed() == {0: 5, 1: 5, 2: 5, 3: 5}
    assert sum(each.size for each in run.read) == 10


@pytest.mark.parametrize("fault", [Fault(error=14), Fault(error=3)], ids=str)
def test_a_batch_whose_commit_fails_is_committed_before_the_run_ends(on_fake: Bench, fault: Fault) -> None:
    on_fake.produce(5)
    run = on_fake.query().start(available_now=True)
    run.begin()
    on_fake.next("OffsetCommit", fault, times=3)
    run.finish()
    assert run.poll() == []
    assert on_fake.committed() == {0: 5, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("records", "limit", "options", "sizes"),
    [
        (10, 4, {}, [4, 4, 2]),
        # A rest below the minimum of a batch is read too.
        (33, 20, {"minOffsetsPerTrigger": "15", "maxOffsetsPerTrigger": "20"}, [20, 13]),
    ],
    ids=["maximum", "minimum and maximum"],
)
def test_batch_limits_apply_to_a_run_which_also_reads_a_rest_below_the_minimum(
    on_fake: Bench, records: int, limit: int, options: dict[str, str], sizes: list[int]
) -> None:
    on_fake.produce(records)
    run = on_fake.query(None, **options).start(available_now=True)
    found = []
    while reads := run.poll(limit=limit):
        found.append(sum(each.size for each in reads))
        run.finish()
    assert found == sizes
    assert on_fake.committed() == {0: records, 1: 0, 2: 0, 3: 0}


def from_the_beginning(logged: OffsetsByTopic, positions: OffsetsByTopic) -> OffsetsByTopic:
    """A ``startingOffsetsCallback``."""
    return {topic: dict.fromkeys(partitions, 0) for topic, partitions in positions.items()}


def read_by_a_former_query(bench: Bench) -> None:
    """The group has read five records: its commits are where a run that begins now ends."""
    bench.produce(5)
    bench.start().idle().close()
    assert bench.committed()[0] == 5
    bench.fake.commits.clear()  # the test goes back, which the check of all commits would report


@pytest.mark.parametrize("api", ["OffsetFetch", "OffsetCommit"])
def test_a_run_reads_what_its_callback_goes_back_to_although_the_first_lookup_fails(on_fake: Bench, api: str) -> None:
    read_by_a_former_query(on_fake)
    callback = f"{__name__}:{from_the_beginning.__name__}"
    run = on_fake.query(startingOffsetsCallback=callback, offsetCommit_retryIntervalMs="1000")
    on_fake.next(api, Fault(error=14), times=2)
    run.start(available_now=True).until_end()
    assert sum(each.size for each in run.read) == 5
    assert on_fake.committed()[0] == 5


MOVES_BACK = {
    "reset": {"resetOffsetsOnStart": "true"},
    "callback": {"startingOffsetsCallback": f"{__name__}:{from_the_beginning.__name__}"},
}


@pytest.mark.parametrize("options", MOVES_BACK.values(), ids=MOVES_BACK)
def test_a_run_that_moves_back_does_not_end_before_its_first_assignment(
    on_fake: Bench, options: dict[str, str]
) -> None:
    read_by_a_former_query(on_fake)
    run = on_fake.query(None, **options)
    on_fake.next("JoinGroup", Fault(delay=3.0))
    run.driver.start(run.end)
    run.driver.prepare_for_available_now()
    run.until_end()
    assert sum(each.size for each in run.read) == 5


@pytest.mark.parametrize("options", MOVES_BACK.values(), ids=MOVES_BACK)
def test_a_run_that_moves_back_waits_for_the_partitions_of_a_dead_member(
    on_fake: Bench, options: dict[str, str]
) -> None:
    on_fake.produce(5)
    dead = on_fake.start().idle()
    dead.member._leaving.set()
    dead.member._closing.set()
    on_fake.fake.commits.clear()
    run = on_fake.query(None, **options)
    run.driver.start(run.end)
    run.driver.prepare_for_available_now()
    end = Background(run.until_end)
    on_fake.await_request("OffsetFetch", 3)
    assert end.waits
    on_fake.expire(dead)
    end.result()
    assert sum(each.size for each in run.read) == 5


def test_a_run_that_may_move_back_ends_if_the_others_own_everything(on_fake: Bench) -> None:
    on_fake.produce(5)
    others = [on_fake.start() for _ in range(4)]
    on_fake.split(*others, meanwhile=lambda: [each.advance() for each in others])
    for each in others:
        each.idle()
    run = on_fake.join(None, **MOVES_BACK["reset"])
    eventually(lambda: run.driver._member.await_assignment(Deadline.after(1.0)), "an assignment")
    run.driver.prepare_for_available_now()
    if not run.owns():
        run.until_end()
        assert run.read == []
