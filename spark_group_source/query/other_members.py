"""Other members in the group's description: members of this application, and members that a join waits for."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.commits import GroupOffsets
from spark_group_source.group.description import REBALANCING, MemberDescription
from spark_group_source.group.membership import RequestFailed
from spark_group_source.text import some

log = logging.getLogger(__name__)

DESCRIBE_TIMEOUT = 2.0
"""Maximum seconds for one description of the group, for which the start of the query waits."""


def other_client_ids(members: Iterable[MemberDescription], client_id: str, application_id: str) -> list[str]:
    """The client ids of other members of this Spark application; ``client_id`` is this query's."""
    part = f"-{application_id}-"
    client_ids = [member.client_id for member in members if part in member.client_id]
    return [each for each in client_ids if each != client_id]


def log_other_members(offsets: GroupOffsets, group_id: str, client_id: str, application_id: str, clock: Clock) -> None:
    """Logs which other members of the group belong to this application.

    One lookup at the start of each query is enough, because the later of two queries sees the other. Where the user's
    process checks the queries (:mod:`spark_group_source.spark.start_checks`), it knows them by name, and warns.
    """
    if not application_id:
        return
    try:
        group = offsets.describe(Deadline.after(DESCRIBE_TIMEOUT, clock))
    except GroupSourceError as error:
        log.debug("group %s: cannot look up the group's members: %s", group_id, error)
        return
    if isinstance(group, RequestFailed):
        log.debug("group %s: cannot look up the group's members: %s", group_id, group.reason)
    elif group.members_hidden:
        log.debug("group %s: this principal may not describe all topics of the group's members", group_id)
    else:
        _warn_of_others(other_client_ids(group.members, client_id, application_id), group_id)


def _warn_of_others(client_ids: list[str], group_id: str) -> None:
    if not client_ids:
        return
    log.warning(
        "group %s: %d members of this application share this group, among them %s. Each member reads only some of the"
        " partitions. A query that is to read all partitions needs its own kafka.group.id.",
        group_id,
        len(client_ids) + 1,
        some(client_ids),
    )


def why_unassigned(offsets: GroupOffsets, client_id: str, session_timeout: float, clock: Clock) -> str:
    """The reason why a join has no answer, from the group's description. ``session_timeout`` is this query's."""
    try:
        group = offsets.describe(Deadline.after(DESCRIBE_TIMEOUT, clock))
    except GroupSourceError as error:
        return f"the coordinator has not answered the join, and the group cannot be described: {error}"
    if isinstance(group, RequestFailed):
        return f"the coordinator has not answered the join, and the group cannot be described: {group.reason}"
    others = [f"{member.client_id} at {member.address}" for member in group.members if member.client_id != client_id]
    if not others:
        return f"the coordinator has not answered the join; the group is {group.state}"
    members = f"the group is {group.state}, with {some(others)}"
    if group.state not in REBALANCING:
        return f"the coordinator has not answered the join; {members}"
    return (
        f"the coordinator waits for other members to rejoin; {members}. A member that ended without leaving stays until"
        f" its session times out ({session_timeout:g} s in this query)."
    )
