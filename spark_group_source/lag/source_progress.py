"""The offsets, counters and limit in the progress of a query, for each source of this package. Pure.

Spark's progress holds, for each source of a query, the offset at the end of the batch, in the JSON of
:class:`~spark_group_source.offsets.BatchOffset`. Since PySpark 4.2 it also holds the latest offset that the source
reported when it planned the batch (see :mod:`~spark_group_source.offsets`), for the partitions that the query owned. In
the progress of a Spark Connect client's query, both are strings that hold this JSON; in its events, they are JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any

from spark_group_source.errors import GroupSourceError
from spark_group_source.group.counters import Counters
from spark_group_source.lag.model import Sample
from spark_group_source.offsets import (
    BatchLimit,
    BatchOffset,
    Offsets,
    TopicPartition,
    parse_latest_offset,
    parse_limit,
    parse_progress_offset,
)


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source of this package in one batch. ``limit`` is the limit that decided its size, if an option limits
    batches.

    ``end_offsets`` and ``counters`` are ``None`` if Spark does not show them (PySpark 4.1). ``owned`` are the
    partitions whose position is in ``batch``. ``batch`` may also contain partitions that other members own by now.
    """

    batch: BatchOffset
    end_offsets: Offsets | None
    owned: frozenset[TopicPartition]
    counters: Counters | None = None
    limit: BatchLimit | None = None

    @property
    def group(self) -> str | None:
        """The consumer group; ``None`` if an earlier release wrote the offset, without the group."""
        if not self.batch.group:
            return None
        return self.batch.group

    def sample(self, at: float) -> Sample:
        """The positions and end offsets of the owned partitions after the batch."""
        positions = self.batch.ends()
        end_offsets: Offsets = {}
        if self.end_offsets is not None:
            end_offsets = self.end_offsets
        return Sample(at, {tp: positions[tp] for tp in self.owned}, end_offsets)


def source_progress(progress: Mapping[str, Any], before: Mapping[int, SourceProgress]) -> dict[int, SourceProgress]:
    """The sources of this package in a progress, by their number. ``progress`` is parsed from its JSON.

    ``before`` is the result for the previous progress, empty for the first.
    """
    sources = {}
    for number, source in enumerate(progress.get("sources", ())):
        batch = _batch_offset(parse_progress_offset(source.get("endOffset")))
        if batch is None:
            continue
        latest = parse_progress_offset(source.get("latestOffset"))
        end_offsets, counters = _reported(latest)
        owned = frozenset[TopicPartition]()
        if end_offsets is not None:
            owned = frozenset(batch.ranges) & end_offsets.keys()
        had_no_records = source.get("startOffset") == source["endOffset"]
        if had_no_records and number in before:
            # The offset has no new position for partitions that this query owns again.
            owned &= before[number].owned
        limit = None
        if isinstance(latest, Mapping) and end_offsets is not None:
            limit = parse_limit(latest)
        sources[number] = SourceProgress(batch, end_offsets, owned, counters, limit)
    return sources


def epoch_seconds(timestamp: str) -> float:
    """Converts a timestamp of Spark's events, such as ``2026-01-31T12:00:00.000Z``, to seconds since 1970."""
    return datetime.strptime(timestamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc).timestamp()


def _batch_offset(offset: object) -> BatchOffset | None:
    """The offset of a batch, or ``None`` if it belongs to another source."""
    if not isinstance(offset, Mapping):
        return None
    if not offset:
        return None
    try:
        return BatchOffset.from_json(offset)
    except GroupSourceError:
        return None


_COUNTER_NAMES = {each.name for each in fields(Counters)}


def _reported(latest: object) -> tuple[Offsets | None, Counters | None]:
    """The end offsets and counters; ``None`` on PySpark 4.1, which shows the end of the batch instead."""
    if not isinstance(latest, Mapping):
        return None, None
    if _batch_offset(latest) is not None:
        return None, None
    end_offsets, counts = parse_latest_offset(latest)
    if counts is None:
        return end_offsets, None
    known = {}
    for name, count in counts.items():
        # A Spark Connect server may run another release of this package, with other counters.
        if name in _COUNTER_NAMES:
            known[name] = int(count)
    return end_offsets, Counters(**known)
