"""Samples of the sizes of records: one small fetch from each partition, whose records are not decoded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from spark_group_source.clock import Deadline
from spark_group_source.errors import RecordsError
from spark_group_source.fetch.messages import FetchPartition, answered_partitions, build_request
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.records.batches import find_record_batches
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import send_to_leaders
from spark_group_source.wire.metadata import Topic

SAMPLES = "samples"
"""The purpose of the connections for samples. If a quota throttles them, lookups of end offsets still go through."""

MAX_PARTITION_BYTES = 64 * 1024
"""Maximum size in bytes of the sample of one partition, unless its first record batch is larger."""

MIN_PARTITION_BYTES = 4 * 1024
"""Minimum size in bytes to request of one partition."""

MAX_SAMPLE_BYTES = 1024 * 1024
"""Maximum size in bytes of one response, unless the first record batch is larger."""


class Samples(NamedTuple):
    """The result of sampling partitions.

    Attributes:
        sizes: the mean bytes per offset of the record batches in each sample, as they are stored.
        unanswered: the partitions whose leader did not answer.
    """

    sizes: dict[TopicPartition, float]
    unanswered: set[TopicPartition]


def sample_sizes(
    cluster: Cluster, topics: Mapping[str, Topic], offsets: Offsets, max_bytes: int, deadline: Deadline
) -> Samples:
    """Samples the record batches that begin at or around these offsets.

    A partition may have no sample although its leader answered: a broker sends a record batch that does not fit only at
    the start of a response. Such partitions are requested again with more bytes. If ``max_bytes`` ends the requests,
    the first partitions in ``offsets`` have precedence.

    Args:
        max_bytes: size of all samples from one broker, unless the first record batch is larger.

    Raises:
        TopicError: the principal may not read a topic.
    """
    names = {topic.id: topic.name for topic in topics.values()}
    samples = Samples({}, set())
    missing, factor = dict(offsets), 1
    while missing and max_bytes > 0 and not deadline.expired():
        build = partial(_request, topics, max_bytes=min(max_bytes, MAX_SAMPLE_BYTES), factor=factor)
        responses, errors = send_to_leaders(cluster, topics, missing, build, deadline, SAMPLES)
        samples.unanswered.update(errors)
        found: dict[TopicPartition, float] = {}
        largest = 0
        for response in responses:
            sizes, number_of_bytes = _sizes(names, response, offsets)
            found |= sizes
            largest = max(largest, number_of_bytes)
        if not found:
            break
        samples.sizes.update(found)
        for tp in (*found, *errors):
            missing.pop(tp, None)
        max_bytes -= largest
        if len(found) <= len(responses):  # only the first record batch of each response, whatever its size
            factor *= 2
    return samples


def _request(topics: Mapping[str, Topic], offsets: Offsets, max_bytes: int, factor: int) -> Any:
    each = min(max(max_bytes // len(offsets), MIN_PARTITION_BYTES), MAX_PARTITION_BYTES)
    # A response holds no more than MAX_SAMPLE_BYTES of one partition, and the request's field has 32 bits.
    each = min(each * factor, MAX_SAMPLE_BYTES)
    partitions = [FetchPartition(tp, topics[tp.topic].id, offset, each) for tp, offset in offsets.items()]
    return build_request(partitions, max_wait=0.0, max_bytes=max_bytes, read_committed=False)


def _sizes(names: Mapping[str, str], response: Any, offsets: Offsets) -> tuple[dict[TopicPartition, float], int]:
    """The sizes that a response shows, and its number of bytes. ``names`` has the topics by their ids, if known."""
    sizes: dict[TopicPartition, float] = {}
    number_of_bytes = 0
    for tp, data in answered_partitions(response, names):
        if tp not in offsets or not data.records:
            continue
        number_of_bytes += len(data.records)
        size = _offset_size(tp, offsets[tp], memoryview(bytes(data.records)))
        if size is not None:
            sizes[tp] = size
    return sizes, number_of_bytes


def _offset_size(tp: TopicPartition, offset: int, records: memoryview) -> float | None:
    """The mean bytes per offset of whole record batches; ``None`` if there are none, or none that can be read."""
    try:
        batches = find_record_batches(tp, records)
        end = batches.next_offset
    except RecordsError:
        return None  # the task that reads them reports it
    if end is None:
        return None
    # Compaction may have removed all records between the requested offset and the first record batch.
    first = min(offset, batches.base_offset(0))
    if end <= first:
        return None
    return batches.boundaries[-1] / (end - first)
