"""Groups for the tests of the assignors: cases as JSON, as the integration tests give them to Kafka's own client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_group_source.group.assignors.base import PartitionCounts
from spark_group_source.group.classic.assignment import Assignors, JoinedMember, decode_assignment
from spark_group_source.offsets import TopicPartition, numbers_by_topic

Case = Mapping[str, Any]
"""``assignor``; ``members`` with id, instance_id and subscription (hex); ``topics``: partitions as lists of racks."""
Answer = dict[str, dict[str, list[int]]]
"""Partition numbers by member and topic."""


JAVAS: list[Case] = json.loads(Path(__file__).with_name("java_assignments.json").read_text(encoding="utf-8"))
"""Cases with a ``name`` and Java's ``answer``. An integration test asks Java again."""


def ours(case: Case) -> Answer:
    """What this project's assignor assigns."""
    members = [
        JoinedMember(each["id"], bytes.fromhex(each["subscription"]), each["instance_id"]) for each in case["members"]
    ]
    encoded = Assignors([case["assignor"]]).assign(case["assignor"], members, partition_counts(case))
    return {member: numbers_by_topic(decode_assignment(share)) for member, share in encoded.items()}


def partition_counts(case: Case) -> PartitionCounts:
    """The topics of a case; a rack may be ``None``."""
    topics = case["topics"].items()
    return PartitionCounts(
        {topic: frozenset(range(len(partitions))) for topic, partitions in topics if partitions},
        {
            TopicPartition(topic, number): frozenset(rack for rack in racks if rack is not None)
            for topic, partitions in topics
            for number, racks in enumerate(partitions)
        },
    )


def is_complete(case: Case, answer: Answer) -> bool:
    """Whether each partition of a subscribed topic has one owner, or must be given up by another one first."""
    told = {each["id"]: _subscription(each) for each in case["members"]}
    given = [
        (member, TopicPartition(topic, number))
        for member, topics in answer.items()
        for topic, numbers in topics.items()
        for number in numbers
    ]
    taken = {tp for _, tp in given}
    wanted = {
        TopicPartition(topic, number)
        for topic in {topic for each in told.values() for topic in each.topics}
        for number in range(len(case["topics"].get(topic, ())))
    }
    claimed = {
        TopicPartition(owned.topic, number)
        for each in told.values()
        for owned in each.owned_partitions or ()
        for number in owned.partitions
    }
    return (
        all(tp.topic in told[member].topics for member, tp in given)
        and len(taken) == len(given)
        and wanted - taken <= (claimed if case["assignor"] == "cooperative-sticky" else set())
    )


def _subscription(member: Mapping[str, str]) -> Any:
    return ConsumerProtocolSubscription.decode(bytes.fromhex(member["subscription"]))
