"""One pinned version per API.

Each is the newest that Kafka 3.3 knows, and Kafka 4 still does, so that nothing has to be negotiated: a connection only
checks that the broker speaks them all. Fetch 13 is the first with topic ids.
"""

from __future__ import annotations

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

API_VERSIONS = 3
FETCH = 13
LIST_OFFSETS = 7
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
