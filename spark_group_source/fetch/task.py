"""The work of one Spark task: ranges, and everything needed to read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import OffsetRange
from spark_group_source.wire.security import ExportedToken
from spark_group_source.wire.wire_options import WireOptions

if TYPE_CHECKING:
    from spark_group_source.wire.metadata import Metadata  # Spark's processes import its messages late


@dataclass(frozen=True, slots=True)
class FetchTask:
    """Ranges of offsets and everything needed to read them on an executor; picklable.

    ``schema`` names the columns to build, from :mod:`spark_group_source.records.columns`. ``query_id`` identifies the
    run of a query, whose later tasks use the records that this task received beyond its ranges. Without an id, nothing
    is kept. ``token`` is the driver's OAuth token, if it has one. ``cluster_id`` is the cluster of the ranges, empty if
    unknown. ``leaders`` are those that the driver knows, if any, so that a new worker need not look them up. Each
    partition has at most one range.
    """

    ranges: tuple[OffsetRange, ...]
    wire: WireOptions
    schema: pa.Schema
    settings: FetchSettings = field(default_factory=FetchSettings)
    query_id: str = ""
    token: ExportedToken | None = None
    cluster_id: str = ""
    leaders: Metadata | None = None

    def __post_init__(self) -> None:
        # A fetch names each partition once, and its response has no other key for a range.
        if len({offset_range.tp for offset_range in self.ranges}) < len(self.ranges):
            raise ValueError(f"two ranges of one partition: {', '.join(map(str, self.ranges))}")
