"""Explains why a coordinator permanently rejects the first join of a member: which members or assignor the group has,
and which option to set.

The coordinator's error code does not say with whom the member disagrees, but a description of the group does. The
lookup is bounded and optional: without an answer or a permission, the error keeps its general advice.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kafka.protocol.api_key import ApiKey

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    GroupError,
)
from spark_group_source.group.assignors import ASSIGNORS
from spark_group_source.group.coordinator import CoordinatorClient
from spark_group_source.group.description import CONSUMER, DEAD, PROTOCOL_TYPE, REBALANCING, GroupDescription, describe
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire import versions
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)

DESCRIPTION_TIMEOUT = 5.0
"""Maximum seconds for the description. A group that rebalances names its assignor only afterwards."""

LOOKUP_BACKOFF = 0.5
"""Seconds between two lookups."""

EXPLAINED = {INCONSISTENT_GROUP_PROTOCOL, GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED}
"""Error codes that a description of the group explains."""

STRATEGY = "'kafka.partition.assignment.strategy'"
OTHER_KIND = "No group of consumers has this id: it may be that of a share group or of Kafka Streams."


def explain(
    failure: RequestFailed, client: CoordinatorClient, settings: GroupSettings, deadline: Deadline
) -> RequestFailed:
    """Returns the failure with an error that also names the group's members or assignor, if they explain the error."""
    error = failure.error
    if not isinstance(error, GroupError):
        return failure
    if error.error_code == INVALID_SESSION_TIMEOUT:
        happened = f"{error.happened} The session timeout of this query is {settings.session_timeout * 1000:.0f} ms."
        return _with(failure, GroupError(happened, error.action, error_code=error.error_code))
    if error.error_code not in EXPLAINED:
        return failure
    try:
        group = _look_up(client, settings.group_id, deadline)
    except Exception as unexpected:  # an odd answer must not replace the error that it was to explain
        log.debug("group %s: cannot describe the group to explain an error: %r", settings.group_id, unexpected)
        return failure
    if group is None:
        return failure
    return _with(failure, _explained(error, group, can_convert=_has_consumer_protocol(client)))


def _with(failure: RequestFailed, error: GroupError) -> RequestFailed:
    return replace(failure, reason=str(error), error=error)


def _look_up(client: CoordinatorClient, group_id: str, deadline: Deadline) -> GroupDescription | None:
    """Describes the group once it does not rebalance, or as it is at the deadline; ``None`` if the lookup fails."""
    described = None
    while True:
        result = describe(client, group_id, deadline)
        if isinstance(result, GroupDescription):
            described = result
            if result.state not in REBALANCING:
                return described
        elif result.action is ErrorAction.FATAL:
            return described
        if deadline.remaining() <= LOOKUP_BACKOFF:
            return described
        sleep(LOOKUP_BACKOFF, deadline)


def _has_consumer_protocol(client: CoordinatorClient) -> bool:
    return client.supports(ApiKey.ConsumerGroupHeartbeat, versions.CONSUMER_GROUP_HEARTBEAT)


def _explained(error: GroupError, group: GroupDescription, *, can_convert: bool) -> GroupError:
    if not group.members:
        found = action = ""
        if group.state == DEAD:
            found = OTHER_KIND
    elif error.error_code == GROUP_MAX_SIZE_REACHED:
        found, action = f"The group has {group.clients}.", ""
    elif error.error_code == GROUP_ID_NOT_FOUND:
        found, action = _unconverted(group)
    else:
        found, action = _without_common_assignor(group, can_convert=can_convert)
    happened = error.happened
    if found:
        happened = f"{happened} {found}"
    if not action:
        action = error.action
    return GroupError(happened, action, error_code=error.error_code)


def _unconverted(group: GroupDescription) -> tuple[str, str]:
    """The members or assignor of a group that the coordinator does not convert to KIP-848, and which option to set; the
    second text is empty if that is not known."""
    if group.protocol_type != PROTOCOL_TYPE or not group.assignor:
        return _without_common_assignor(group, can_convert=False)
    found, action = _without_common_assignor(group, can_convert=False)
    return found, f"To join without a conversion, set 'kafka.group.protocol' to classic. {action}"


def _without_common_assignor(group: GroupDescription, *, can_convert: bool) -> tuple[str, str]:
    """The members or assignor of a group that shares no assignor with this member, and which option to set; the second
    text is empty if that is not known."""
    if group.protocol_type != PROTOCOL_TYPE:
        found = f"The group has the protocol type '{group.protocol_type}' and {group.clients}."
        return found, "Its members are no consumers: use another 'kafka.group.id'."
    if group.protocol == CONSUMER:
        found = f"The group has the group protocol of KIP-848 and {group.clients}."
        return found, f"Set 'kafka.group.protocol' to consumer, or {STRATEGY} to an assignor of its classic members."
    if not group.assignor:
        return f"The group is rebalancing and has {group.clients}.", ""
    found = f"The group uses the assignor '{group.assignor}' and has {group.clients}."
    return found, _to_share(group.assignor, can_convert=can_convert)


def _to_share(assignor: str, *, can_convert: bool) -> str:
    """How to share a classic group that has this assignor."""
    if assignor in ASSIGNORS:
        shared = f"Set {STRATEGY} to {assignor}"
    else:
        shared = (
            f"This source has no assignor of that name. Set {STRATEGY} to a class of your own (module:Class) with this"
            f" name, or give the other members one of {', '.join(ASSIGNORS)}"
        )
    convert = ""
    if can_convert:
        convert = ", or set 'kafka.group.protocol' to consumer, which can share a group of any assignor"
    return f"{shared}{convert}, or use another 'kafka.group.id'."
