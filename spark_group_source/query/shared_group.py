"""Finds other members of the same application in the group: queries share the topics, by intention or by mistake."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.description import MemberDescription
from spark_group_source.group.membership import RequestFailed
from spark_group_source.group.offsets import GroupOffsets
from spark_group_source.text import some

log = logging.getLogger(__name__)

TIMEOUT = 2.0
"""Maximum seconds for the lookup: the start of the query waits for it."""


def other_client_ids(members: Iterable[MemberDescription], client_id: str, application_id: str) -> list[str]:
    """The client ids of other members of this Spark application; ``client_id`` is this query's."""
    part = f"-{application_id}-"
    return [member.client_id for member in members if part in member.client_id and member.client_id != client_id]


def log_other_members(offsets: GroupOffsets, group_id: str, client_id: str, application_id: str, clock: Clock) -> None:
    """Logs which other members of the group belong to this application.

    One lookup at the start of each query is enough: of two queries the later one sees the other. It is no warning: the
    queries may share their work, and the former member of a restarted query may not have left yet. Sources of one query
    are a mistake: :mod:`spark_group_source.spark.shared_sources` warns of them.
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
        log.info(
            "group %s: %d members of this application share this group, also %s. Each reads only some of the"
            " partitions; a query that is to read all of them needs its own kafka.group.id.",
            group_id,
            len(others) + 1,
            some(others),
        )
