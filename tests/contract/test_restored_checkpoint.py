"""Queries whose checkpoint is older than their commits (``query/restored_checkpoint.py``), and others."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from spark_group_source.errors import CheckpointError
from spark_group_source.group.commits import commit_metadata
from spark_group_source.offsets import BatchOffset
from tests.contract.conftest import Bench, Query, eventually
from tests.contract.test_delivery import spans, stood_at
from tests.fake import FakeKafka, Fault

OLDER = "the checkpoint is older than the commits of its query"
ALWAYS_FAILS = {"restoredCheckpoint": "fail"}


def copy_of(logged: BatchOffset) -> BatchOffset:
    """What a backup of the checkpoint restores."""
    return BatchOffset.from_json(json.loads(json.dumps(logged.as_json())))


def lagging_backup(bench: Bench) -> BatchOffset:
    """A checkpoint from before batches that read [5, 10) of partition 0 and [5, 8) of partition 1."""
    backup = stood_at(bench, 5)
    query = bench.start(copy_of(backup))
    for number in range(2):
        bench.produce(*((3, 3) if number == 0 else (2,)))
        query.run_batch()
    assert not query.poll()
    query.close()
    assert bench.committed() == {0: 10, 1: 8, 2: 0, 3: 0}
    return copy_of(backup)


def forget_commits(bench: Bench) -> None:
    """From here on commits may go back: a decision that the test is about."""
    if isinstance(bench.kafka, FakeKafka):
        bench.kafka.commits.clear()


def times_read(*queries: Query) -> Counter[tuple[int, int]]:
    return Counter((each.partition, at) for q in queries for each in q.read for at in range(each.start, each.end))


def test_a_restored_checkpoint_continues_at_the_commits_with_one_warning_of_what_it_lacks(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    query = bench.start(lagging_backup(bench))
    assert not query.poll()
    (warning,) = [each.getMessage() for each in caplog.records if OLDER in each.getMessage()]
    assert f"does not read {bench.topic}-0 [5, 10), {bench.topic}-1 [5, 8) again" in warning
    bench.produce(1)
    assert spans(query.begin()) == {0: (10, 11)}
    query.finish()
    query.close()
    assert not bench.start(query.end, **ALWAYS_FAILS).poll(), "what was skipped is logged by now"


def test_a_restored_checkpoint_is_read_on_from_its_end_if_so_set_also_a_second_time(bench: Bench) -> None:
    backup = lagging_backup(bench)
    for _ in range(2):
        forget_commits(bench)
        query = bench.start(copy_of(backup), restoredCheckpoint="repeat")
        assert bench.committed() == {0: 5, 1: 5, 2: 0, 3: 0}, "it holds for every later owner"
        assert spans(query.idle().read) == {0: (5, 10), 1: (5, 8)}
        assert bench.committed() == {0: 10, 1: 8, 2: 0, 3: 0}
        query.close()
    assert not bench.start(query.end, restoredCheckpoint="repeat").poll(), "it is done once"


def test_a_restored_checkpoint_ends_the_query_if_so_set(bench: Bench) -> None:
    backup = lagging_backup(bench)
    lacks = rf"lacks the batches that read {bench.topic}-0 \[5, 10\), {bench.topic}-1 \[5, 8\), and"
    with pytest.raises(CheckpointError, match=lacks):
        bench.start(backup, **ALWAYS_FAILS)
    assert bench.committed() == {0: 10, 1: 8, 2: 0, 3: 0}


def test_a_repeat_that_died_before_its_first_batch_was_logged_is_kept(on_fake: Bench) -> None:
    backup = lagging_backup(on_fake)
    forget_commits(on_fake)
    crashed = on_fake.start(backup, restoredCheckpoint="repeat")
    crashed.close()
    again = on_fake.start(backup, **ALWAYS_FAILS)
    assert spans(again.begin()) == {0: (5, 10), 1: (5, 8)}


def test_a_repeat_holds_for_another_query_whose_commits_are_no_sign_of_a_restored_checkpoint(on_fake: Bench) -> None:
    backup = lagging_backup(on_fake)
    on_fake.produce(2, 4)
    other = on_fake.start(None, **ALWAYS_FAILS).idle()
    other.close()
    assert not on_fake.start(backup, **ALWAYS_FAILS).poll(), "the last commits are another query's"
    on_fake.close()
    on_fake.rewind({0: 10, 1: 8}, commit_metadata({"checkpoint": backup.checkpoint}))
    forget_commits(on_fake)
    on_fake.start(backup, restoredCheckpoint="repeat").close()
    assert spans(on_fake.start(other.end, **ALWAYS_FAILS).begin()) == {0: (5, 12), 1: (5, 12)}, "it stood at 12"


def test_an_available_now_run_repeats_what_a_restored_checkpoint_lacks(on_fake: Bench) -> None:
    backup = lagging_backup(on_fake)
    forget_commits(on_fake)
    run = on_fake.query(backup, restoredCheckpoint="repeat")
    on_fake.next("JoinGroup", Fault(delay=3.0))  # meanwhile the group's commits are where the run ends
    on_fake.next("OffsetFetch", Fault(error=14), times=2)
    run.driver.start(run.end)
    run.driver.prepare_for_available_now()
    run.until_end()
    assert spans(run.read) == {0: (5, 10), 1: (5, 8)}


def skip_3(logged_ends: dict[str, dict[int, int]], starts: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    """A ``startingOffsetsCallback`` that starts 3 records after what the query logged."""
    return {topic: {number: end + 3 for number, end in ends.items() if end} for topic, ends in logged_ends.items()}


@pytest.mark.parametrize(
    ("choice", "says"), [("skip", "does not read topic-0 [5, 8), topic-1 [5, 8) again"), ("repeat", "[8, 10) again")]
)
def test_a_callback_decides_after_the_option(
    on_fake: Bench, choice: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    backup = lagging_backup(on_fake)
    forget_commits(on_fake)
    options = {"startingOffsetsCallback": f"{__name__}:skip_3"}
    with pytest.raises(CheckpointError, match=r"topic-0 \[5, 8\), topic-1 \[5, 8\), and"):
        on_fake.start(backup, **options, **ALWAYS_FAILS)
    on_fake.close()
    query = on_fake.start(backup, **options, restoredCheckpoint=choice)
    assert spans(query.begin()) == {0: (8, 10)}
    (warning,) = [each.getMessage() for each in caplog.records if OLDER in each.getMessage()]
    assert says in warning


def test_a_copy_of_a_checkpoint_that_joins_repeats_what_it_lacks_of_its_partitions_once(on_fake: Bench) -> None:
    on_fake.produce(5, 5, 5, 5)
    one = on_fake.start().idle()
    backup = copy_of(one.end)
    on_fake.produce(5, 5, 5, 5)
    one.idle()
    forget_commits(on_fake)
    copy = on_fake.join(backup, restoredCheckpoint="repeat")
    on_fake.split(one, copy, meanwhile=lambda: (one.advance(), copy.advance()))
    on_fake.produce(5, 5, 5, 5)
    eventually(lambda: (one.idle(), copy.idle(), on_fake.committed() == dict.fromkeys(range(4), 15))[-1], "all")
    times = times_read(one, copy)
    assert {at for (_, at), count in times.items() if count > 1} == set(range(5, 10))
    assert Counter(times.values()) == {1: 50, 2: 10}, "the copy owns two partitions"


@pytest.mark.parametrize("step", ["assigned", "planned", "completed", "committed"])
def test_a_crash_at_any_step_never_looks_like_a_restored_checkpoint(
    on_fake: Bench, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in a query that has moved either, nor after a replay, nor if another query owned the partitions meanwhile."""
    logged = stood_at(on_fake, 5)
    for round_ in range(3):
        on_fake.produce(8, 8, 8, 8)
        crashed = on_fake.query(copy_of(logged), **ALWAYS_FAILS).start()
        if step != "assigned":
            crashed.begin(limit=8)
            logged = crashed.running or logged
        if step in ("completed", "committed"):
            crashed.finish()
        if step == "committed":
            crashed.driver.complete(crashed.end)
            crashed.driver._assigned_partitions.committer.wait()
        on_fake.expire(crashed)
        crashed.close()
        if round_ == 1:
            neighbour = on_fake.start(None, **ALWAYS_FAILS)
            neighbour.begin(limit=8)
            neighbour.finish()
            neighbour.poll(limit=8)
            neighbour.close()
        replayed = step in ("planned", "completed") and round_ != 2
        again = on_fake.query(copy_of(logged), **ALWAYS_FAILS).start(replayed=replayed)
        again.begin(limit=8)
        again.finish()
        again.driver.complete(again.end)
        again.close()
        logged = again.end
    assert OLDER not in caplog.text


def test_a_move_by_an_operator_is_not_a_restored_checkpoint(on_fake: Bench) -> None:
    logged = stood_at(on_fake, 5)
    on_fake.produce(10)
    for offset in (2, 9, 15):
        forget_commits(on_fake)
        on_fake.rewind({0: offset})
        query = on_fake.start(copy_of(logged), **ALWAYS_FAILS)
        query.poll()
        if query.running is not None:
            query.finish()
        query.idle().close()
        logged = query.end


def test_a_checkpoint_without_an_id_gets_one_with_its_next_batch(on_fake: Bench) -> None:
    former = stood_at(on_fake, 5)
    logged = {name: value for name, value in former.as_json().items() if name != "checkpoint"}
    query = on_fake.start(BatchOffset.from_json(logged), **ALWAYS_FAILS)
    assert not query.poll(), "no batch for the sake of the id"
    on_fake.produce(1)
    query.run_batch()
    assert not query.poll()
    assert query.end.checkpoint not in ("", former.checkpoint)
    assert on_fake.commits()[0].checkpoint == query.end.checkpoint
    query.close()
    assert not on_fake.start(BatchOffset.from_json(logged), **ALWAYS_FAILS).poll(), "nothing is known of it"
