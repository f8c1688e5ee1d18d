"""How far a micro-batch reads: by a number of offsets, or by about a number of bytes.

The arithmetic is that of Spark's own Kafka source. Each partition gets a portion of the limit by its backlog. Portions
are rounded down, but a portion below one offset becomes one, so that no partition starves.

The driver sees no records: the tasks read them, in other processes. It therefore samples each partition, at the
start and at the end of what the batch would read, and takes the mean. The sample at the end is that at the start of
the next batch. Bytes are those of record batches as the brokers store and send them: compressed, with headers.
"""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)


def admit(positions: Offsets, end_offsets: Offsets, max_offsets: int | None) -> dict[TopicPartition, int]:
    """The end of the next batch in each partition of ``positions``.

    Args:
        positions: the next offset to read of each readable partition.
        end_offsets: the end of the log, at least for partitions that are to advance.
        max_offsets: maximum number of offsets, a soft limit as in Spark's source; ``None`` for all available.
    """
    # Backlogs are numbers of offsets, not of bytes.
    backlogs = {tp: max(0, end_offsets.get(tp, position) - position) for tp, position in positions.items()}
    total = sum(backlogs.values())
    if max_offsets is not None and total > max_offsets:
        backlogs = {tp: min(each, max(1, max_offsets * each // total)) for tp, each in backlogs.items()}
    return {tp: position + backlogs[tp] for tp, position in positions.items()}


def total_backlog(positions: Offsets, end_offsets: Offsets) -> int:
    """The number of offsets between ``positions`` and ``end_offsets``, over all readable partitions."""
    return sum(max(0, end_offsets.get(tp, position) - position) for tp, position in positions.items())


LOOKUP_TIMEOUT = 2.0
"""Maximum seconds for the samples of one batch. Without them a batch goes by earlier ones."""

RETRY_INTERVAL = 10.0
"""Seconds until a partition whose leader did not answer is tried again."""

ESTIMATED_OFFSET_SIZE = 1024.0
"""Estimated bytes per offset while no partition has a sample."""

SAMPLE_SHARE = 16
"""The samples of one batch from one broker are at most this part of the limit, or one record batch."""

MAX_OFFSET_SIZE = 1024 * 1024
"""Maximum bytes per offset, as brokers limit record batches by default. A batch with so few offsets that even these fit
into the limit is not sampled. What earlier samples say does not count here, because sizes may change at any time."""


class ByteLimit:
    """The sizes of a query's partitions, and the batches that they allow. For the query's thread."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._sizes: dict[TopicPartition, float] = {}
        self._retry_at: dict[TopicPartition, float] = {}

    def limit(self, positions: Offsets, ends: Offsets, max_bytes: int) -> dict[TopicPartition, int]:
        """``ends``, or earlier ones if the offsets from ``positions`` have more bytes than the limit.

        All partitions then read the same part of their offsets, at least one offset each.
        """
        # Other members read the partitions that left, and records of other sizes may have been written since.
        self._sizes = {tp: size for tp, size in self._sizes.items() if tp in positions}
        counts = {tp: end - positions[tp] for tp, end in ends.items() if end > positions[tp]}
        if sum(counts.values()) * MAX_OFFSET_SIZE <= max_bytes:
            return dict(ends)
        self._sample({tp: positions[tp] for tp in counts if tp not in self._sizes}, max_bytes)
        counts = _part(counts, self._estimates(counts), max_bytes)
        starts = self._estimates(counts)
        self._sample({tp: positions[tp] + count - 1 for tp, count in counts.items()}, max_bytes)
        at_end = self._estimates(counts)
        counts = _part(counts, {tp: (starts[tp] + at_end[tp]) / 2 for tp in counts}, max_bytes)
        return {tp: positions[tp] + counts.get(tp, 0) for tp in ends}

    def _estimates(self, partitions: Offsets) -> dict[TopicPartition, float]:
        known = [self._sizes[tp] for tp in partitions if tp in self._sizes]
        unknown = sum(known) / len(known) if known else ESTIMATED_OFFSET_SIZE
        return {tp: self._sizes.get(tp, unknown) for tp in partitions}

    def _sample(self, offsets: Offsets, max_bytes: int) -> None:
        from spark_group_source.query.size_samples import sample_sizes  # noqa: PLC0415 -- numpy takes 0.1 s

        now = self._clock()
        # A large record batch is sent only at the start of a response, so those with the oldest sample come first.
        oldest = [*(tp for tp in offsets if tp not in self._sizes), *(tp for tp in self._sizes if tp in offsets)]
        due = [tp for tp in oldest if self._retry_at.get(tp, now) <= now]
        if not due:
            return
        deadline = Deadline.after(LOOKUP_TIMEOUT, self._clock)
        try:
            topics = self._cluster.topics({tp.topic for tp in due}, deadline)
            share = max(1, max_bytes // SAMPLE_SHARE)
            found, silent = sample_sizes(self._cluster, topics, {tp: offsets[tp] for tp in due}, share, deadline)
        except GroupSourceError as error:
            # Tasks report what keeps records from being read. Here other estimates serve.
            log.debug("no sample of sizes: %s", error)
            found, silent = {}, set(due)
        self._sizes = {tp: size for tp, size in self._sizes.items() if tp not in found} | found
        self._retry_at |= dict.fromkeys(silent, now + RETRY_INTERVAL)


def _part(counts: Offsets, sizes: dict[TopicPartition, float], max_bytes: int) -> dict[TopicPartition, int]:
    total = sum(sizes[tp] * count for tp, count in counts.items())
    if total <= max_bytes:
        return dict(counts)
    return {tp: max(1, int(count * max_bytes / total)) for tp, count in counts.items()}
