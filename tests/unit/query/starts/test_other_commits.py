"""What the log says, when partitions start, of commits that this query did not write."""

from __future__ import annotations

import logging

import pytest

from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.query.starts.other_commits import CommitWarnings
from tests.unit.query.own_commits import ours

A = TopicPartition("t", 0)
COMMITS = {A: ours(50)}
IS_NEW = "the checkpoint is new, but the group has committed offsets"


def started_with(logged: BatchOffset, caplog: pytest.LogCaptureFixture) -> CommitWarnings:
    caplog.set_level(logging.INFO)
    warnings = CommitWarnings("g")
    warnings.restore(logged)
    return warnings


def test_a_new_checkpoint_in_a_group_with_commits_is_logged_once_with_what_it_means_for_file_sinks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = started_with(BatchOffset(), caplog)
    warnings.check(COMMITS, {})
    warnings.check(COMMITS, {})
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
    assert IS_NEW not in caplog.text
