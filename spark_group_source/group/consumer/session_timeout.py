"""The session timeout of a KIP-848 group, from the configuration of the group or the brokers: no heartbeat has it."""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_key import ApiKey

from spark_group_source.clock import Deadline
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.membership import RequestFailed
from spark_group_source.wire import versions

GROUP, BROKER = 32, 4
"""Types of resources: org.apache.kafka.common.config.ConfigResource. Kafka knows groups from 4.0 on."""


NAMES = {GROUP: "consumer.session.timeout.ms", BROKER: "group.consumer.session.timeout.ms"}


def session_timeout(client: CoordinatorClient, group_id: str, deadline: Deadline) -> float | None:
    """The session timeout in seconds, from the coordinator; ``None`` if it does not return it.

    Each request needs the right DESCRIBE_CONFIGS, on the group or on the cluster.
    """
    if not client.supports(ApiKey.DescribeConfigs, versions.DESCRIBE_CONFIGS):
        return None
    from kafka.protocol.admin import DescribeConfigsRequest  # takes 30 ms, which no join waits for

    resource_of = DescribeConfigsRequest.DescribeConfigsResource
    for kind, name in ((GROUP, group_id), (BROKER, str(client.broker_id))):
        resource = resource_of(
            version=versions.DESCRIBE_CONFIGS, resource_type=kind, resource_name=name, configuration_keys=[NAMES[kind]]
        )
        request = DescribeConfigsRequest(
            version=versions.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=False, include_documentation=False
        )
        response = client.call(request, deadline)
        if isinstance(response, RequestFailed):
            return None
        value = _value(response, NAMES[kind])
        if value.isdigit():
            return int(value) / 1000
    return None


def _value(response: Any, name: str) -> str:
    """The value of this configuration in a DescribeConfigs response; empty if it has none."""
    for result in response.results:
        for config in result.configs:
            if config.name == name and config.value:
                return str(config.value)
    return ""
