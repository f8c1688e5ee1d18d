"""Commits of a group that this query did not write: what it checks and warns of when partitions start."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_group_source.errors import OptionError
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.offsets import OffsetRange, TopicPartition
from spark_group_source.options.offset_specs import SpecificOffsets, StartSpec, number_in_json
from spark_group_source.text import some

log = logging.getLogger(__name__)


def check_prior_commits(spec: StartSpec, commits: Mapping[TopicPartition, CommittedOffset], group_id: str) -> None:
    """Checks the commits of a query with a new checkpoint, when it gets its first assignment.

    Commits of a group that has started at the same offsets are expected: another member wrote them, or the query has
    lost its checkpoint. Other commits are from before, for example of a trial. JSON that covers all partitions is the
    position of another query (``offsets_of_checkpoint``): to start elsewhere would lose or repeat records.

    Raises:
        OptionError: the group has other commits, and ``spec`` covers all partitions.
    """
    if not isinstance(spec, SpecificOffsets):
        return
    others = [
        f"{tp} at {commit.offset} and not {number_in_json(given)}"
        for tp, commit in sorted(commits.items(), key=lambda item: item[0])
        if (given := spec.of(tp)) is not None and given != commit.offset and not commit.started_at(spec.digest)
    ]
    if not others:
        return
    if spec.others is None:
        log.warning(
            "group %s: its committed offsets take precedence over startingOffsets; the query starts with %s. To start"
            " at startingOffsets choose another kafka.group.id.",
            group_id,
            some(others),
        )
        return
    raise OptionError(
        f"The group '{group_id}' has committed offsets that take precedence over 'startingOffsets': the query would"
        f" start with {some(others)}.",
        "Choose a new 'kafka.group.id', or delete the group (kafka-consumer-groups --delete). If the group's offsets"
        " are right, remove 'startingOffsets'.",
    )


def warn_if_read_by_others(
    replayed: Mapping[TopicPartition, OffsetRange], commits: Mapping[TopicPartition, CommittedOffset], group_id: str
) -> None:
    """Logs a warning with the parts of a replayed batch that other members read before the replay."""
    read_twice = [
        f"{tp} [{read.start}, {min(commits[tp].offset, read.end)})"
        for tp, read in sorted(replayed.items())
        if tp in commits and commits[tp].offset > read.start
    ]
    if read_twice:
        log.warning(
            "group %s: other members have read a part of the batch that this query has just replayed: %s. Rows that"
            " are added up or appended outside of this query's sink are there twice. Queries that keep state should"
            " not share a group.",
            group_id,
            some(read_twice),
        )
