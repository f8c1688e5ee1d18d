"""The messages of KIP-848 have the bytes that Kafka's own classes (4.1) write."""

from __future__ import annotations

import functools
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import spark_group_source
from spark_group_source.group.consumer_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

TOPIC_ID = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
OWNED = "02000102030405060708090a0b0c0d0e0f0300000000000000020000"
"""Partitions 0 and 2 of this topic."""
IN_TOPIC_T = "02000102030405060708090a0b0c0d0e0f02740300000000000000020000"
"""The same with the topic's name."""


JOINING = {
    "member_epoch": 0,
    "instance_id": "i",
    "rack_id": "r",
    "rebalance_timeout_ms": 300_000,
    "subscribed_topic_names": ["t", "u"],
    "server_assignor": "uniform",
    "topic_partitions": [],
}


@pytest.mark.parametrize(
    ("version", "fields", "encoded"),
    [
        (0, JOINING, "0267026d0000000002690272000493e0030274027508756e69666f726d0100"),
        (
            1,
            JOINING | {"subscribed_topic_regex": "t.*"},
            "0267026d0000000002690272000493e0030274027504742e2a08756e69666f726d0100",
        ),
        (0, {"member_epoch": 7}, "0267026d000000070000ffffffff00000000"),
        (1, {"member_epoch": 7, "topic_partitions": [[0, 2]]}, f"0267026d000000070000ffffffff000000{OWNED}"),
    ],
    ids=["joins", "joins with a pattern", "unchanged", "partitions"],
)
def test_a_heartbeat_has_the_bytes_of_java(version: int, fields: dict[str, Any], encoded: str) -> None:
    topic = functools.partial(ConsumerGroupHeartbeatRequest.TopicPartitions, version=version, topic_id=TOPIC_ID)
    if "topic_partitions" in fields:
        fields = fields | {"topic_partitions": [topic(partitions=each) for each in fields["topic_partitions"]]}
    request = ConsumerGroupHeartbeatRequest(version=version, group_id="g", member_id="m", **fields)
    assert request.encode().hex() == encoded


@pytest.mark.parametrize("version", [0, 1])
def test_a_response_without_an_assignment_differs_from_one_with_partitions(version: int) -> None:
    decode = ConsumerGroupHeartbeatResponse[version].decode
    unchanged = decode(bytes.fromhex("00000003000000026d0000000700001388ff00"))
    assert (unchanged.throttle_time_ms, unchanged.error_code, unchanged.member_epoch) == (3, 0, 7)
    assert (unchanged.heartbeat_interval_ms, unchanged.assignment) == (5000, None)
    assigned = decode(bytes.fromhex(f"00000000000000026d000000080000138801{OWNED}00"))
    (topic,) = assigned.assignment.topic_partitions
    assert (assigned.member_epoch, topic.topic_id, topic.partitions) == (8, TOPIC_ID, [0, 2])


@pytest.mark.parametrize(("version", "member_type", "encoded_type"), [(0, -1, ""), (1, 1, "01")])
def test_a_described_group_has_its_members(version: int, member_type: int, encoded_type: str) -> None:
    request = ConsumerGroupDescribeRequest(version=version, group_ids=["g"], include_authorized_operations=False)
    assert request.encode().hex() == "0202670000"
    response = ConsumerGroupDescribeResponse[version].decode(
        bytes.fromhex(
            "0000000002000000026707537461626c65000000080000000808756e69666f726d02026d026902720000000802630b2f3132372e302e"
            f"302e3102027400{IN_TOPIC_T}{IN_TOPIC_T}{encoded_type}00800000000000"
        )
    )
    (group,) = response.groups
    (member,) = group.members
    assert (group.group_id, group.group_state, group.group_epoch, group.assignor_name) == ("g", "Stable", 8, "uniform")
    assert (member.member_id, member.instance_id, member.client_host) == ("m", "i", "/127.0.0.1")
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], None)
    for assignment in (member.assignment, member.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_id, topic.topic_name, topic.partitions) == (TOPIC_ID, "t", [0, 2])
    assert member.member_type == member_type


def test_the_schemas_load_from_a_zip(tmp_path: Path) -> None:
    """Spark distributes packages as zip files (``--py-files``)."""
    archive, package = tmp_path / "package.zip", Path(spark_group_source.__file__).parent
    with zipfile.ZipFile(archive, "w") as file:
        for path in (path for path in package.rglob("*") if path.suffix in (".py", ".json")):
            file.write(path, path.relative_to(package.parent))
    command = [sys.executable, "-c", "from spark_group_source.group import consumer_messages as m; print(m.__file__)"]
    printed = subprocess.check_output(command, text=True, timeout=90, env={"PYTHONPATH": str(archive)}, cwd=tmp_path)
    assert printed.startswith(str(archive))
