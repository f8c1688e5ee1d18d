"""The session timeout of a KIP-848 group, from the configuration of the group or the brokers: no response to a
heartbeat contains it."""

from __future__ import annotations

import logging
import math
from typing import Any

from kafka.protocol.api_key import ApiKey

from spark_group_source.clock import Backoff, Clock, Deadline
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.membership import RequestFailed
from spark_group_source.wire import versions

log = logging.getLogger(__name__)

GROUP, BROKER = 32, 4
"""Types of resources: org.apache.kafka.common.config.ConfigResource. Kafka knows groups from 4.0 on."""


NAMES = {GROUP: "consumer.session.timeout.ms", BROKER: "group.consumer.session.timeout.ms"}


FIRST_RETRY = 1.0
"""Seconds until the first retry of a failed lookup, which follows the next heartbeat after that time. Each further
retry waits twice as long, up to the metadata age."""


class SessionTimeout:
    """``seconds`` is the session timeout that the brokers have returned, or their default until they return one.

    With a timeout that is too long, a query would plan batches after its session has ended. The configuration and the
    permission to read it may change at any time, so the timeout is looked up after each join and again at each metadata
    age.
    """

    def __init__(self, group_id: str, default: float, max_age: float, clock: Clock) -> None:
        """``max_age`` is the metadata age in seconds."""
        self.seconds = default
        self._group_id = group_id
        self._max_age = max_age
        self._clock = clock
        self._retries = Backoff(FIRST_RETRY, max_age)
        self._due_at = math.inf
        self._logged = False

    def joined(self) -> None:
        """Makes a lookup due: the coordinator may be another one than before the join."""
        self._due_at = self._clock()

    def is_due(self) -> bool:
        """Whether :meth:`look_up` should be called."""
        return self._clock() >= self._due_at

    def look_up(self, client: CoordinatorClient, deadline: Deadline) -> None:
        """Asks the coordinator for the session timeout. Logs once if the timeout is not readable."""
        found = session_timeout(client, self._group_id, deadline)
        if isinstance(found, RequestFailed):
            self._due_at = self._clock() + self._retries.next()
            return
        self._retries.reset()
        self._due_at = self._clock() + self._max_age
        if found is not None:
            self.seconds = found
        elif not self._logged:
            self._logged = True
            log.info(
                "group %s: cannot read the group's session timeout, assuming %.0f s. Reading it needs DESCRIBE_CONFIGS"
                " on the group or the cluster.",
                self._group_id,
                self.seconds,
            )


def session_timeout(client: CoordinatorClient, group_id: str, deadline: Deadline) -> float | RequestFailed | None:
    """The session timeout in seconds, from the coordinator; ``None`` if the coordinator does not return it. If a
    request fails, that failure.

    The requests need the permission DESCRIBE_CONFIGS, the first one on the group and the second one on the cluster.
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
            return response
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
