"""One pinned version per API.

Each is the newest version that Kafka 3.3 supports, and Kafka 4 still supports it. So the source negotiates nothing: a
connection only checks that the broker supports them all. Fetch 13 is the first version with topic ids.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

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
    ApiKey.Fetch: FETCH,
    ApiKey.ListOffsets: LIST_OFFSETS,
    ApiKey.OffsetForLeaderEpoch: OFFSET_FOR_LEADER_EPOCH,
    ApiKey.Metadata: METADATA,
    ApiKey.OffsetCommit: OFFSET_COMMIT,
    ApiKey.OffsetFetch: OFFSET_FETCH,
    ApiKey.FindCoordinator: FIND_COORDINATOR,
    ApiKey.JoinGroup: JOIN_GROUP,
    ApiKey.Heartbeat: HEARTBEAT,
    ApiKey.LeaveGroup: LEAVE_GROUP,
    ApiKey.SyncGroup: SYNC_GROUP,
    ApiKey.DescribeGroups: DESCRIBE_GROUPS,
}
"""Maps each API to the version that the source sends. No process needs all request classes, and some take long to
import."""


def build_request() -> Any:
    """Builds the request for the API versions that a broker supports."""
    return ApiVersionsRequest(
        version=API_VERSIONS, client_software_name="spark-group-source", client_software_version="1"
    )


def check_response(response: Any, broker: str) -> None:
    """Raises ``ProtocolError`` if the broker does not support one of the pinned versions."""
    supported = {api.api_key: api for api in response.api_keys}
    for key, version in PINNED.items():
        api = supported.get(key)
        if api is None or not api.min_version <= version <= api.max_version:
            found = f"{api.min_version} to {api.max_version}" if api else "none"
            raise ProtocolError(
                f"Broker {broker} does not support version {version} of {key.name}Request. It supports: {found}.",
                "Use Kafka 3.3 or later.",
            )
