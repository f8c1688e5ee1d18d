"""The groups of a cluster, to suggest one in place of a group that does not exist."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.wire.cluster import Cluster

log = logging.getLogger(__name__)


def list_groups(cluster: Cluster, deadline: Deadline) -> set[str]:
    """The ids of all groups that this principal may describe.

    Each broker knows the groups that it coordinates. The time is divided between the brokers that are left; those that
    do not answer are left out.
    """
    found: set[str] = set()
    with contextlib.suppress(GroupSourceError):  # then the brokers known so far are asked
        cluster.metadata((), deadline.share(2))
    brokers = cluster.broker_ids()
    for asked, broker_id in enumerate(brokers):
        share = deadline.share(len(brokers) - asked)
        try:
            response = cluster.connection(broker_id, share).call(_request(), share)
        except GroupSourceError as error:
            log.debug("broker %d does not list its groups: %s", broker_id, error)
            continue
        found.update(group.group_id for group in response.groups)
    return found


def _request() -> Any:
    # Imported here, because the import takes 30 ms, and a lookup of an existing group does not need it.
    from kafka.protocol.admin import ListGroupsRequest  # noqa: PLC0415

    return ListGroupsRequest(states_filter=[])
