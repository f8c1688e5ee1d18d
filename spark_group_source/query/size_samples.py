"""Samples of the sizes of records: one small fetch from each partition, whose records are not decoded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import RecordsError
from spark_group_source.fetch.messages import FetchPartition, build_request
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.records.batches import find_record_batches
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.leaders import send_to_leaders
from spark_group_source.wire.metadata import Topic

PURPOSE = "samples"
"""The connections for samples. A quota of bytes stops these, but not the lookups of end offsets."""

MAX_PARTITION_BYTES = 64 * 1024
"""Maximum size in bytes of the sample of one partition, unless its first record batch is larger."""

MIN_PARTITION_BYTES = 4 * 1024
"""Minimum size in bytes to ask of one partition."""

MAX_BYTES = 1024 * 1024
"""Maximum size in bytes of one response, unless the first record batch is larger."""


def sample_sizes(
    cluster: Cluster, topics: Mapping[str, Topic], offsets: Offsets, max_bytes: int, deadline: Deadline
) -> tuple[dict[TopicPartition, float], set[TopicPartition]]:
    """The mean bytes per offset of the record batches that begin at or around these offsets, as they are stored.

    Also returns the partitions whose leader did not answer. Others may have no sample either: a broker sends a record
    batch that does not fit only at the start of a response. Partitions without a sample are asked again for more bytes.
    If ``max_bytes`` ends that, the order of ``offsets`` says which partitions come first.

    Args:
        max_bytes: size of all samples from one broker, unless the first record batch is larger.

    Raises:
        TopicError: the principal may not read a topic.
    """
    names = {topic.id: topic.name for topic in topics.values()}
    sizes: dict[TopicPartition, float] = {}
    silent: set[TopicPartition] = set()
    missing, factor = dict(offsets), 1
    while missing and max_bytes > 0 and not deadline.expired():
        build = partial(_request, topics, max_bytes=min(max_bytes, MAX_BYTES), factor=factor)
        responses, errors = send_to_leaders(cluster, topics, missing, build, deadline, PURPOSE)
        silent |= errors.keys()
        received = [_sizes(names, response, offsets) for response in responses]
        found = {tp: size for of_broker, _ in received for tp, size in of_broker.items()}
        if not found:
            break
        sizes |= found
        missing = {tp: offset for tp, offset in missing.items() if tp not in sizes and tp not in silent}
        max_bytes -= max(number_of_bytes for _, number_of_bytes in received)
        if len(found) <= len(responses):  # only the first record batch of each response, whatever its size
            factor *= 2
    return sizes, silent


def _request(topics: Mapping[str, Topic], offsets: Offsets, max_bytes: int, factor: int) -> Any:
    each = min(max(max_bytes // len(offsets), MIN_PARTITION_BYTES), MAX_PARTITION_BYTES)
    # A response holds no more than MAX_BYTES of one partition, and the request's field has 32 bits.
    each = min(each * factor, MAX_BYTES)
    partitions = [FetchPartition(tp, topics[tp.topic].id, offset, each) for tp, offset in offsets.items()]
    return build_request(partitions, max_wait=0.0, max_bytes=max_bytes, read_committed=False)


def _sizes(names: Mapping[str, str], response: Any, offsets: Offsets) -> tuple[dict[TopicPartition, float], int]:
    """The sizes that a response shows, and its number of bytes. ``names`` has the topics by their ids, if known."""
    sizes: dict[TopicPartition, float] = {}
    received = 0
    for topic in response.responses:
        for partition in topic.partitions:
            tp = TopicPartition(names.get(str(topic.topic_id), topic.topic), partition.partition_index)
            if tp in offsets and partition.records:
                received += len(partition.records)
                _add(sizes, tp, offsets[tp], memoryview(bytes(partition.records)))
    return sizes, received


def _add(sizes: dict[TopicPartition, float], tp: TopicPartition, offset: int, records: memoryview) -> None:
    try:
        batches = find_record_batches(tp, records)
        end = batches.next_offset
    except RecordsError:
        return  # the task that reads them reports it
    # Compaction may have removed all records between the requested offset and the first record batch.
    if end is not None and end > (first := min(offset, batches.base_offset(0))):
        sizes[tp] = batches.boundaries[-1] / (end - first)
