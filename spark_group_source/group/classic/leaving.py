"""The last request of a member: its partitions must not wait for the session to end."""

from __future__ import annotations

import logging

from spark_group_source.clock import Clock, Deadline
from spark_group_source.group.classic.membership_requests import MembershipRequests
from spark_group_source.group.error_actions import ErrorAction
from spark_group_source.group.settings import GroupSettings
from spark_group_source.wire.backoff import Backoff
from spark_group_source.wire.waiting import sleep

log = logging.getLogger(__name__)

LEAVE_TIMEOUT = 3.0
"""Seconds for a last LeaveGroup: Spark kills the process some seconds after it asked it to end."""


def leave(coordinator: MembershipRequests, settings: GroupSettings, member_id: str, clock: Clock) -> None:
    """Leaves the group, and says whether that worked; tries again where waiting may help.

    A static member leaves only if that is asked for: its next run, within the session, keeps the partitions.
    """
    stays = settings.instance_id is not None and not settings.static_leaves
    if stays or not member_id:
        return
    deadline = Deadline.after(LEAVE_TIMEOUT, clock)
    backoff = Backoff(settings.retry_backoff, settings.retry_backoff_max)
    while refused := coordinator.leave(member_id, "the query ends", deadline):
        seconds = backoff.next()
        if refused.action not in (ErrorAction.RETRY, ErrorAction.REDISCOVER) or deadline.remaining() <= seconds:
            log.warning(
                "group %s: member %s may be seen until its session ends: %s", settings.group_id, member_id, refused.why
            )
            return
        sleep(seconds, deadline)
    log.info("group %s: member %s left", settings.group_id, member_id)
