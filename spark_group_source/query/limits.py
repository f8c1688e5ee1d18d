"""Limits of a micro-batch by a number of offsets, or by an approximate number of bytes. :mod:`.duration_limit` limits
its duration.

The arithmetic is that of Spark's own Kafka source. Each partition gets a portion of the limit in proportion to its
backlog. Portions are rounded down, but a portion below one offset becomes one, so that no partition starves.

The driver sees no records: the tasks read them, in other processes. It therefore samples each partition, at the start
and at the end of the range that the batch would read, and takes the mean. The sample at the end also serves as the
sample at the start of the next batch. Bytes are those of record batches as the brokers store and send them: compressed,
with headers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.offsets import Offsets, TopicPartition, topics_of
from spark_group_source.wire.cluster import Cluster

if TYPE_CHECKING:
    from spark_group_source.query.size_samples import Samples

log = logging.getLogger(__name__)


def admit(positions: Offsets, end_offsets: Offsets, max_offsets: int | None) -> dict[TopicPartition, int]:
    """The end of the next batch in each partition of ``positions``.

    Args:
        positions: the next offset to read of each readable partition.
        end_offsets: the end of the log, at least for partitions that are to advance.
        max_offsets: maximum number of offsets, a soft limit as in Spark's source; ``None`` for all available.
    """
    ends = dict(positions)
    counts = backlogs(positions, end_offsets)
    total = sum(counts.values())
    for tp, backlog in counts.items():
        count = backlog
        if max_offsets is not None and total > max_offsets:
            portion = max(1, max_offsets * backlog // total)
            count = min(backlog, portion)
        ends[tp] += count
    return ends


def exact_portions(counts: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    """Portions that are together exactly ``max_offsets``, or one offset of each partition if these are more.

    The portions of :func:`admit` are rounded down, and up to one. Batches of many partitions then have the same size
    with different limits, so that a limit that follows from the sizes of batches could not leave it.
    """
    total, least = sum(counts.values()), len(counts)
    if total <= max_offsets:
        return dict(counts)
    more = max(0, max_offsets - least)
    portions, fractions = {}, {}
    for tp, backlog in counts.items():
        further, fractions[tp] = divmod(more * (backlog - 1), max(1, total - least))
        portions[tp] = 1 + further
    left = least + more - sum(portions.values())
    for tp in sorted(fractions, key=fractions.__getitem__, reverse=True)[:left]:
        portions[tp] += 1
    return portions


def total_backlog(positions: Offsets, end_offsets: Offsets) -> int:
    """The number of offsets between ``positions`` and ``end_offsets``, over all readable partitions."""
    return sum(backlogs(positions, end_offsets).values())


def backlogs(positions: Offsets, end_offsets: Offsets) -> dict[TopicPartition, int]:
    """The number of offsets from each position to the end, for partitions with a known end after the position."""
    found: dict[TopicPartition, int] = {}
    for tp, position in positions.items():
        backlog = end_offsets.get(tp, position) - position
        if backlog > 0:
            found[tp] = backlog
    return found


SAMPLES_TIMEOUT = 2.0
"""Maximum seconds for the samples of one batch. Without new samples, the batch relies on earlier ones."""

SAMPLE_RETRY_INTERVAL = 10.0
"""Seconds until a partition whose leader did not answer is tried again."""

ESTIMATED_OFFSET_SIZE = 1024.0
"""Estimated bytes per offset while no partition has a sample."""

SAMPLE_SHARE = 16
"""The samples that one broker returns for one batch have at most the bytes of the limit divided by this number, or one
record batch."""

MAX_OFFSET_SIZE = 1024 * 1024
"""Maximum bytes per offset, as brokers limit record batches by default. If a batch has so few offsets that it fits into
the limit even at this size, nothing is sampled. Earlier samples do not count here, because sizes may change at any
time."""


class ByteLimit:
    """Limits the batches of a query by the sizes of its records. Only the query's thread may call it.

    ``_sizes`` has the bytes per offset of the latest sample of each partition, the oldest sample first.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._sizes: dict[TopicPartition, float] = {}
        self._retry_at: dict[TopicPartition, float] = {}

    def limit(self, positions: Offsets, ends: Offsets, max_bytes: int) -> dict[TopicPartition, int]:
        """``ends``, or earlier ones if the offsets from ``positions`` have more bytes than the limit.

        All partitions then read the same fraction of their offsets, at least one offset each.
        """
        self._forget_others(positions)
        counts = backlogs(positions, ends)
        if sum(counts.values()) * MAX_OFFSET_SIZE <= max_bytes:
            return dict(ends)
        self._sample(self._starts_without_sample(positions, counts), max_bytes)
        counts = _part(counts, self._estimates(counts), max_bytes)
        at_start = self._estimates(counts)
        self._sample({tp: positions[tp] + count - 1 for tp, count in counts.items()}, max_bytes)
        at_end = self._estimates(counts)
        means = {tp: (at_start[tp] + at_end[tp]) / 2 for tp in counts}
        counts = _part(counts, means, max_bytes)
        return {tp: positions[tp] + counts.get(tp, 0) for tp in ends}

    def _forget_others(self, positions: Offsets) -> None:
        """Forgets the samples of other partitions: if the query owns one again, its next records may have other
        sizes."""
        self._sizes = {tp: size for tp, size in self._sizes.items() if tp in positions}

    def _starts_without_sample(self, positions: Offsets, partitions: Offsets) -> dict[TopicPartition, int]:
        """The positions of the partitions without a sample."""
        return {tp: positions[tp] for tp in partitions if tp not in self._sizes}

    def _estimates(self, partitions: Offsets) -> dict[TopicPartition, float]:
        """The bytes per offset of each partition: its last sample, else the mean of the other partitions' samples."""
        known = [self._sizes[tp] for tp in partitions if tp in self._sizes]
        mean = ESTIMATED_OFFSET_SIZE
        if known:
            mean = sum(known) / len(known)
        return {tp: self._sizes.get(tp, mean) for tp in partitions}

    def _sample(self, offsets: Offsets, max_bytes: int) -> None:
        """Samples the record batches at these offsets, unless the leader of a partition has recently not answered."""
        now = self._clock()
        due = self._due(offsets, now)
        if not due:
            return
        samples = self._fetch_samples({tp: offsets[tp] for tp in due}, max_bytes)
        # A partition with a new sample moves to the end: its sample is the latest.
        for tp in samples.sizes:
            self._sizes.pop(tp, None)
        self._sizes |= samples.sizes
        self._retry_at |= dict.fromkeys(samples.unanswered, now + SAMPLE_RETRY_INTERVAL)

    def _due(self, offsets: Offsets, now: float) -> list[TopicPartition]:
        """The partitions to sample, those without a sample first, then by the age of their sample.

        The order counts: a broker sends a large record batch only at the start of a response.
        """
        ordered: list[TopicPartition] = []
        for tp in offsets:
            if tp not in self._sizes:
                ordered.append(tp)
        for tp in self._sizes:
            if tp in offsets:
                ordered.append(tp)
        return [tp for tp in ordered if self._retry_at.get(tp, now) <= now]

    def _fetch_samples(self, offsets: Offsets, max_bytes: int) -> Samples:
        from spark_group_source.query.size_samples import Samples, sample_sizes  # noqa: PLC0415 -- numpy takes 0.1 s

        deadline = Deadline.after(SAMPLES_TIMEOUT, self._clock)
        share = max(1, max_bytes // SAMPLE_SHARE)
        try:
            topics = self._cluster.topics(topics_of(offsets), deadline)
            return sample_sizes(self._cluster, topics, offsets, share, deadline)
        except GroupSourceError as error:
            # Tasks report errors that keep records from being read.
            log.debug("cannot sample the sizes of records, so the batch relies on other estimates: %s", error)
            return Samples({}, set(offsets))


def _part(counts: Offsets, sizes: Mapping[TopicPartition, float], max_bytes: int) -> dict[TopicPartition, int]:
    """The same fraction of each number of offsets, at least one offset, so that their bytes are within the limit."""
    total = sum(sizes[tp] * count for tp, count in counts.items())
    if total <= max_bytes:
        return dict(counts)
    return {tp: max(1, int(count * max_bytes / total)) for tp, count in counts.items()}
