"""One pinned version per API.

Each is the newest version that Kafka 3.3 supports, and Kafka 4 still supports it. The source negotiates nothing: a
connection only checks that the broker supports them all. Fetch 13 is the first version with topic ids.

A member with the group protocol of KIP-848 sends four requests in newer versions, which Kafka 4.0 and all later ones
support. Only its connections check them. Any query may send ConsumerGroupDescribe, if the broker supports it.
"""

from __future__ import annotations

from collections.abc import Mapping
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

CONSUMER_GROUP_HEARTBEAT = 1
CONSUMER_GROUP_DESCRIBE = 1
MEMBER_OFFSET_COMMIT = 9
MEMBER_OFFSET_FETCH = 9
OFFSET_COMMIT_BY_TOPIC_ID = 10
"""Kafka 4.1 and later; used where the coordinator supports it."""

DESCRIBE_CONFIGS = 4
"""Used where the coordinator supports it."""

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

CONSUMER_PROTOCOL = {
    ApiKey.ConsumerGroupHeartbeat: CONSUMER_GROUP_HEARTBEAT,
    ApiKey.ConsumerGroupDescribe: CONSUMER_GROUP_DESCRIBE,
    ApiKey.OffsetCommit: MEMBER_OFFSET_COMMIT,
    ApiKey.OffsetFetch: MEMBER_OFFSET_FETCH,
}
"""The same for the requests of a member with KIP-848; those about offsets carry a member epoch."""

Supported = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API that a broker supports."""

GROUP_VERSION = "group.version"
"""The cluster's feature that switches KIP-848 on: 1 or higher. Kafka 3.9 supports the requests without it."""


def build_request() -> Any:
    """Builds the request for the API versions that a broker supports."""
    return ApiVersionsRequest(
        version=API_VERSIONS, client_software_name="spark-group-source", client_software_version="1"
    )


def check_response(response: Any, broker: str, *, consumer_protocol: bool = False) -> Supported:
    """Checks the API versions that a broker supports, and returns them.

    Raises:
        ProtocolError: a pinned version is missing, or KIP-848 is needed for ``consumer_protocol`` and switched off.
    """
    supported = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    for key, version in PINNED.items():
        if missing := _missing(supported, key, version):
            raise ProtocolError(f"Broker {broker} does not support {missing}.", "Use Kafka 3.3 or later.")
    if consumer_protocol:
        _check_consumer_protocol(response, supported, broker)
    return supported


def _missing(supported: Supported, key: ApiKey, version: int) -> str:
    """The version that the broker lacks, as text; empty if it supports the version."""
    lowest, highest = supported.get(key, (0, -1))
    if lowest <= version <= highest:
        return ""
    found = f"{lowest} to {highest}" if highest >= 0 else "none"
    return f"version {version} of {key.name}Request (it supports {found})"


def _check_consumer_protocol(response: Any, supported: Supported, broker: str) -> None:
    missing = [text for key, version in CONSUMER_PROTOCOL.items() if (text := _missing(supported, key, version))]
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features or ()}
    if levels.get(GROUP_VERSION, 0) < 1:
        missing.append(f"the feature {GROUP_VERSION}=1")
    if missing:
        # Imports the messages of the admin client, which take long.
        from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions

        release = ".".join(map(str, infer_broker_version_from_api_versions(supported)))
        raise ProtocolError(
            f"Broker {broker} (Kafka {release}) does not support kafka.group.protocol=consumer. It lacks"
            f" {', '.join(missing)}.",
            f"Use Kafka 4.0 or later with the feature {GROUP_VERSION}=1, or set kafka.group.protocol=classic.",
        )
