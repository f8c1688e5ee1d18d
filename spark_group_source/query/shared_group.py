"""Finds other queries of the same application in the group: they share the topics, by intention or by mistake."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.description import MemberDescription
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.listing import some

log = logging.getLogger(__name__)

TIMEOUT = 2.0
"""Maximum seconds for the lookup: the start of the query waits for it."""


def other_client_ids(members: Iterable[MemberDescription], client_id: str, application_id: str) -> list[str]:
    """The client ids of other members of this Spark application; ``client_id`` is this query's."""
    part = f"-{application_id}-"
    return [member.client_id for member in members if part in member.client_id and member.client_id != client_id]


def warn_of_other_queries(
    offsets: GroupOffsets, group_id: str, client_id: str, application_id: str, clock: Clock
) -> None:
    """Warns if another query of this application is a member of the group.

    One lookup at the start of each query is enough: of two queries the later one sees the other.
    """
    if not application_id:
        return
    try:
        group = offsets.describe(Deadline.after(TIMEOUT, clock))
    except GroupSourceError as error:
        log.debug("group %s: its members are unknown: %s", group_id, error)
        return
    if isinstance(group, RequestFailed):
        log.debug("group %s: its members are unknown: %s", group_id, group.reason)
    elif group.members_hidden:
        log.debug("group %s: its members are unknown: this principal may not describe all of their topics", group_id)
    elif others := other_client_ids(group.members, client_id, application_id):
        log.warning(
            "group %s: %d queries of this application are members, also %s. Each reads only a part of the topics."
            " If each is to read all of them, give each its own kafka.group.id.",
            group_id,
            len(others) + 1,
            some(others),
        )
