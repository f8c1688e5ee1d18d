"""One pinned version per API.

Each is the newest version that Kafka 3.3 supports, and Kafka 4 still supports it. So the source negotiates nothing: a
connection only checks that the broker supports them all. Fetch 13 is the first version with topic ids.
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
"""Maps each request class to the version that the source sends."""


def build_request() -> Any:
    """Builds the request for the API versions that a broker supports."""
    return ApiVersionsRequest(
        version=API_VERSIONS, client_software_name="spark-group-source", client_software_version="1"
    )


def check_response(response: Any, broker: str) -> None:
    """Raises ``ProtocolError`` if the broker does not support one of the pinned versions."""
    supported = {api.api_key: api for api in response.api_keys}
    for request, version in PINNED.items():
        api = supported.get(request.API_KEY)
        if api is None or not api.min_version <= version <= api.max_version:
            found = f"{api.min_version} to {api.max_version}" if api else "none"
            raise ProtocolError(
                f"Broker {broker} does not support version {version} of {request.name}. It supports: {found}.",
                "Use Kafka 3.3 or later.",
            )
