"""Commits of this source, as a group has them."""

from __future__ import annotations

from spark_group_source.group.commits import CommittedOffset, commit_metadata


def ours(offset: int, lineage: int = 0) -> CommittedOffset:
    return CommittedOffset(offset, commit_metadata({"lineage": lineage} if lineage else {}))
