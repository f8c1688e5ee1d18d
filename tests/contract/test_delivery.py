"""The delivery contract, sentence by sentence (see DESIGN.md), on a fake Kafka and on a real one."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from kafka.errors import TopicAlreadyExistsError

from spark_group_source.errors import OptionError
from spark_group_source.group.commits import COMMIT_TAG
from spark_group_source.offsets import BatchOffset, OffsetRange
from tests.contract.conftest import Bench, Query, eventually
from tests.fake import FakeKafka


def spans(reads: list[OffsetRange]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in reads}


def assert_read_once(*queries: Query) -> None:
    """No query read an offset that another had read."""
    seen: set[tuple[int, int]] = set()
    for query in queries:
        for each in query.read:
            offsets = {(each.partition, offset) for offset in range(each.start, each.end)}
            assert not seen & offsets, f"{each} was read twice"
            seen |= offsets


# 1. Replay is exact


def test_a_batch_replayed_after_a_restart_is_completed_and_not_read_again(bench: Bench) -> None:
    crashed = bench.start_batch(5, 5)
    logged = crashed.running
    assert logged is not None
    crashed.close()
    assert bench.committed() == {0: 0, 1: 0, 2: 0, 3: 0}
    # Spark replays the logged batch from its JSON, then asks for what comes after it.
    again = bench.start(logged)
    assert not again.poll()
    assert bench.committed() == {0: 5, 1: 5, 2: 0, 3: 0}


def test_spark_gets_the_same_batch_until_it_has_completed_it(bench: Bench) -> None:
    bench.produce(5)
    query = bench.start()
    planned = query.driver.plan_batch(query.end, None)
    bench.produce(5)
    assert query.driver.plan_batch(query.end, None) == planned
    assert bench.committed()[0] == 0


def test_the_offset_keeps_the_ends_of_partitions_that_a_batch_does_not_read(bench: Bench) -> None:
    bench.produce(5, 5)
    query = bench.start().idle()
    bench.produce(3)
    query.begin()
    assert query.running is not None
    assert query.running.ends() == {bench.tp(0): 8, bench.tp(1): 5, bench.tp(2): 0, bench.tp(3): 0}


# 2. Only completed work is committed, and all of it


def test_a_batch_is_committed_when_it_is_completed_and_not_before(bench: Bench) -> None:
    query = bench.start_batch(5, 5, 5, 5)
    assert bench.committed() == {0: 0, 1: 0, 2: 0, 3: 0}
    query.finish()
    bench.produce(5)
    assert spans(query.begin()) == {0: (5, 10)}, "the next batch is planned: so Spark has completed the last one"
    eventually(lambda: bench.committed() == {0: 5, 1: 5, 2: 5, 3: 5}, "the commit")
    query.finish()
    assert not query.poll()
    assert bench.committed() == {0: 10, 1: 5, 2: 5, 3: 5}


def test_sparks_commit_also_commits_a_batch(bench: Bench) -> None:
    query = bench.start_batch(5)
    assert query.running is not None
    query.driver.complete(query.running)
    eventually(lambda: bench.committed()[0] == 5, "the commit")


def test_an_idle_query_shows_no_lag(bench: Bench) -> None:
    bench.produce(1, 2, 3, 4)
    query = bench.start()
    while query.poll(limit=2):
        query.finish()
    assert bench.committed() == {0: 1, 1: 2, 2: 3, 3: 4}


# 3. Revocation loses nothing and repeats nothing


def test_revocation_waits_for_the_in_flight_batch_and_no_record_is_read_twice(bench: Bench) -> None:
    first = bench.start_batch(5, 5, 5, 5)
    assert spans(first.read) == dict.fromkeys(range(4), (0, 5))
    second = bench.join_in_mid_batch(first)
    kept = first.owns()
    assert len(kept) == 2
    assert not second.owns()
    first.finish()
    assert not first.poll()
    assert bench.committed() == {0: 5, 1: 5, 2: 5, 3: 5}
    eventually(lambda: second.owns() == {0, 1, 2, 3} - kept, "the other half to move")
    bench.produce(2, 2, 2, 2)
    for query in (first, second):
        query.run_batch()
    eventually(lambda: not first.poll() and not second.poll(), "both to be idle")
    assert_read_once(first, second)
    assert bench.committed() == {0: 7, 1: 7, 2: 7, 3: 7}


def test_a_batch_planned_during_a_pending_revocation_leaves_out_the_revoked_partitions(bench: Bench) -> None:
    bench.produce(5)
    first = bench.start()
    assert spans(first.begin()) == {0: (0, 5)}
    second = bench.join()
    # Three partitions are idle: some move although a batch of the fourth is running.
    eventually(second.owns, "partitions that no batch reads to move")
    assert 0 not in second.owns() or first.me.awaited.isdisjoint(second.me.owned)
    first.finish()
    assert not first.poll()
    eventually(lambda: len(second.owns()) == 2)
    assert bench.committed()[0] == 5


@pytest.mark.needs("static members")
def test_partitions_that_a_static_member_was_revoking_when_it_died_get_an_owner_when_it_returns(bench: Bench) -> None:
    first = bench.start_batch(5, 5, 5, 5, kafka_group_instance_id="one")
    second = bench.join_in_mid_batch(first)
    first.close()  # as if it died: a static member does not leave
    # It gets its last assignment without a rebalance, and that rebalance would have assigned the other partitions.
    again = bench.start(first.end, kafka_group_instance_id="one")
    eventually(lambda: len(again.owns()) == len(second.owns()) == 2, "an owner of every partition")
    assert again.owns() | second.owns() == {0, 1, 2, 3}


def test_revocation_does_not_wait_without_an_in_flight_batch(bench: Bench) -> None:
    bench.produce(5, 5, 5, 5)
    first = bench.start().idle()
    # Spark makes no more calls for the first query from here on.
    second = bench.start()
    eventually(lambda: len(second.owns()) == 2 and len(first.owns()) == 2, "half of the partitions to move")
    assert not second.poll()


def test_closing_during_a_batch_does_not_wait_and_commits_nothing_of_it(bench: Bench) -> None:
    bench.produce(5, 5, 5, 5)
    first, second = bench.start(), bench.query()
    first.begin()
    first.close()
    second.start()
    eventually(lambda: second.owns() == {0, 1, 2, 3}, "everything to move")
    assert spans(second.begin()) == dict.fromkeys(range(4), (0, 5))


@pytest.mark.trap
def test_a_batch_past_the_revocation_timeout_is_not_committed_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.start_batch(5, 5, 5, 5, kafka_max_poll_interval_ms="4000")
    second = bench.query(kafka_max_poll_interval_ms="4000")
    second.start()
    moved = eventually(lambda: len(second.owns()) == 2 and second.owns(), "half to move although the batch runs")
    assert "did not end within the revocation timeout" in caplog.text
    assert "Make batches shorter with targetBatchDuration" in caplog.text
    assert first.driver.counters.revocation_timed_out == 2
    first.finish()
    assert not first.poll()
    (slow,) = [line for line in caplog.messages if "but a revocation waits for at most 2 s" in line]
    took = re.search(r"took (\d+) s .* kafka.max.poll.interval.ms \(now 4000\) above (\d+)\.", slow)
    assert took
    assert 2 <= int(took[1]) < int(took[2]) / 1000
    assert bench.committed() == {number: 0 if number in moved else 5 for number in range(4)}


def test_a_member_does_not_commit_partitions_that_it_lost_during_a_batch(bench: Bench) -> None:
    first = bench.start_batch(5, 5, 5, 5)
    assert spans(first.read) == dict.fromkeys(range(4), (0, 5))
    second = bench.join_in_mid_batch(first)
    bench.expire(first)
    lost = eventually(lambda: second.owns() and not second.owns() & first.owns() and second.owns(), "the loss")
    first.finish()
    assert not first.poll()
    committed = bench.committed()
    lost -= first.owns()  # it has read the partitions it got back by now, and may commit them
    assert lost
    assert {number: committed[number] for number in lost} == dict.fromkeys(lost, 0)
    assert first.driver.counters.lost > 0


# 5. Every owned partition has a committed position at once


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_every_owned_partition_has_a_commit_at_once_also_if_empty(bench: Bench, starting: str) -> None:
    bench.produce(5, 0, 7)
    bench.start(startingOffsets=starting)
    assert bench.committed() == ({0: 0, 1: 0, 2: 0, 3: 0} if starting == "earliest" else {0: 5, 1: 0, 2: 7, 3: 0})


def test_commit_metadata_has_the_tag_then_member_and_application(bench: Bench) -> None:
    bench.produce(5)
    query = bench.start(commitMetadata="true").idle()
    commit = bench.commits()[0]
    assert commit.tagged
    assert json.loads(commit.metadata.removeprefix(COMMIT_TAG)) == {
        "checkpoint": query.end.checkpoint,
        "application": "app",
        "client": "contract-app-0",
        "member": query.me.member_id,
        "generation": query.me.generation,
        "batches": 1,
    }


# 6. Where a newly owned partition starts


def stood_at(bench: Bench, end: int) -> BatchOffset:
    """The offset of a query that has read partitions 0 and 1 up to ``end``, and ended."""
    bench.produce(end, end)
    query = bench.start().idle()
    query.close()
    assert query.end.ends()[bench.tp(0)] == end
    return query.end


def test_a_query_continues_at_a_commit_beyond_its_logged_end(bench: Bench) -> None:
    logged = stood_at(bench, 5)
    bench.produce(5, 5)
    other = bench.start().idle()
    other.close()
    query = bench.start(logged)
    assert not query.poll()
    bench.produce(1)
    assert spans(query.begin()) == {0: (10, 11)}


def test_a_query_continues_at_a_logged_end_beyond_its_own_commit_and_commits_it(bench: Bench) -> None:
    logged = stood_at(bench, 5)
    bench.rewind({0: 2}, COMMIT_TAG)
    query = bench.start(logged)
    assert not query.poll()
    assert bench.committed()[0] == 5


def test_an_operator_may_rewind_to_the_start_of_the_last_batch_again_and_again(bench: Bench) -> None:
    logged = stood_at(bench, 5)
    assert spans(logged.reads()) == {0: (0, 5), 1: (0, 5)}, "one batch"
    both, one = {0: 0, 1: 0}, {0: 0}
    for rewind in (both, both, both, one, one, one):
        bench.rewind(rewind)
        query = bench.start(BatchOffset.from_json(json.loads(json.dumps(logged.as_json())))).idle()
        assert spans(query.read) == dict.fromkeys(rewind, (0, 5))
        query.close()
        assert bench.committed() == {0: 5, 1: 5, 2: 0, 3: 0}
        logged = query.end


@pytest.mark.parametrize(("rewind", "then"), [(2, {}), (4, {}), (1, {0: (1, 5)})])
def test_a_rewind_into_a_batch_that_spark_replays_repeats_nothing_more(
    bench: Bench, rewind: int, then: dict[int, tuple[int, int]]
) -> None:
    logged = stood_at(bench, 5)
    bench.rewind({0: 2})
    crashed = bench.start(logged)
    assert bench.committed()[0] == 2, "the rewind takes precedence over the logged end"
    assert spans(crashed.begin()) == {0: (2, 5)}
    assert crashed.running is not None
    crashed.close()
    bench.rewind({0: rewind})
    # Spark replays the logged batch: it has read everything from 2 on since the operator's commit.
    again = bench.query(crashed.running).start(replayed=True).idle()
    assert spans(again.read) == then
    assert bench.committed()[0] == 5


def further(logged_ends: dict[str, dict[int, int]], starts: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """A ``startingOffsetsCallback`` that moves only the start of a query that was never there."""
    return {topic: {number: 15 for number, at in offsets.items() if at == 10} for topic, offsets in starts.items()}


AT_10 = {"startingOffsets": '{"topic": {"0": 10, "1": 10, "2": 10, "3": 10}}'}
STARTS: dict[str, tuple[int, dict[str, str]]] = {
    "earliest": (0, {}),
    "latest": (20, {"startingOffsets": "latest"}),
    "offsets": (10, AT_10),
    "time": (20, {"startingTimestamp": "1700000000001", "startingOffsetsByTimestampStrategy": "latest"}),
    "callback": (15, AT_10 | {"startingOffsetsCallback": f"{__name__}:further"}),
}


@pytest.mark.parametrize("step", ["assigned", "planned", "completed"])
@pytest.mark.parametrize("reset", ["false", "true"])
@pytest.mark.parametrize("start", STARTS)
def test_a_query_keeps_its_start_after_a_crash_at_any_step(on_fake: Bench, start: str, reset: str, step: str) -> None:
    """Whatever ``startingOffsets`` resolves to by then: records arrive all the while."""
    on_fake.produce(20, 20, 20, 20)
    begin, options = STARTS[start]
    options = options | {"resetOffsetsOnStart": reset}
    crashed = on_fake.start(None, **options)
    on_fake.produce(10, 10, 10, 10)
    if step != "assigned":
        crashed.begin(limit=8)
    logged = crashed.running or crashed.end
    if step == "completed":
        crashed.finish()
        crashed.driver.complete(crashed.end)
    on_fake.expire(crashed)
    crashed.close()
    on_fake.produce(10, 10, 10, 10)
    again = on_fake.query(logged, **options).start(replayed=step == "planned").idle()
    read = sorted((each.partition, at) for each in crashed.read + again.read for at in range(each.start, each.end))
    assert read == [(number, at) for number in range(4) for at in range(begin, 40)]


def go_back(logged_ends: dict[str, dict[int, int]], starts: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """A ``startingOffsetsCallback`` that goes back only from where the group stood before."""
    return {topic: {number: 2 for number, at in offsets.items() if at == 20} for topic, offsets in starts.items()}


@pytest.mark.parametrize(
    ("decision", "first"),
    [("earlier", 0), ("earlier", 1), ("later", 0), ("one earlier", 0), ("reset", 1), ("callback", 0), ("callback", 1)],
)
def test_the_decision_where_a_group_continues_holds_for_every_later_owner(
    bench: Bench, decision: str, first: int
) -> None:
    """Whatever the checkpoints of two queries logged before: they stand at 10 and 20, and ``first`` starts first."""
    bench.produce(40, 40, 40, 40)
    checkpoints = []
    for end in (10, 20):
        query = bench.start()
        query.begin(limit=40)
        query.finish()
        query.driver.complete(query.end)
        query.close()
        assert set(query.end.ends().values()) == {end}
        checkpoints.append(query.end)
    starts, options = dict.fromkeys(range(4), 20), {}
    if decision == "reset":
        starts, options = dict.fromkeys(range(4), 0), {"resetOffsetsOnStart": "true"}
        checkpoints[first] = BatchOffset()
    elif decision == "callback":
        starts, options = dict.fromkeys(range(4), 2), {"startingOffsetsCallback": f"{__name__}:go_back"}
    else:
        rewound = dict.fromkeys([3] if decision == "one earlier" else range(4), 35 if decision == "later" else 2)
        bench.rewind(rewound)
        starts |= rewound
    one = bench.start(checkpoints[first], **options)
    if isinstance(bench.kafka, FakeKafka):
        bench.kafka.commits.clear()  # the decision may go back
    one.begin(limit=1)
    other = bench.join(checkpoints[1 - first])
    one.finish()
    bench.split(one, other, meanwhile=lambda: (one.advance(1), other.advance(1)))
    eventually(lambda: (one.idle(), other.idle(), bench.committed() == dict.fromkeys(range(4), 40))[-1], "all")
    times = Counter((each.partition, at) for each in one.read + other.read for at in range(each.start, each.end))
    assert times == {(number, at): 1 for number, start in starts.items() for at in range(start, 40)}


def test_a_query_with_a_new_checkpoint_continues_at_the_groups_commit(bench: Bench) -> None:
    stood_at(bench, 5)
    bench.produce(1)
    assert spans(bench.start().begin()) == {0: (5, 6)}


@pytest.mark.parametrize(
    ("starting", "reads"),
    [("earliest", {0: (0, 5), 1: (0, 5)}), ("latest", {}), ('{"TOPIC": {"0": 3}, "*": -2}', {0: (3, 5), 1: (0, 5)})],
    ids=["earliest", "latest", "an offset, and the others at earliest"],
)
def test_starting_offsets_apply_without_a_commit_and_a_logged_end(
    bench: Bench, starting: str, reads: dict[int, tuple[int, int]]
) -> None:
    bench.produce(5, 5)
    query = bench.start(startingOffsets=starting.replace("TOPIC", bench.topic))
    assert spans(query.poll()) == reads


def moved(bench: Bench, **offsets: int) -> str:
    """The position of another query, as ``offsets_of_checkpoint`` returns it; ``p0=3`` is offset 3 of partition 0."""
    return json.dumps({bench.topic: {name[1:]: offset for name, offset in offsets.items()}, "*": -2})


def test_prior_commits_of_the_group_refuse_a_query_that_is_moved_to_it(bench: Bench) -> None:
    stood_at(bench, 5)  # a trial
    bench.produce(5)
    start = moved(bench, p0=7, p1=5)
    with pytest.raises(OptionError, match=rf"{bench.topic}-0 at 5 and not 7, {bench.topic}-2 at 0 and not -2.*a new"):
        bench.start(startingOffsets=start)
    assert bench.committed()[0] == 5
    bench.close()
    reset = bench.start(startingOffsets=start, resetOffsetsOnStart="true")
    assert spans(reset.poll()) == {0: (7, 10)}


@pytest.mark.parametrize("metadata", ["false", "true"])
def test_a_moved_query_that_loses_its_checkpoint_continues_at_its_commits(bench: Bench, metadata: str) -> None:
    bench.produce(5, 5)
    options = {"startingOffsets": moved(bench, p0=3, p1=5), "commitMetadata": metadata}
    bench.start(None, **options).idle()
    bench.close()
    bench.produce(1)
    assert spans(bench.start(None, **options).begin()) == {0: (5, 6)}


def test_a_moved_query_takes_partitions_over_from_a_member_without_its_starting_offsets(bench: Bench) -> None:
    query = bench.start(startingOffsets=moved(bench, p0=0))
    other = bench.start()
    eventually(lambda: (query.idle(), len(query.owns()) == len(other.owns()) == 2)[1], "an even split")
    bench.produce(3, 4, 5, 6)
    other.run_batch()
    other.idle()
    other.close()
    eventually(lambda: (query.idle(), len(query.owns()) == 4)[1], "all partitions")
    query.idle()
    assert_read_once(query, other)
    assert bench.committed() == {0: 3, 1: 4, 2: 5, 3: 6}


def test_commits_that_override_explicit_offsets_are_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    stood_at(bench, 5)
    bench.produce(1)
    explicit = json.dumps({bench.topic: {"0": 3, "1": 5, "2": -2, "3": 0}})
    assert spans(bench.start(startingOffsets=explicit).begin()) == {0: (5, 6)}
    assert f"the query starts with {bench.topic}-0 at 5 and not 3, {bench.topic}-2 at 0 and not -2." in caplog.text
    assert f"{bench.topic}-1" not in caplog.text.partition("the query starts with")[2].partition(".")[0]


def test_a_logged_end_overrides_starting_offsets_without_a_commit(bench: Bench, unique: Callable[[str], str]) -> None:
    logged = replace(stood_at(bench, 5), group="")  # as earlier releases wrote it, without the group
    bench.produce(2)
    elsewhere = bench.start(logged, kafka_group_id=unique("other"), startingOffsets="earliest")
    assert spans(elsewhere.begin()) == {0: (5, 7)}


def test_partitions_without_a_commit_fail_a_query_that_starts_at_committed_offsets_only(bench: Bench) -> None:
    only = {"startingOffsets": "committed", "startingOffsetsFallback": "fail"}
    bench.rewind({0: 0, 2: 0})
    with pytest.raises(
        OptionError, match=rf"no committed offset of {bench.topic}-1, {bench.topic}-3, .*earliest or latest"
    ):
        bench.start(None, **only)
    assert bench.committed() == {0: 0, 2: 0}
    bench.close()
    bench.rewind({1: 1, 3: 0})
    bench.produce(2, 2)
    assert spans(bench.start(None, **only).begin()) == {0: (0, 2), 1: (1, 2)}


@pytest.mark.needs("topic ids")
def test_no_end_of_a_deleted_topic_is_committed_to_its_successor_in_a_long_batch(bench: Bench, protocol: str) -> None:
    bench.produce(5, 5, 5, 5)
    # The leader of a classic group finds the topics with its metadata. With KIP-848 the query's own metadata is old.
    max_age_ms = "50" if protocol == "classic" else "300000"
    query = bench.start(failOnDataLoss="false", kafka_metadata_max_age_ms=max_age_ms)
    eventually(lambda: query.owns() == {0, 1, 2, 3}, "all partitions")
    query.idle()
    assert bench.committed() == dict.fromkeys(range(4), 5)
    bench.kafka.delete_topic(bench.topic)
    eventually(lambda: not query.me.owned, "the revocation of the deleted topic")

    def created() -> str:
        with suppress(TopicAlreadyExistsError):  # with ZooKeeper the deletion may end after the revocation
            return bench.kafka.create_topic(bench.topic, 4)
        return ""

    eventually(created, "the end of the deletion")
    bench.produce(7, 7, 7, 7)
    # The query plans nothing meanwhile: another member would start at these commits.
    eventually(lambda: len(bench.committed()) == 4, "the first commits in the new topic")
    assert bench.committed() == dict.fromkeys(range(4), 0)
    eventually(lambda: len(query.idle().read) == 8, "the records of the new topic")
    read = sorted((each.partition, each.start, each.end) for each in query.read)
    assert read == sorted((number, 0, end) for number in range(4) for end in (5, 7))
    assert len({(each.partition, each.topic_id) for each in query.read}) == 8, "each topic is read under its own id"
    assert bench.committed() == dict.fromkeys(range(4), 7)
    if isinstance(bench.kafka, FakeKafka):
        bench.kafka.commits.clear()  # those of the new topic begin again


# 8. One member per running query, which leaves promptly


def test_a_closed_query_has_left_when_close_returns(bench: Bench) -> None:
    first = bench.start()
    second = bench.start()
    eventually(lambda: len(second.owns()) == 2)
    first.close()
    eventually(lambda: second.owns() == {0, 1, 2, 3}, "everything to move at once, long before a session ends")
    bench.close()
    # The coordinator accepts an operator's commit only if the group has no members.
    bench.rewind({0: 0})


# 9. Two queries on one group split the topic


def test_two_queries_split_the_topic_and_together_read_everything_once(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    bench.split(first, second)
    assert first.owns() | second.owns() == {0, 1, 2, 3}
    bench.produce(3, 4, 5, 6)
    for query in (first, second):
        query.run_batch()
        query.idle()
    assert_read_once(first, second)
    assert bench.committed() == {0: 3, 1: 4, 2: 5, 3: 6}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "range,cooperative-sticky"])
@pytest.mark.one_protocol("classic", reason="a classic group's leader has the assignor")
def test_eager_members_split_the_topic_and_revoke_after_completed_batches_only(bench: Bench, assignor: str) -> None:
    bench.produce(5, 5, 5, 5)
    eager = {"kafka_partition_assignment_strategy": assignor}
    first = bench.start(None, **eager)
    first.begin()
    second = bench.join_in_mid_batch(first, **eager)
    first.finish()
    first.poll()
    bench.split(first, second)
    assert bench.committed() == {0: 5, 1: 5, 2: 5, 3: 5}
    assert not second.poll()


def test_an_idle_member_takes_over_partitions(bench: Bench) -> None:
    queries = [bench.start() for _ in range(5)]
    eventually(lambda: sorted(len(each.owns()) for each in queries) == [0, 1, 1, 1, 1], "one partition each")
    idle = next(each for each in queries if not each.owns())
    assert not idle.poll()
    owner = next(each for each in queries if each is not idle)
    owner.close()
    queries.remove(owner)
    eventually(lambda: len(idle.owns()) == 1, "the idle one to take over")


# 10. AvailableNow is complete


def test_available_now_reads_up_to_the_end_offsets_at_its_start_and_ends(bench: Bench) -> None:
    bench.produce(5, 5)
    run = bench.query().start(available_now=True)
    assert spans(run.begin()) == {0: (0, 5), 1: (0, 5)}
    bench.produce(5, 5)
    run.finish()
    assert not run.poll()
    assert bench.committed() == {0: 5, 1: 5, 2: 0, 3: 0}
    run.close()
    bench.start().idle()
    assert not bench.query().start(available_now=True).poll(), "there is nothing to read"
