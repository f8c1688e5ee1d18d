"""What a query's progress tells about where it stands. Pure.

Spark's progress holds, for each source of a query, the offset at the end of the batch, in the JSON of
:class:`~spark_group_source.offsets.BatchOffset`, and since PySpark 4.2 what ``reportLatestOffset`` of the source said:
the ends of the logs, as ``{topic: {partition: end}}``, of the partitions owned when the batch was planned. In the
progress that a query of Spark Connect's client tells both are text that holds that JSON; its events have them as here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from spark_group_source.errors import GroupSourceError
from spark_group_source.lag.sample import Sample
from spark_group_source.offsets import BatchOffset, Offsets, TopicPartition


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One of our sources in one batch.

    ``ends`` is ``None`` where Spark does not tell them (PySpark 4.1). ``owned`` are the partitions whose position is
    that of ``batch``: its offset also names those that another member has had since.
    """

    batch: BatchOffset
    ends: Offsets | None
    owned: frozenset[TopicPartition]

    def sample(self, at: float) -> Sample:
        """Where the query stands once the batch is done, in the partitions that it owns."""
        done = self.batch.ends()
        return Sample(at, {tp: done[tp] for tp in self.owned}, self.ends or {})


def sources(progress: Mapping[str, Any], before: Mapping[int, SourceProgress]) -> dict[int, SourceProgress]:
    """The sources of this package in a progress, as its JSON has it, by their number; others are left out.

    ``before`` is what the progress before it told of them, empty where there was none.
    """
    found = {}
    for number, source in enumerate(progress.get("sources", ())):
        batch = _own(_parsed(source.get("endOffset")))
        if batch is None:
            continue
        ends = _ends(_parsed(source.get("latestOffset")))
        owned = frozenset(batch.ranges) & (ends or {}).keys()
        if source.get("startOffset") == source["endOffset"] and number in before:
            # Nothing was planned here (another source had something): the offset knows nothing of what came back since.
            owned &= before[number].owned
        found[number] = SourceProgress(batch, ends, owned)
    return found


def moment(timestamp: str) -> float:
    """Seconds since 1970 of a time as Spark's events write it: ``2026-01-31T12:00:00.000Z``."""
    return datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()


def _parsed(offset: object) -> object:
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:  # another source's, which need not be JSON
        return None


def _own(offset: object) -> BatchOffset | None:
    """The offset of a batch, or ``None`` where another source wrote it: their offsets have other JSON, or none."""
    if not isinstance(offset, Mapping) or not offset:
        return None
    try:
        return BatchOffset.from_json(offset)
    except GroupSourceError:
        return None


def _ends(reported: object) -> dict[TopicPartition, int] | None:
    """The ends of the logs, or ``None`` where they are not told: PySpark 4.1 repeats the end of the batch instead."""
    if not isinstance(reported, Mapping) or _own(reported) is not None:
        return None
    return {
        TopicPartition(topic, int(number)): int(end)
        for topic, partitions in reported.items()
        for number, end in partitions.items()
    }
