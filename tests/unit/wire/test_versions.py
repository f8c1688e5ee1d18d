"""Which version of a request a connection sends, and to which brokers it sends none."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest

from spark_group_source.errors import ProtocolError, UnsupportedRequest
from spark_group_source.wire import versions
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka, releases
from tests.fake.releases import Offered
from tests.unit.wire_options import after

BROKER = "1 (host:9092)"
SUPPORTED = [release for release in BROKER_API_VERSIONS if release >= (2, 1)]
TOO_OLD = [release for release in BROKER_API_VERSIONS if (0, 10) <= release < (2, 1)]
OPTIONS = WireOptions((("127.0.0.1", 1),), "test", connect_timeout=2.0)


def api_versions(offered: Offered, group_version: int | None = None) -> Any:
    """Returns a broker's response."""
    api, feature = ApiVersionsResponse.ApiVersion, ApiVersionsResponse.FinalizedFeatureKey
    keys = [api(api_key=key, min_version=low, max_version=high) for key, (low, high) in offered.items()]
    group = feature(name="group.version", max_version_level=group_version, min_version_level=1)
    features = None if group_version is None else [group]
    return ApiVersionsResponse(version=versions.API_VERSIONS, api_keys=keys, finalized_features=features)


@pytest.mark.parametrize("release", SUPPORTED)
def test_every_kafka_from_2_1_on_is_supported(release: tuple[int, int]) -> None:
    response = api_versions(releases.kafka(*release), group_version=1)
    supported = versions.check_response(response, BROKER, consumer_protocol=release >= (4, 0))
    chosen = {key: versions.choose(supported, key, BROKER) for key in versions.KNOWN.keys() - versions.OPTIONAL}
    if release >= (3, 3):
        assert chosen == {key: versions.KNOWN[key][1] for key in chosen}, "the fast paths of today's brokers"


@pytest.mark.parametrize("release", TOO_OLD)
def test_an_older_kafka_is_rejected_because_it_deletes_commits_of_idle_partitions(release: tuple[int, int]) -> None:
    with pytest.raises(ProtocolError) as raised:
        versions.check_response(api_versions(releases.kafka(*release)), BROKER)
    assert raised.value.happened.endswith("of OffsetCommitRequest, and this source 5 to 8.")
    assert raised.value.action.startswith("Use Kafka 2.1 or later: an older broker deletes the committed offsets")


def test_an_error_names_broker_request_and_versions() -> None:
    with pytest.raises(ProtocolError) as raised:
        versions.check_response(api_versions({**releases.kafka(4, 1), 3: (0, 4)}), BROKER)
    happened = f"Broker {BROKER} supports version 0 to 4 of MetadataRequest, and this source 5 to 12."
    assert raised.value.happened == happened
    assert "Kafka 2.1 or later" in raised.value.action
    without = {key: each for key, each in releases.kafka(4, 1).items() if key != ApiKey.JoinGroup}
    with pytest.raises(ProtocolError, match=r"supports no version of JoinGroupRequest, and this source 3 to 9\."):
        versions.check_response(api_versions(without), BROKER)


def test_what_a_broker_lacks_is_named() -> None:
    closest = "reads from the closest replica"
    for offered, lacking in (
        (releases.kafka(4, 1), []),
        (releases.kafka(2, 8), []),
        (releases.kafka(2, 5), ["topic ids"]),
        (releases.kafka(2, 4), ["topic ids", "stable offsets"]),
        (releases.REDPANDA_2025, ["topic ids", "leader epochs"]),
        (releases.EVENT_HUBS_2026, ["topic ids", closest]),
        (releases.kafka(2, 1), ["topic ids", "leader epochs", "stable offsets", "static members", closest]),
    ):
        assert [each.partition(" (")[0] for each in versions.lacks(offered)] == lacking


def opened(fake: FakeKafka) -> Connection:
    return Connection.open("127.0.0.1", fake.brokers[1].port, OPTIONS, after())


@pytest.mark.parametrize("name", releases.ALL)
def test_a_connection_sends_the_highest_version_that_both_sides_know(name: str) -> None:
    with FakeKafka(offered=releases.ALL[name]) as fake, closing(opened(fake)) as connection:
        connection.call(MetadataRequest(topics=[]), after())
    asked = [request.version for api, _, request in fake.requests if api == "ApiVersions"]
    assert asked == ([3] if releases.ALL[name][ApiKey.ApiVersions][1] >= 3 else [3, 0])
    assert fake.requests[-1][2].version == min(12, releases.ALL[name][ApiKey.Metadata][1])


def test_a_request_without_a_common_version_is_not_sent_and_the_connection_stays_open() -> None:
    with FakeKafka(offered=releases.EVENT_HUBS_2026) as fake, closing(opened(fake)) as connection:
        with pytest.raises(UnsupportedRequest, match="version 0 to 0 of OffsetForLeaderEpochRequest"):
            connection.call(OffsetForLeaderEpochRequest(topics=[]), after())
        connection.call(MetadataRequest(topics=[]), after())


@pytest.mark.parametrize(
    ("offered", "later"),
    [
        (releases.kafka(2, 1), set[ApiKey]()),
        (releases.kafka(4, 1), set[ApiKey]()),
        (releases.EVENT_HUBS_2026, {ApiKey.Fetch, ApiKey.DescribeGroups, ApiKey.ListGroups}),
    ],
    ids=["2.1", "4.1", "Event Hubs"],
)
def test_kafka_answers_before_the_throttle_time_and_event_hubs_partly_after_it(
    offered: Offered, later: set[ApiKey]
) -> None:
    for key in versions.KNOWN.keys() - {ApiKey.SaslHandshake, ApiKey.SaslAuthenticate, ApiKey.OffsetForLeaderEpoch}:
        request = type("Request", (), {"API_KEY": key, "API_VERSION": versions.choose(offered, key, BROKER)})
        assert versions.answered_before_throttle(request) == (key not in later), key


@pytest.mark.parametrize(
    ("release", "group_version", "says"),
    [
        *((each, None, r"version 1 of ConsumerGroupHeartbeatRequest \(it supp") for each in SUPPORTED if each < (4, 0)),
        ((4, 0), None, r"the feature group\.version=1\."),
        ((4, 0), 0, r"the feature group\.version=1\."),
    ],
)
def test_a_cluster_before_kafka_4_or_without_the_feature_lacks_the_consumer_protocol(
    release: tuple[int, int], group_version: int | None, says: str
) -> None:
    response = api_versions(releases.kafka(*release), group_version)
    name = ".".join(map(str, release))
    lacks = rf"Broker 1 .*\(Kafka {name}\) does not support kafka\.group\.protocol=consumer\..*lacks .*{says}"
    with pytest.raises(ProtocolError, match=f"{lacks}.*Use Kafka 4.0 or later.*set kafka.group.protocol=classic"):
        versions.check_response(response, BROKER, consumer_protocol=True)
