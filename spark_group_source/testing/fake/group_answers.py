"""What a coordinator answers of a group's members and offsets. Pure, but for the offsets that a commit sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol import admin, consumer

from spark_group_source.offsets import TopicPartition, numbers_by_topic
from spark_group_source.testing.fake.group import FakeGroup

UNKNOWN_TOPIC, METADATA_TOO_LARGE = 3, 12

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """One OffsetCommit as it came, and the code of its answer (0: taken)."""

    group: str
    member_id: str
    generation: int
    offsets: dict[Partition, int]
    metadata: str
    error: int


def described(name: str, group: FakeGroup, errno: int) -> Any:
    """State and members of a group; one that nobody has joined or committed to is not there."""
    group_of = admin.DescribeGroupsResponse.DescribedGroup
    members = [
        group_of.DescribedGroupMember(
            version=5,
            member_id=each.id,
            group_instance_id=each.instance,
            client_id="client",
            client_host="/127.0.0.1",
            member_assignment=each.assignment,
        )
        for each in group.members.values()
    ]
    there = group.members or group.offsets
    return group_of(
        version=5,
        error_code=errno,
        group_id=name,
        group_state=group.state if there else "Dead",
        protocol_type="consumer" if there else "",
        protocol_data=group.protocol,
        members=[] if errno else members,
    )


def committed(
    request: Any, group: FakeGroup, logs: Mapping[str, Collection[int]], refused: int, max_metadata: int
) -> tuple[list[Any], Commit]:
    """Sets the offsets that may be set; the topics of the answer, and what came."""
    taken: dict[Partition, int] = {}
    texts = set()
    topic_of = consumer.OffsetCommitResponse.OffsetCommitResponseTopic
    topics = []
    for topic in request.topics:
        answered = topic_of(version=8, name=topic.name, partitions=[])
        for part in topic.partitions:
            text = part.committed_metadata or ""
            known = part.partition_index in logs.get(topic.name, {})
            errno = refused or (0 if known else UNKNOWN_TOPIC)
            errno = errno or (METADATA_TOO_LARGE if len(text) > max_metadata else 0)
            if not errno:
                group.offsets[topic.name, part.partition_index] = part.committed_offset, text
                group.epochs[topic.name, part.partition_index] = part.committed_leader_epoch
            taken[topic.name, part.partition_index] = part.committed_offset
            texts.add(text)
            answered.partitions.append(
                topic_of.OffsetCommitResponsePartition(
                    version=8, partition_index=part.partition_index, error_code=errno
                )
            )
        topics.append(answered)
    came = request.group_id, request.member_id, request.generation_id_or_member_epoch
    return topics, Commit(*came, taken, "|".join(sorted(texts)), errno)


def offsets(asked: Any, group: FakeGroup, errno: int) -> Any:
    """The offsets of the partitions asked for, or of all; -1 where none is known."""
    group_of = consumer.OffsetFetchResponse.OffsetFetchResponseGroup
    topic_of = group_of.OffsetFetchResponseTopics
    part_of = topic_of.OffsetFetchResponsePartitions
    everything = numbers_by_topic(TopicPartition(*tp) for tp in group.offsets)  # what no topics at all ask for
    named = {} if asked.topics is None else {each.name: each.partition_indexes for each in asked.topics}
    topics = []
    for name, numbers in ({} if errno else everything if asked.topics is None else named).items():
        parts = []
        for number in numbers:
            offset, text = group.offsets.get((name, number), (-1, ""))
            parts.append(
                part_of(
                    version=8,
                    partition_index=number,
                    committed_offset=offset,
                    committed_leader_epoch=group.epochs.get((name, number), -1),
                    metadata=text,
                    error_code=0,
                )
            )
        topics.append(topic_of(version=8, name=name, partitions=parts))
    return group_of(version=8, group_id=asked.group_id, topics=topics, error_code=errno)
