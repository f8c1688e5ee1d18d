"""The versions of each request that the source knows, and what the source lacks with older brokers.

A connection uses the highest version that its broker also knows, so the brokers of one cluster may differ. The lowest
versions are those of Kafka 2.1, the oldest release that Kafka's own client supports (KIP-896), or older versions that
Azure Event Hubs still offers. The highest versions are those of Kafka 3.3: later ones add nothing that the source uses,
except for the group protocol of KIP-848 and for commits by topic id. Those requests name their version, and the source
sends them only to a broker that supports it.

Version 5 of OffsetCommit distinguishes Kafka 2.1 from older releases (KIP-211). An older broker deletes each committed
offset after ``offsets.retention.minutes``, even for an idle partition in a group with members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from spark_group_source.errors import ProtocolError, UnsupportedRequest

API_VERSIONS = 3

NEVER = 2**15

KNOWN = {
    # lowest, highest, and the first that is answered before the throttle time has passed (KIP-219)
    ApiKey.OffsetCommit: (5, 8, 4),  # the first, because its error names what an older Kafka lacks
    ApiKey.Fetch: (4, 13, 8),
    ApiKey.ListOffsets: (2, 7, 3),
    ApiKey.OffsetForLeaderEpoch: (2, 4, 2),
    ApiKey.Metadata: (5, 12, 6),
    ApiKey.OffsetFetch: (5, 8, 4),
    ApiKey.FindCoordinator: (2, 4, 2),
    ApiKey.JoinGroup: (3, 9, 3),
    ApiKey.Heartbeat: (2, 4, 2),
    ApiKey.LeaveGroup: (2, 5, 2),
    ApiKey.SyncGroup: (2, 5, 2),
    ApiKey.DescribeGroups: (1, 5, 2),
    ApiKey.ListGroups: (1, 4, 2),
    ApiKey.SaslHandshake: (1, 1, NEVER),
    ApiKey.SaslAuthenticate: (0, 2, NEVER),
}

OPTIONAL = {
    *(ApiKey.OffsetForLeaderEpoch, ApiKey.DescribeGroups, ApiKey.ListGroups),
    *(ApiKey.SaslHandshake, ApiKey.SaslAuthenticate),
}
"""Requests that a query can do without."""

FETCH_BY_TOPIC_ID = 13
RELIABLE_EPOCHS = 9
"""The first version of Metadata with leader epochs that are never those of an earlier leader."""
STATIC_MEMBERS = range(5, KNOWN[ApiKey.JoinGroup][1] + 1)
"""A broker that supports static members knows at least one of these versions of JoinGroup."""

LACKS = (
    (ApiKey.Metadata, 10, "topic ids (a recreated topic may pass for the former one)"),
    (ApiKey.Metadata, RELIABLE_EPOCHS, "leader epochs (records replaced by an unclean leader election go unnoticed)"),
    (ApiKey.OffsetFetch, 7, "stable offsets (commits in open transactions of other programs are overlooked)"),
    (ApiKey.JoinGroup, STATIC_MEMBERS.start, "static members"),
    (ApiKey.Fetch, 11, "reads from the closest replica"),
)
"""A request, a version, and what a broker lacks that knows only earlier versions."""

CONSUMER_GROUP_HEARTBEAT = 1
CONSUMER_GROUP_DESCRIBE = 1
MEMBER_OFFSET_COMMIT = 9
MEMBER_OFFSET_FETCH = 9
OFFSET_COMMIT_BY_TOPIC_ID = 10
"""Kafka 4.1 and later; used where the coordinator supports it."""

DESCRIBE_CONFIGS = 4
"""Used where the coordinator supports it."""

CONSUMER_PROTOCOL = {
    ApiKey.ConsumerGroupHeartbeat: CONSUMER_GROUP_HEARTBEAT,
    ApiKey.ConsumerGroupDescribe: CONSUMER_GROUP_DESCRIBE,
    ApiKey.OffsetCommit: MEMBER_OFFSET_COMMIT,
    ApiKey.OffsetFetch: MEMBER_OFFSET_FETCH,
}
"""The versions that a member with KIP-848 sends. The requests about offsets carry a member epoch."""

Supported = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API that a broker supports."""

GROUP_VERSION = "group.version"
"""The cluster's feature that switches KIP-848 on, with level 1 or higher. Kafka 3.9 supports the requests without this
feature."""


def build_request(version: int = API_VERSIONS) -> Any:
    """Builds the request for the API versions that a broker supports."""
    return ApiVersionsRequest(version=version, client_software_name="spark-group-source", client_software_version="1")


def answered_before_throttle(request: Any) -> bool:
    """Whether the response begins with a throttle time that is still to pass. In ApiVersions, other fields come
    first."""
    key, version = request.API_KEY, request.API_VERSION
    if key in KNOWN:
        _, _, with_throttle = KNOWN[key]
        return bool(version >= with_throttle)
    return key in CONSUMER_PROTOCOL


def check_response(response: Any, broker: str, *, consumer_protocol: bool = False) -> Supported:
    """Checks and returns the API versions that a broker supports.

    Raises:
        ProtocolError: a request that each query needs has no version that both sides know; or ``consumer_protocol``
            needs KIP-848, which is switched off.
    """
    supported = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    for key in KNOWN:
        if key not in OPTIONAL:
            choose(supported, key, broker)
    if consumer_protocol:
        _check_consumer_protocol(response, supported, broker)
    return supported


def choose(supported: Supported, key: int, broker: str, most: int | None = None) -> int:
    """The highest version of a request that both sides know, up to ``most``.

    Raises:
        UnsupportedRequest: there is none.
    """
    lowest, highest, _ = KNOWN[ApiKey(key)]
    if most is None:
        most = highest
    least, version = supported.get(key, (0, -1))
    version = min(version, most)
    if version < max(lowest, least):
        raise UnsupportedRequest(
            f"Broker {broker} supports {_range(supported, key)} of {ApiKey(key).name}Request, and this source {lowest}"
            f" to {highest}.",
            "Use Kafka 2.1 or later: an older broker deletes the committed offsets of idle partitions while the query"
            " runs. A proxy in between may hide the broker's versions.",
        )
    return version


def supports(supported: Supported, key: int, version: int) -> bool:
    """Whether the broker supports this version of a request."""
    lowest, highest = supported.get(key, (0, -1))
    return lowest <= version <= highest


def lacks(supported: Supported) -> list[str]:
    """The features that the broker lacks, for the log."""
    lacking = []
    for key, version, what in LACKS:
        _, highest = supported[key]
        if highest < version:
            lacking.append(what)
    return lacking


def _range(supported: Supported, key: int) -> str:
    if key not in supported:
        return "no version"
    lowest, highest = supported[key]
    return f"version {lowest} to {highest}"


def _has_group_feature(response: Any) -> bool:
    """Whether the cluster has KIP-848 switched on."""
    if response.finalized_features is None:
        return False
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    return bool(levels.get(GROUP_VERSION, 0) >= 1)


def _check_consumer_protocol(response: Any, supported: Supported, broker: str) -> None:
    missing = []
    for key, version in CONSUMER_PROTOCOL.items():
        if not supports(supported, key, version):
            missing.append(f"version {version} of {key.name}Request (it supports {_range(supported, key)})")
    if not _has_group_feature(response):
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
