"""The metadata of a query's commits, and how much of it the brokers accept."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from spark_group_source.group.commits import COMMIT_TAG, RESET_TAG, commit_metadata
from spark_group_source.group.counters import Counters
from spark_group_source.group.membership import Membership
from spark_group_source.offsets import NO_LINEAGE
from spark_group_source.options.offset_specs import SpecificOffsets
from spark_group_source.options.source_options import SourceOptions, stream_start
from spark_group_source.query.owned_partition import OwnedPartition


class MetadataSize(Enum):
    """How much metadata the commits of a query have. If brokers reject the metadata for its size, the next smaller size
    follows.

    The value names the metadata in the log line about brokers that reject it."""

    ALL = "commitMetadata, or the checkpoint's id, is too long"
    LINEAGE = "the metadata is too long"
    TAG = "even the tag is too long"
    NOTHING = "no metadata is too long"

    @property
    def smaller(self) -> MetadataSize:
        """The next size to try."""
        sizes = list(MetadataSize)
        return sizes[sizes.index(self) + 1]


class CommitMetadata:
    """Builds the metadata of commits. The committer calls it under a lock, for one commit at a time.

    ``size`` is the largest size that the brokers have not rejected.
    """

    def __init__(self, options: SourceOptions, counters: Counters, fields: Mapping[str, str]) -> None:
        """``fields`` are part of the metadata if ``commitMetadata`` is on."""
        self.size = MetadataSize.ALL
        self._counters = counters
        self._with_fields = options.commit_metadata
        self._fields = fields
        self._start: dict[str, str] = {}
        start = stream_start(options)
        if isinstance(start, SpecificOffsets):
            self._start["start"] = start.digest

    def common_fields(self, me: Membership) -> dict[str, Any]:
        """The fields that all partitions of a commit have."""
        if not self._with_fields:
            return self._start
        now = {"member": me.member_id, "generation": me.generation, "batches": self._counters.batches}
        return {**self._fields, **now, **self._start}

    def text(self, owned: OwnedPartition, common_fields: Mapping[str, Any]) -> str:
        """The metadata of one partition, in the largest size that the brokers have not rejected."""
        tag = COMMIT_TAG
        if owned.reset:
            tag = RESET_TAG
        lineage: dict[str, Any] = {}
        if owned.lineage != NO_LINEAGE:
            lineage["lineage"] = owned.lineage
        match self.size:
            case MetadataSize.ALL:
                checkpoint = {}
                if owned.checkpoint:
                    checkpoint["checkpoint"] = owned.checkpoint
                return commit_metadata({**lineage, **checkpoint, **common_fields}, tag)
            case MetadataSize.LINEAGE:
                return commit_metadata(lineage, tag)
            case MetadataSize.TAG:
                return _tag_alone(tag, lineage)
            case MetadataSize.NOTHING:
                return ""


def _tag_alone(tag: str, lineage: Mapping[str, Any]) -> str:
    """The tag if the commit has no lineage, else nothing.

    A tag without its lineage would count as one of the first lineage. If both are missing, the next owner begins a new
    lineage."""
    if lineage:
        return ""
    return tag
