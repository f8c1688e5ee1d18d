"""One application may read a group by several queries: to share the work, or by mistake, and then each reads a part."""

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
"""Seconds that the lookup may take at most: the start of the query waits for it."""


def others(members: Iterable[MemberDescription], client_id: str, application_id: str) -> list[str]:
    """The client ids of other members that name the same Spark application; ``client_id`` is this query's."""
    named = f"-{application_id}-"
    return [each.client_id for each in members if named in each.client_id and each.client_id != client_id]


def warn_if_shared(offsets: GroupOffsets, group_id: str, client_id: str, application_id: str, clock: Clock) -> None:
    """Warns if another query of this application is a member of the group.

    One lookup at the start of each query is enough: of two queries the later one sees the other.
    """
    if not application_id:
        return
    try:
        found = offsets.describe(Deadline.after(TIMEOUT, clock))
    except GroupSourceError as error:
        log.debug("group %s: its members are not known: %s", group_id, error)
        return
    if isinstance(found, RequestFailed):
        log.debug("group %s: its members are not known: %s", group_id, found.reason)
    elif same := others(found.members, client_id, application_id):
        log.warning(
            "group %s: this application is in it %d times, also as %s. Each of these reads only a part of the topics."
            " If each is to read all of them, give each a kafka.group.id of its own.",
            group_id,
            len(same) + 1,
            some(same),
        )
