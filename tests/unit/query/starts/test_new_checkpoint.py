"""What the log says of a group's commits beside a new checkpoint. ``test_ownership.py`` has what they do to a start."""

from __future__ import annotations

import pytest

from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.starts.new_checkpoint import NewCheckpoint
from tests.unit.query.own_commits import ours

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)
EXISTING = (A, B)
COMMITS = {A: ours(50)}
IS_NEW = "the checkpoint is new, but the group has committed offsets"


def started_with(logged: BatchOffset, caplog: pytest.LogCaptureFixture, **given: str) -> NewCheckpoint:
    caplog.set_level("INFO", "spark_group_source")
    options = {"kafka.bootstrap.servers": "h:9092", "kafka.group.id": "g", "subscribe": "t"}
    checkpoint = NewCheckpoint(parse_options(options | given))
    checkpoint.restore(logged, EXISTING)
    return checkpoint


@pytest.mark.parametrize("given", [{}, {"resetOffsetsOnStart": "true", "startingOffsets": "earliest"}])
def test_commits_beside_a_new_checkpoint_are_logged_once_with_what_that_means_for_file_sinks(
    caplog: pytest.LogCaptureFixture, given: dict[str, str]
) -> None:
    checkpoint = started_with(BatchOffset(), caplog, **given)
    checkpoint.check(COMMITS, {})
    checkpoint.check(COMMITS, {})
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert IS_NEW in record.getMessage()
    assert "give Spark's file sinks a new directory" in record.getMessage()
    assert "docs/guarantees.md#a-new-checkpoint" in record.getMessage()


def test_a_new_group_a_later_assignment_and_a_restart_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    first_of_its_group = started_with(BatchOffset(), caplog)
    first_of_its_group.check({}, {})
    first_of_its_group.check(COMMITS, {})
    restarted = started_with(BatchOffset({A: OffsetRange(*A, 40, 50)}, group="g"), caplog)
    restarted.check(COMMITS, {})
    assert not caplog.records


def test_partitions_whose_commits_are_unknown_are_checked_with_the_next_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = started_with(BatchOffset(), caplog)
    checkpoint.check({}, {B})
    assert checkpoint.unchecked == {B}
    checkpoint.check(COMMITS | {B: ours(7)}, {})
    assert [IS_NEW in message for message in caplog.messages] == [True]
    assert not checkpoint.unchecked
