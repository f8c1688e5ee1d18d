"""Topics and partitions of a query: whether they exist at its start, were deleted, or have another topic id now."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Set

from spark_group_source.clock import Clock, Deadline
from spark_group_source.errors import (
    LEADER_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    RetriableError,
    TopicError,
    describe_error_code,
    raise_or_warn,
)
from spark_group_source.group.subscription import Subscription
from spark_group_source.offsets import BatchOffset, TopicPartition, may_be_same
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Topic
from spark_group_source.wire.stale_metadata import EveryBroker, known_ids, unknown_to_all

log = logging.getLogger(__name__)


def raise_or_skip_deleted(deleted: Set[TopicPartition] | Set[str], fail_on_data_loss: bool) -> None:
    """Warns that topics or partitions were deleted, if there are any and ``failOnDataLoss`` is false.

    Raises:
        DataLoss: it is true.
    """
    if deleted:
        raise_or_warn(
            log,
            fail_on_data_loss,
            f"{names(deleted)} does not exist any more",
            "Remove the topic from the subscription, or set failOnDataLoss to false to continue with the others.",
            "The query continues without",
        )


LOOKUP_TIMEOUT = 10.0
"""Maximum seconds for one lookup of topics, end offsets or the group's commits."""

DELETED_LOOKUPS = 3
"""Further lookups that must not find a topic before it counts as deleted."""

DELETED_INTERVAL = 0.3
"""Seconds between two of these lookups."""


def unreadable(topic: str, error_code: int, action: str) -> TopicError:
    """The error of a topic with this error code; ``action`` is for others than a missing permission."""
    if error_code == TOPIC_AUTHORIZATION_FAILED:
        action = "Grant the principal DESCRIBE and READ on it."
    happened = f"Topic '{topic}' cannot be read: the brokers answer {describe_error_code(error_code)}."
    return TopicError(happened, action, error_code=error_code, topics=[topic])


class TopicIds:
    """The topic ids of the positions, compared with those that the brokers return now."""

    def __init__(self, cluster: Cluster, max_age: float, clock: Clock) -> None:
        self._cluster = cluster
        self._max_age = max_age
        self._clock = clock
        self._read: dict[str, str] = {}
        self._looked_up_at = self._unread_looked_up_at = clock()

    @property
    def read(self) -> Mapping[str, str]:
        """The id under which the query reads each topic, of all topics it has read."""
        return self._read

    def restore(self, logged: BatchOffset) -> None:
        """Takes the ids of the checkpoint's positions."""
        self._read |= {read.topic: read.topic_id for read in logged.ranges.values() if read.topic_id}

    def of(self, topics: Collection[str]) -> dict[str, str]:
        """The id under which the query reads each topic; for a new topic the id it has now, if brokers agree on it."""
        if new := set(topics) - self._read.keys():
            # A position under the id of a former topic would make the topic of now count as recreated.
            ids = known_ids(self._cluster, new, Deadline.after(LOOKUP_TIMEOUT, self._clock))
            ids -= {(name, "") for name, id_ in ids if id_}  # during an upgrade, only some brokers know it
            self._read |= {name: id_ for name, id_ in ids if [each for each, _ in ids].count(name) == 1}
        return {name: self._read[name] for name in topics if name in self._read}

    def under_other_ids(self, topics: Collection[str]) -> set[str]:
        """Those topics that any broker knows under another id than the one under which the query reads them."""
        ids = known_ids(self._cluster, topics, Deadline.after(LOOKUP_TIMEOUT, self._clock))
        return {name for name, id_ in ids if not may_be_same(self._read.get(name, ""), id_)}

    def recreated(self, topics: Collection[str]) -> dict[str, str]:
        """The ids of those topics that exist under another id than the one under which the query reads them."""
        current = self._look_up(topics)
        changed = {
            name
            for name in current.keys() & topics
            if not current[name].error and not may_be_same(self._read.get(name, ""), current[name].id)
        }
        gone = self._unknown_to_all(changed, self._read)
        # The next call asks for the others again.
        self._cluster.invalidate_topics(changed - gone)
        return {name: current[name].id for name in gone}

    def accept_recreated(self, ids: Mapping[str, str]) -> None:
        """From here on the query reads these topics under these ids."""
        self._read |= ids

    def deleted(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics`` that were deleted: several lookups do not find them, and no broker knows them."""
        missing = _unknown(self._look_up(topics))
        for _ in range(DELETED_LOOKUPS if missing else 0):
            time.sleep(DELETED_INTERVAL)
            self._cluster.invalidate_topics(missing)
            missing = _unknown(self._look_up(missing))
        return self._unknown_to_all(missing)

    def unread_and_gone(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics``, which the query has not read, that no broker knows; one lookup per metadata age."""
        if not topics or self._clock() - self._unread_looked_up_at <= self._max_age:
            return set()
        self._unread_looked_up_at = self._clock()
        try:
            found = self._cluster.metadata(topics, Deadline.after(LOOKUP_TIMEOUT, self._clock)).topics
        except RetriableError as error:
            log.info("the lookup of topics that this query has not read failed: %s", error)
            return set()
        return self._unknown_to_all(_unknown(found))

    def forget(self, topics: Iterable[str]) -> None:
        """These were deleted, and no offset of the query names them any more."""
        for name in topics:
            self._read.pop(name, None)

    def _unknown_to_all(self, topics: Iterable[str], ids: Mapping[str, str] | None = None) -> set[str]:
        deadline = Deadline.after(LOOKUP_TIMEOUT, self._clock)
        partitions = [TopicPartition(name, 0) for name in topics]
        return {tp.topic for tp in unknown_to_all(self._cluster, partitions, deadline, ids)}

    def _look_up(self, topics: Collection[str]) -> dict[str, Topic]:
        fresh = self._clock() - self._looked_up_at > self._max_age
        if fresh:
            self._looked_up_at = self._clock()
        # A fresh lookup covers all topics that were ever read. Otherwise the others would count as fresh as well.
        names = {*topics, *self._read} if fresh else topics
        try:
            return self._cluster.topics(names, Deadline.after(LOOKUP_TIMEOUT, self._clock), fresh=fresh)
        except RetriableError as error:
            log.warning("the topic lookup failed: %s", error)
            return {}


def _unknown(topics: Mapping[str, Topic]) -> set[str]:
    return {name for name, topic in topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}


START_TIMEOUT = 20.0
"""Maximum seconds until brokers and topics are found; then the query fails."""

WARN_AFTER = 5.0
"""Seconds without an answer from any broker until a warning is logged."""

UNKNOWN_TOPIC_TIMEOUT = 3.0
"""How many seconds an unknown topic may take to become known: brokers learn of a new topic one by one."""

RETRY_INTERVAL = 0.2
"""Seconds between two lookups of the topics."""

LAST_LOOKUP = 1.0
"""Seconds that have to be left for another lookup. One without time would fail as if no broker answered, and its error
would explain less than the last response."""


class TopicValidator:
    """Looks up the topics of a subscription until all exist, or the timeout has passed."""

    def __init__(self, cluster: Cluster, subscription: Subscription, fail_on_data_loss: bool, clock: Clock) -> None:
        self._cluster = cluster
        self._every_broker = EveryBroker(cluster)
        self._subscription = subscription
        self._fail_on_data_loss = fail_on_data_loss
        self._clock = clock
        self._hidden: set[str] = set()

    @property
    def confirmed(self) -> bool:
        """Whether enough brokers have answered the last lookup to tell which topics and partitions exist now."""
        return self._every_broker.confirmed

    def find(self, logged: Iterable[TopicPartition]) -> dict[str, Topic]:
        """The topics to read. ``logged`` are the partitions that the query read before its restart.

        Raises:
            BrokerUnavailable: no broker answered in time.
            TopicError: a topic or an assigned partition does not exist, or may not be described.
            DataLoss: one that was read before was deleted, and ``failOnDataLoss`` is true.
        """
        read_before = frozenset(logged)
        deadline = Deadline.after(START_TIMEOUT, self._clock)
        unknown_until = deadline.at_most(UNKNOWN_TOPIC_TIMEOUT)
        while True:
            waited = unknown_until.expired()
            topics = self._look_up(deadline)
            errors, missing = self._lacking(topics, read_before)
            errors = self._without_hidden(errors, deadline)
            if not errors and not missing:
                return topics
            unknown = {TopicPartition(name, 0) for name, code in errors.items() if code == UNKNOWN_TOPIC_OR_PARTITION}
            unknown |= missing
            if TOPIC_AUTHORIZATION_FAILED in errors.values() or (
                waited and deadline.remaining() <= RETRY_INTERVAL + LAST_LOOKUP
            ):
                break
            # A broker that does not answer leaves time to ask the others again.
            waited_in_vain = waited and LEADER_NOT_AVAILABLE not in errors.values()
            if waited_in_vain and unknown_to_all(self._cluster, unknown, deadline.at_most(WARN_AFTER)) == unknown:
                break
            time.sleep(RETRY_INTERVAL)
        self._raise_or_skip(errors, missing, read_before)
        return topics

    def _lacking(
        self, topics: Mapping[str, Topic], read_before: frozenset[TopicPartition]
    ) -> tuple[dict[str, int], set[TopicPartition]]:
        """The error codes of topics that must exist, and the assigned partitions that do not exist in the others."""
        required = self._required(read_before)
        errors = {name: topics[name].error if name in topics else UNKNOWN_TOPIC_OR_PARTITION for name in required}
        errors = {name: error_code for name, error_code in errors.items() if error_code}
        missing = {
            tp
            for tp in self._subscription.partitions
            if tp.topic not in errors and tp.partition not in topics[tp.topic].partitions
        }
        return errors, missing

    def deleted(self, topics: Mapping[str, Topic], logged: Iterable[TopicPartition]) -> set[str]:
        """Subscribed topics that the query has read, and that are no longer among ``topics``."""
        subscribed = filter(self._subscription.matches, {tp.topic for tp in logged})
        lacking = {name for name in subscribed if name not in topics or topics[name].error}
        return lacking - self._hidden

    def _without_hidden(self, errors: dict[str, int], deadline: Deadline) -> dict[str, int]:
        """Without topics that the pattern matches and that this client may not describe now: they were not deleted.

        The list of all topics lacks them, but a broker that is asked by name says so.
        """
        if self._subscription.pattern is None or not errors:
            return errors
        found = self._cluster.metadata(sorted(errors), deadline).topics
        hidden = {name for name, topic in found.items() if topic.error == TOPIC_AUTHORIZATION_FAILED}
        if hidden - self._hidden:
            log.warning(
                "this query has read %s before and may not describe it now; it continues without", names(hidden)
            )
        self._hidden = hidden
        return {name: error_code for name, error_code in errors.items() if name not in hidden}

    def _look_up(self, deadline: Deadline) -> dict[str, Topic]:
        """The topics that any broker knows. Logs a wrong address long before the timeout."""
        try:
            return self._subscription.find(self._every_broker, deadline.at_most(WARN_AFTER))
        except BrokerUnavailable as error:
            if deadline.expired():
                raise
            log.warning(
                "no broker has answered yet; the query fails in %.0f s if none does: %s",
                deadline.remaining(),
                error.happened,
            )
        return self._subscription.find(self._every_broker, deadline)

    def _required(self, read_before: frozenset[TopicPartition]) -> list[str]:
        """Topics that must exist: those named, and those read before that the subscription still matches."""
        topics_read = {tp.topic for tp in read_before}
        return sorted({*self._subscription.topics, *filter(self._subscription.matches, topics_read)})

    def _raise_or_skip(
        self, errors: dict[str, int], missing: set[TopicPartition], read_before: frozenset[TopicPartition]
    ) -> None:
        """Raises the first error, or warns of deleted topics and partitions if ``failOnDataLoss`` is false."""
        topics_read = {tp.topic for tp in read_before}
        if read_before and not self._fail_on_data_loss:
            topics_read |= errors.keys()  # perhaps by another member
        deleted = {name for name in topics_read if errors.get(name) == UNKNOWN_TOPIC_OR_PARTITION}
        for name, error_code in errors.items():
            if name not in deleted:
                option = "assign" if self._subscription.partitions else "subscribe"
                raise unreadable(name, error_code, f"Create it, or correct '{option}'.")
        if never_read := missing - read_before:
            raise TopicError(
                f"{len(never_read)} assigned partition(s) do not exist: {names(never_read)}.",
                "Correct 'assign', or add partitions to the topic.",
                error_code=UNKNOWN_TOPIC_OR_PARTITION,
            )
        raise_or_skip_deleted(deleted, self._fail_on_data_loss)
        raise_or_skip_deleted(missing, self._fail_on_data_loss)
