"""Committed offsets that decide where a new query starts, although its ``startingOffsets`` says otherwise. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_group_source.errors import OptionError
from spark_group_source.group.offsets import CommittedOffset
from spark_group_source.offsets import TopicPartition
from spark_group_source.options.offsets import SpecificOffsets, StartSpec, number_in_json
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
