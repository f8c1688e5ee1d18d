"""The committed offset of a partition, and the tag of this source's commits. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_group_source.offsets import NO_LINEAGE, UNKNOWN_EPOCH

COMMIT_TAG = "spark-group-source"
"""Start of the metadata of every commit of this source. ``kafka-consumer-groups --reset-offsets`` writes empty
metadata. So an offset without the tag is the decision of an operator, and not an older commit of this source."""


RESET_TAG = f"{COMMIT_TAG} starting"
"""Start of the metadata after ``resetOffsetsOnStart`` has moved a partition, until Spark has logged a batch that says
so. If the query dies before, its restart does not reset again: it would skip the records that arrived since."""


def commit_metadata(fields: Mapping[str, object], tag: str = COMMIT_TAG) -> str:
    """The metadata of a commit: the tag, then ``fields`` as JSON.

    The field ``start`` is the digest of JSON in ``startingOffsets``: the group started at these offsets. ``lineage`` is
    the lineage of the offset, if it has one.
    """
    return f"{tag} {json.dumps(fields)}" if fields else tag


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A partition's committed offset as the group has it, with its leader epoch."""

    offset: int
    metadata: str = ""
    epoch: int = UNKNOWN_EPOCH

    @property
    def tagged(self) -> bool:
        """Whether this source wrote it."""
        return self.metadata.startswith(COMMIT_TAG)

    @property
    def tagged_reset(self) -> bool:
        """Whether ``resetOffsetsOnStart`` wrote it, and no logged batch had confirmed the reset."""
        return self.metadata.startswith(RESET_TAG)

    @property
    def lineage(self) -> int:
        """The lineage to which it belongs."""
        lineage = self._fields.get("lineage", NO_LINEAGE)
        return lineage if isinstance(lineage, int) else NO_LINEAGE

    def started_at(self, digest: str) -> bool:
        """Whether the query that wrote it has the ``startingOffsets`` with this digest."""
        return self._fields.get("start") == digest

    @property
    def _fields(self) -> Mapping[str, Any]:
        if not self.tagged:
            return {}
        try:
            fields = json.loads(self.metadata[self.metadata.index("{") :])
        except ValueError:  # there is only the tag
            return {}
        return fields if isinstance(fields, dict) else {}
