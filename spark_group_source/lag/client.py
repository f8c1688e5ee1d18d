"""Looks up a consumer group from outside: its committed offsets, the end offsets, and its members.

A lookup joins no group and commits nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import BrokerUnavailable, GroupSourceError, OptionError
from spark_group_source.group.commits import GroupOffsets
from spark_group_source.group.coordinator import Result, retry_until_response
from spark_group_source.group.description import GroupDescription
from spark_group_source.group.membership import RequestFailed
from spark_group_source.lag.ages import OldestRecords
from spark_group_source.lag.group_ids import list_groups
from spark_group_source.lag.model import Sample
from spark_group_source.offsets import LATEST, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.offset_lookup import list_offsets

log = logging.getLogger(__name__)

SAMPLE_TIMEOUT = 5.0
"""Maximum time of a lookup, in seconds."""

SHARE_FOR_AGES = 0.2
"""Share of a lookup's time that is reserved for the ages, if a leader does not return its end offsets."""

CLIENT_ID_LENGTH = 150
"""Maximum length of the default client id in characters. A group's id alone may fill the whole field of a request."""


class GroupLagClient:
    """Looks up the group ``kafka.group.id``, in the topics of ``subscribe``, ``subscribePattern`` or ``assign``.

    A lookup sends one request to the coordinator and one to each leader. For the ages of partitions with a lag, it also
    sends one to three small fetches to each leader. Connections stay open until :meth:`close`; a later lookup opens new
    ones. Use a client from one thread only. A query with this source commits every partition that it owns, even without
    records, so a lookup misses none of them.

    Args:
        options: the source's options, including security. With ``kafka.isolation.level=read_committed`` the end offset
            is the last stable offset, and aborted records have no age.
        timeout: maximum time of a lookup, in seconds.

    Raises:
        OptionError: an option is unknown, missing or has a bad value.
    """

    def __init__(
        self, options: Mapping[str, str], timeout: float = SAMPLE_TIMEOUT, now: Callable[[], float] = time.time
    ) -> None:
        parsed = parse_options(options)
        self._settings = parsed.group
        self.group = self._settings.group_id
        if not self.group:
            raise OptionError("Option 'kafka.group.id' is missing.", "Set it to the id of the group to look up.")
        self._read_committed = parsed.fetch.read_committed
        self._timeout = timeout
        self._now = now
        client_id = parsed.wire.client_id
        if not client_id:
            client_id = f"lag-of-{self.group}"[:CLIENT_ID_LENGTH]
        self._cluster = Cluster(parsed.with_client_id(client_id).wire)
        self._offsets = GroupOffsets(self._cluster, self._settings)
        self._oldest = OldestRecords(self._cluster, read_committed=self._read_committed)
        self._without_ages: set[str] = set()

    def sample(self) -> Sample:
        """Returns the group's committed offsets, with the current end offsets and ages of the same partitions.

        The sample leaves out partitions without a commit, and deleted partitions. It has no ages in topics that this
        principal may not read.

        Raises:
            BrokerUnavailable, DeadlineExceeded: the brokers are unreachable; a later lookup may succeed.
            AuthenticationFailed, GroupError, TopicError: this principal has no access.
        """
        deadline = Deadline.after(self._timeout)
        committed = _retry_until_response(lambda: self._offsets.committed(None, deadline), deadline)
        positions = {}
        for tp, commit in committed.items():
            if self._is_selected(tp):
                positions[tp] = commit.offset
        # End offsets are looked up second. Otherwise, a group that commits in between would have a negative lag.
        ends = list_offsets(
            self._cluster,
            dict.fromkeys(positions, LATEST),
            read_committed=self._read_committed,
            deadline=deadline.at_most(deadline.remaining() * (1 - SHARE_FOR_AGES)),
            partial=True,
        )
        existing = {tp: at for tp, at in positions.items() if tp not in ends.missing}
        self._oldest.look_up(existing, ends.offsets, deadline)
        self._warn_of_denied_topics()
        at = self._now()
        return Sample(at, existing, ends.offsets, self._oldest.ages(existing, ends.offsets, at))

    def describe(self) -> GroupDescription:
        """Returns the state, members and assignment of the group. If the group does not exist, its state is ``Dead``.

        Raises:
            BrokerUnavailable, DeadlineExceeded: the brokers are unreachable; a later lookup may succeed.
            AuthenticationFailed, GroupError: this principal has no access.
        """
        deadline = Deadline.after(self._timeout)
        return _retry_until_response(lambda: self._offsets.describe(deadline), deadline)

    def group_ids(self) -> set[str]:
        """Returns the ids of the cluster's groups that this principal may describe, without those whose brokers do not
        answer in time."""
        return list_groups(self._cluster, Deadline.after(self._timeout))

    def close(self) -> None:
        """Closes the connections."""
        self._cluster.close()

    def _warn_of_denied_topics(self) -> None:
        """Logs once per topic why its ages are missing."""
        denied = self._oldest.denied - self._without_ages
        if denied:
            log.warning(
                "group %s: the age of the lag is unknown for topics that this principal may not read: %s",
                self.group,
                names(denied),
            )
        self._without_ages |= denied

    def _is_selected(self, tp: TopicPartition) -> bool:
        subscription = self._settings.subscription
        if not subscription.matches(tp.topic):
            return False
        if not subscription.partitions:
            return True
        return tp in subscription.partitions


COORDINATOR_BACKOFF = 0.1
"""Seconds between two requests to a coordinator that has just moved or is still loading the group."""


def _retry_until_response(request: Callable[[], Result | RequestFailed], deadline: Deadline) -> Result:
    result = retry_until_response(request, deadline, COORDINATOR_BACKOFF)
    if isinstance(result, RequestFailed):
        raise BrokerUnavailable(f"The group's coordinator does not answer: {result.reason.rstrip('.')}.")
    return result


LOOKUP_INTERVAL = 1.0
"""Minimum time between two lookups, in seconds: small batches may end several times a second."""

LOOKUP_FACTOR, MAX_LOOKUP_INTERVAL = 20.0, 10.0
"""The pause after a lookup is at least this factor times its duration, up to this maximum in seconds, because lookups
of many partitions cost the brokers time and bytes."""

MIN_BACKOFF, MAX_BACKOFF = 5.0, 60.0
"""Minimum and maximum time without a lookup after a failure, in seconds. It doubles with each failure."""


class ThrottledLagClient:
    """Looks up a group when a lookup is due. After a failed lookup, it logs a warning and backs off."""

    def __init__(self, client: GroupLagClient, clock: Clock = monotonic) -> None:
        self._client = client
        self._clock = clock
        self._next_at = float("-inf")
        self._backoff = 0.0

    @property
    def group(self) -> str:
        """The group's id."""
        return self._client.group

    def sample(self, last: bool = False) -> Sample | None:
        """The result of a lookup; ``None`` if no lookup is due, or if the lookup failed. The ``last`` lookup is due
        unless the client backs off."""
        if not self._is_due(last):
            return None
        began = self._clock()
        try:
            sample = self._client.sample()
        except GroupSourceError as error:
            self._backoff = min(max(self._backoff * 2, MIN_BACKOFF), MAX_BACKOFF)
            self._next_at = self._clock() + self._backoff
            log.warning("group %s: cannot determine the lag, next try in %.0f s: %s", self.group, self._backoff, error)
            return None
        self._backoff = 0.0
        now = self._clock()
        in_proportion = min(LOOKUP_FACTOR * (now - began), MAX_LOOKUP_INTERVAL)
        self._next_at = now + max(LOOKUP_INTERVAL, in_proportion)
        return sample

    def _is_due(self, last: bool) -> bool:
        if self._clock() >= self._next_at:
            return True
        is_in_backoff = self._backoff > 0
        return last and not is_in_backoff

    def close(self) -> None:
        """Closes the connections; the next lookup opens new ones."""
        self._client.close()
