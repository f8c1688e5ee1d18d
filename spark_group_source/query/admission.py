"""The end of a batch at the lowest of its limits, and which limit that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_group_source.clock import Clock
from spark_group_source.offsets import BatchLimit, BatchOffset, Offsets, TopicPartition
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.duration_limit import DurationLimit
from spark_group_source.query.limits import ByteLimit, admit, total_backlog
from spark_group_source.wire.cluster import Cluster

MAX_OFFSETS, MAX_BYTES, TARGET = "maxOffsetsPerTrigger", "maxBytesPerTrigger", "targetBatchDuration"


class BatchLimits(NamedTuple):
    """How much a batch may read; ``None`` means no limit. The batch ends at the lowest limit.

    ``to_target`` is whether ``targetBatchDuration`` applies if it is set. With the trigger ``once``, it does not.
    """

    max_offsets: int | None
    max_bytes: int | None
    to_target: bool = True


class Admission:
    """The limits of one query's batches. Only the query's thread may call it.

    Attributes:
        decided: the limit that decided the last planned batch; ``None`` before the first batch, and if no limit is set.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster, clock: Clock) -> None:
        self.decided: BatchLimit | None = None
        self._admitted = BatchLimit("", 0, "")
        self._has_limit = False
        self._bytes = ByteLimit(cluster, clock)
        self._duration: DurationLimit | None = None
        if options.target_batch_duration is not None:
            self._duration = DurationLimit(options.target_batch_duration, options.group.group_id, clock)

    def ends(self, positions: Offsets, ends: Offsets, limits: BatchLimits) -> Mapping[TopicPartition, int]:
        """The end of the batch in each partition of ``positions``, no later than ``ends``."""
        duration = self._duration
        if not limits.to_target:
            duration = None
        self._has_limit = duration is not None or limits.max_offsets is not None or limits.max_bytes is not None
        admitted = admit(positions, ends, None)
        if not self._has_limit:
            return admitted
        decided, reason = "", "the batch reads all that is available"
        if limits.max_offsets is not None:
            lower = admit(positions, admitted, limits.max_offsets)
            if lower != admitted:
                admitted, decided, reason = lower, MAX_OFFSETS, f"it is {limits.max_offsets:,}"
        if duration is not None:
            lower = duration.limit(positions, admitted)
            if lower != admitted:
                admitted, decided, reason = lower, TARGET, duration.reason
        if limits.max_bytes is not None:
            lower = self._bytes.limit(positions, admitted, limits.max_bytes)
            if lower != admitted:
                admitted, decided, reason = lower, MAX_BYTES, f"it is {limits.max_bytes:,}"
        self._admitted = BatchLimit(decided, total_backlog(positions, admitted), reason)
        return admitted

    def planned(self, batch: BatchOffset) -> None:
        """Notes that the batch begins now."""
        if self._duration is not None:
            self._duration.planned(batch)
        if self._has_limit and batch.reads():
            self.decided = self._admitted

    def requested_again(self) -> None:
        """Notes that Spark requests the batch in flight again."""
        if self._duration is not None:
            self._duration.requested_again()

    def completed(self, *, may_have_waited: bool) -> None:
        """Notes that the planned batch was completed. ``may_have_waited`` is as for :meth:`DurationLimit.completed`."""
        if self._duration is not None:
            self._duration.completed(may_have_waited=may_have_waited)
