"""A look at a consumer group from outside: what it has committed, where the logs end, who its members are.

It joins nothing and changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from spark_group_source.clock import Deadline
from spark_group_source.errors import BrokerUnavailable, OptionError
from spark_group_source.fetch.list_offsets import list_offsets
from spark_group_source.group.coordinator_client import Result, retry_until_response
from spark_group_source.group.description import GroupDescription
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.group_offsets import GroupOffsets
from spark_group_source.lag.sample import Sample
from spark_group_source.offsets import LATEST, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.wire import wire_options
from spark_group_source.query.group_settings import group_settings
from spark_group_source.wire.cluster import Cluster

LOOK_TIMEOUT = 5.0
"""Seconds that a look may take at most."""


class GroupOffsetsProbe:
    """Looks at the group ``kafka.group.id``, in the topics of ``subscribe`` or its like; for one thread.

    Each look is two or three requests over connections that are kept until :meth:`close`, after which it may be used
    again. Every partition that a member of this source owns has a commit, so that none is missing.

    Args:
        options: those of the source, also for security. With ``kafka.isolation.level=read_committed`` logs end at their
            last stable offset.
        timeout: seconds that a look may take at most.

    Raises:
        OptionError: an option is unknown, missing or has a bad value.
    """

    def __init__(
        self, options: Mapping[str, str], timeout: float = LOOK_TIMEOUT, now: Callable[[], float] = time.time
    ) -> None:
        own = parse_options(options)
        if not own.group_id:
            raise OptionError("Option 'kafka.group.id' is missing.", "It names the group to look at.")
        self.group = own.group_id
        self._read_committed = own.read_committed
        self._settings = group_settings(own)
        self._timeout = timeout
        self._now = now
        self._cluster = Cluster(wire_options(own, own.client_id or f"lag-of-{own.group_id}"))
        self._offsets = GroupOffsets(self._cluster, self._settings)

    def sample(self) -> Sample:
        """What the group has committed, and where those logs end now.

        Partitions without a commit, and those that are deleted, are left out.

        Raises:
            BrokerUnavailable, DeadlineExceeded: not to be had now.
            AuthenticationFailed, GroupError, TopicError: not to be had by this principal.
        """
        deadline = Deadline.after(self._timeout)
        committed = _had(lambda: self._offsets.committed(None, deadline), deadline)
        positions = {tp: each.offset for tp, each in committed.items() if self._asked_for(tp)}
        # The ends come second, so that a group that is working has no negative lag.
        missing: set[TopicPartition] = set()
        ends = list_offsets(
            self._cluster,
            dict.fromkeys(positions, LATEST),
            read_committed=self._read_committed,
            deadline=deadline,
            missing=missing,
        )
        return Sample(self._now(), {tp: at for tp, at in positions.items() if tp not in missing}, ends)

    def describe(self) -> GroupDescription:
        """State, members and assignment of the group; of one that does not exist the state is ``Dead``.

        Raises:
            BrokerUnavailable, DeadlineExceeded: not to be had now.
            AuthenticationFailed, GroupError: not to be had by this principal.
        """
        deadline = Deadline.after(self._timeout)
        return _had(lambda: self._offsets.describe(deadline), deadline)

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def _asked_for(self, tp: TopicPartition) -> bool:
        wanted = self._settings.subscription
        return wanted.matches(tp.topic) and (not wanted.partitions or tp in wanted.partitions)


PAUSE = 0.1
"""Seconds until a coordinator that has just moved, or still loads the group, is asked again."""


def _had(ask: Callable[[], Result | RequestFailed], deadline: Deadline) -> Result:
    answer = retry_until_response(ask, deadline, PAUSE)
    if isinstance(answer, RequestFailed):
        raise BrokerUnavailable(f"The group's coordinator cannot be asked: {answer.reason.rstrip('.')}.")
    return answer
