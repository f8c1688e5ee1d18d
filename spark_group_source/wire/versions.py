"""One pinned version per API.

Each is the newest that Kafka 3.3 knows, and Kafka 4 still does, so that nothing has to be negotiated: a connection only
checks that the broker speaks them all. Fetch 13 is the first with topic ids.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest

from spark_group_source.errors import ProtocolError

API_VERSIONS = 3
FETCH = 13
LIST_OFFSETS = 7
OFFSET_FOR_LEADER_EPOCH = 4
METADATA = 12
OFFSET_COMMIT = 8
OFFSET_FETCH = 8
FIND_COORDINATOR = 4
JOIN_GROUP = 9
HEARTBEAT = 4
LEAVE_GROUP = 5
SYNC_GROUP = 5
DESCRIBE_GROUPS = 5
SASL_HANDSHAKE = 1
SASL_AUTHENTICATE = 2

PINNED = {
    FetchRequest: FETCH,
    ListOffsetsRequest: LIST_OFFSETS,
    OffsetForLeaderEpochRequest: OFFSET_FOR_LEADER_EPOCH,
    MetadataRequest: METADATA,
    OffsetCommitRequest: OFFSET_COMMIT,
    OffsetFetchRequest: OFFSET_FETCH,
    FindCoordinatorRequest: FIND_COORDINATOR,
    JoinGroupRequest: JOIN_GROUP,
    HeartbeatRequest: HEARTBEAT,
    LeaveGroupRequest: LEAVE_GROUP,
    SyncGroupRequest: SYNC_GROUP,
    DescribeGroupsRequest: DESCRIBE_GROUPS,
}
"""Request class to the version sent."""


def request() -> Any:
    """Asks a broker what it speaks."""
    return ApiVersionsRequest(
        version=API_VERSIONS, client_software_name="spark-group-source", client_software_version="1"
    )


def check(answer: Any, broker: str) -> None:
    """Raises ``ProtocolError`` if the broker does not speak one of the pinned versions."""
    spoken = {each.api_key: each for each in answer.api_keys}
    for needed, version in PINNED.items():
        known = spoken.get(needed.API_KEY)
        if known is None or not known.min_version <= version <= known.max_version:
            spoken_ones = f"{known.min_version} to {known.max_version}" if known else "none"
            raise ProtocolError(
                f"Broker {broker} does not speak version {version} of {needed.name}, but {spoken_ones}.",
                "Kafka 3.3 or later is needed.",
            )
