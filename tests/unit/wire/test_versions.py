"""Requests have the versions that connections check; only ``wire/versions.py`` contains the numbers."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS
from kafka.protocol.metadata import ApiVersionsResponse

import spark_group_source
from spark_group_source.errors import ProtocolError
from spark_group_source.wire import versions

PACKAGE = Path(spark_group_source.__file__).parent
SENDING = [path for path in sorted(PACKAGE.rglob("*.py")) if "testing" not in path.relative_to(PACKAGE).parts]
NO_REQUESTS = {"JoinGroupResponse.JoinGroupResponseMember"}
"""Not requests: arguments and results of kafka-python's assignors."""

CHOSEN = {"OffsetCommitRequest": "version", "OffsetFetchRequest": "version"}
"""The variable with the version of requests that the two group protocols send in different versions."""


def constant(request: str) -> str:
    """Returns the constant of a request's version: ``OFFSET_FETCH`` for ``OffsetFetchRequest``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", request.removesuffix("Request")).upper()


def versions_given(node: ast.AST) -> list[tuple[str, str]]:
    """Returns the called name and the ``version=`` of each call below a node."""
    return [
        (ast.unparse(call.func), ast.unparse(keyword.value))
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "version"
    ]


def functions() -> list[ast.FunctionDef]:
    """Returns all functions that build a request."""
    found = [
        node for path in SENDING for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    return [each for each in found if any(called.endswith("Request") for called, _ in versions_given(each))]


@pytest.mark.parametrize("path", SENDING, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_version_of_a_message_is_a_number(path: Path) -> None:
    given = versions_given(ast.parse(path.read_text()))
    assert [each for each in given if each[1].isdigit() and each[0] not in NO_REQUESTS] == []


@pytest.mark.parametrize("function", functions(), ids=lambda function: function.name)
def test_a_request_and_the_messages_in_it_have_the_version_of_its_name(function: ast.FunctionDef) -> None:
    given = versions_given(function)
    for request in {called for called, _ in given if called.endswith("Request")}:
        own = [version for called, version in given if called == request or not called.endswith("Request")]
        assert {each.removeprefix("versions.") for each in own} == {CHOSEN.get(request, constant(request))}


def test_the_version_of_every_request_after_the_check_is_checked() -> None:
    built = {called for each in functions() for called, _ in versions_given(each) if called.endswith("Request")}
    before = {"ApiVersionsRequest", "SaslHandshakeRequest", "SaslAuthenticateRequest"}
    sent_if_supported = {"DescribeConfigsRequest"}
    newer = {api: version for api, version in versions.CONSUMER_PROTOCOL.items() if api not in versions.PINNED}
    assert (built | {f"{each.name}Request" for each in newer}) - before - sent_if_supported == {
        f"{each.name}Request" for each in versions.PINNED | newer
    }
    for pinned in (versions.PINNED, newer):
        assert {each: getattr(versions, constant(each.name)) for each in pinned} == pinned


CLASSIC_ONLY = [release for release in BROKER_API_VERSIONS if (3, 3) <= release < (4, 0)]
WITH_CONSUMER_PROTOCOL = [release for release in BROKER_API_VERSIONS if release >= (4, 0)]


def api_versions(release: tuple[int, ...], group_version: int | None = None) -> Any:
    """Returns a broker's response, with the versions that kafka-python has recorded from that release."""
    api, feature = ApiVersionsResponse.ApiVersion, ApiVersionsResponse.FinalizedFeatureKey
    return ApiVersionsResponse(
        version=versions.API_VERSIONS,
        api_keys=[
            api(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in BROKER_API_VERSIONS[release].items()
        ],
        finalized_features=None
        if group_version is None
        else [feature(name="group.version", max_version_level=group_version, min_version_level=1)],
    )


@pytest.mark.parametrize("release", CLASSIC_ONLY + WITH_CONSUMER_PROTOCOL)
def test_the_classic_protocol_needs_kafka_3_3(release: tuple[int, int]) -> None:
    versions.check_response(api_versions(release), "1 (host:9092)")
    with pytest.raises(ProtocolError, match=r"version 13 of FetchRequest \(it supports 0 to 11\).*Kafka 3\.3"):
        versions.check_response(api_versions((2, 3)), "1 (host:9092)")


EVENT_HUBS = {0: (0, 7), 1: (4, 6), 2: (0, 8), 3: (0, 5), 8: (0, 8), 9: (0, 8), 10: (0, 4), 11: (0, 9), 12: (0, 4)}
"""A part of what a user of another client saw in November 2024: https://github.com/oliveigah/klife/issues/13"""


def test_the_versions_that_azure_event_hubs_offers_are_refused() -> None:
    api = ApiVersionsResponse.ApiVersion
    keys = [api(api_key=key, min_version=lowest, max_version=highest) for key, (lowest, highest) in EVENT_HUBS.items()]
    response = ApiVersionsResponse(version=versions.API_VERSIONS, api_keys=keys)
    with pytest.raises(ProtocolError, match=r"version 13 of FetchRequest \(it supports 4 to 6\).*Kafka 3\.3"):
        versions.check_response(response, "1 (host:9093)")


@pytest.mark.parametrize("release", WITH_CONSUMER_PROTOCOL)
def test_kafka_4_supports_the_consumer_protocol(release: tuple[int, int]) -> None:
    versions.check_response(api_versions(release, group_version=1), "1 (host:9092)", consumer_protocol=True)


@pytest.mark.parametrize("release", CLASSIC_ONLY)
def test_a_broker_before_kafka_4_lacks_the_consumer_protocol(release: tuple[int, int]) -> None:
    name = ".".join(map(str, release))
    with pytest.raises(ProtocolError) as raised:
        versions.check_response(api_versions(release), "1 (host:9092)", consumer_protocol=True)
    text = str(raised.value)
    assert f"Broker 1 (host:9092) (Kafka {name}) does not support kafka.group.protocol=consumer." in text
    assert "version 1 of ConsumerGroupHeartbeatRequest (it supports" in text
    assert "Use Kafka 4.0 or later" in text
    assert "set kafka.group.protocol=classic" in text


@pytest.mark.parametrize("group_version", [None, 0])
def test_a_cluster_without_the_feature_lacks_the_consumer_protocol(group_version: int | None) -> None:
    with pytest.raises(ProtocolError, match=r"\(Kafka 4\.0\).*lacks the feature group\.version=1\."):
        versions.check_response(api_versions((4, 0), group_version), "1 (host:9092)", consumer_protocol=True)
