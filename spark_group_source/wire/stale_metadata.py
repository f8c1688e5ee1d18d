"""One broker's metadata may be old, so it is not enough to call a topic new, deleted or recreated.

Each broker answers from its own copy of the cluster's metadata. The copy of a broker that is cut off from the
controller stays old until they are connected again. Hence these rules, for every decision that a query makes once:

- **A topic or partition exists** if any broker knows it: :class:`EveryBroker`. Of two leaders, the later epoch applies.
- **It is new** if no broker knew it when the query started. That is certain only if :attr:`EveryBroker.confirmed`.
- **It is gone, or its topic is recreated,** if every broker says so: :func:`unknown_to_all`. A member keeps such a
  partition until enough brokers have said so: :func:`is_confirmed`, for ``group/topic_view.py``.
- **Its topic has one id** if all brokers that answer agree: :func:`known_ids`.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from spark_group_source.clock import Deadline
from spark_group_source.errors import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
)
from spark_group_source.offsets import TopicPartition, may_be_same, topics_of
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Metadata, Topic, merge

log = logging.getLogger(__name__)

MAX_ASKED = 5
"""Maximum number of brokers to ask which topics exist. In a large cluster, an answer about all topics may have
megabytes, and so many brokers hardly lag at once."""

ANSWER_TIMEOUT = 1.0
"""Maximum seconds for the answer of one of these brokers: a silent broker must not delay the start for long."""

CONFIRMING_ANSWERS = 2
"""Number of brokers that must answer before a topic or partition counts as gone or new, unless the cluster has
fewer."""

CONFIRM_TIMEOUT = 15.0
"""Maximum seconds to wait for these answers, where what exists is determined only once. After that, the metadata of one
broker has to do, even if it is old. Kafka removes a dead broker from metadata after 9 s
(``broker.session.timeout.ms``), and fewer brokers have to answer then."""


def is_confirmed(answers: Sequence[Mapping[str, Topic]], brokers: int, wanted: Iterable[str]) -> bool:
    """Whether enough brokers have said what exists of each of these topics.

    Args:
        answers: the topics in the answer of each broker.
        brokers: the number of brokers of the cluster.
    """
    required = max(1, min(CONFIRMING_ANSWERS, brokers))
    if len(answers) < required:
        return False
    return all(_answers_about(name, answers) >= required for name in wanted)


def _answers_about(name: str, answers: Sequence[Mapping[str, Topic]]) -> int:
    """The number of answers that say which partitions a topic has, or that it has none."""
    topics = [answer.get(name) for answer in answers]
    exists = any(topic is not None and topic.partitions for topic in topics)
    return sum(_says_what_exists(topic, exists) for topic in topics)


def _says_what_exists(topic: Topic | None, exists: bool) -> bool:
    """Whether a broker's answer about a topic, ``None`` if it lacks the topic, says which partitions it has.

    A broker that does not know a topic that another broker knows lags behind. A broker that returns an error, such as
    LEADER_NOT_AVAILABLE, does not say what it knows; but one that denies access does so for good.
    """
    if topic is None or topic.error == UNKNOWN_TOPIC_OR_PARTITION:
        return not exists
    return topic.error in (0, TOPIC_AUTHORIZATION_FAILED)


def metadata_from_each(
    cluster: Cluster,
    topics: Collection[str] | None,
    deadline: Deadline,
    brokers: Sequence[int] | None = None,
    timeout: float = math.inf,
) -> Iterator[tuple[int, Metadata | GroupSourceError]]:
    """Asks each broker for the metadata of these topics, or of all; yields its id, and its answer or error.

    The time is divided between the brokers that are left, so that a silent broker leaves time for the others.

    Args:
        brokers: the ids of the brokers to ask; by default all.
        timeout: maximum seconds for one answer.
    """
    if brokers is None:
        brokers = cluster.broker_ids()
    for tried, broker in enumerate(brokers):
        answer: Metadata | GroupSourceError
        share = deadline.share(len(brokers) - tried)
        try:
            answer = cluster.metadata_from(broker, topics, share.at_most(timeout))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            answer = error
        yield broker, answer


def unknown_to_all(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline, ids: Mapping[str, str] | None = None
) -> set[TopicPartition]:
    """Returns the partitions that no broker knows: they were deleted, or their topic was recreated under another id.

    One broker may lag behind for long, so every broker has to answer. Otherwise the result is empty.

    Args:
        ids: the topic ids of the caller's positions. A caller without positions leaves them out.
    """
    unknown = set(partitions)
    if not unknown:
        return set()
    if ids is None:
        ids = {}
    for broker, answer in metadata_from_each(cluster, topics_of(unknown), deadline):
        if not isinstance(answer, Metadata):
            log.info(
                "cannot confirm that %s were deleted, because broker %d did not answer: %s",
                names(unknown),
                broker,
                answer,
            )
            return set()
        for tp in list(unknown):
            topic = answer.topics.get(tp.topic)
            if topic is not None and _knows(topic, tp.partition, ids.get(tp.topic, "")):
                unknown.remove(tp)
    if not cluster.broker_ids():
        return set()
    return unknown


def topics_unknown_to_all(
    cluster: Cluster, topics: Iterable[str], deadline: Deadline, ids: Mapping[str, str] | None = None
) -> set[str]:
    """As :func:`unknown_to_all`, for whole topics: each topic has a partition 0."""
    first_partitions = [TopicPartition(name, 0) for name in topics]
    return topics_of(unknown_to_all(cluster, first_partitions, deadline, ids))


def _knows(topic: Topic, partition: int, topic_id: str) -> bool:
    """Whether this metadata of a topic has the partition, or cannot tell because of another error of the topic."""
    if topic.error == UNKNOWN_TOPIC_OR_PARTITION:
        return False
    if topic.error:
        return True
    return may_be_same(topic_id, topic.id) and partition in topic.partitions


def known_ids(cluster: Cluster, topics: Collection[str], deadline: Deadline) -> set[tuple[str, str]]:
    """Pairs of a topic's name and an id, one for each id that any broker has for the topic."""
    known: set[tuple[str, str]] = set()
    for _, answer in metadata_from_each(cluster, topics, deadline):
        if not isinstance(answer, Metadata):
            continue
        for topic in answer.topics.values():
            if not topic.error:
                known.add((topic.name, topic.id))
    return known


class EveryBroker:
    """The merged metadata of all brokers; in a large cluster, of :data:`MAX_ASKED` brokers. A broker that does not
    answer within :data:`ANSWER_TIMEOUT` is left out.

    ``confirmed``: whether enough brokers answered the last lookup to conclude that a topic or partition unknown to all
    of them does not exist.

    Args:
        with_permissions: named topics come with what this client may do with them. Of all topics of a cluster, that
            would be much for a broker to look up.
    """

    def __init__(self, cluster: Cluster, *, with_permissions: bool = False) -> None:
        self.confirmed = False
        self._with_permissions = with_permissions
        self._cluster = cluster

    def metadata(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        """As :meth:`Cluster.metadata`; a topic is unknown only if no broker knows it.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        first = self._first(wanted, deadline)
        brokers = self._cluster.broker_ids()
        asked = [broker for broker in brokers if broker != first.answered_by]
        answers = len(brokers) - len(asked)
        if len(asked) > MAX_ASKED - answers:
            asked = random.sample(asked, MAX_ASKED - answers)
        others: list[Mapping[str, Topic]] = []
        for broker, answer in metadata_from_each(self._cluster, wanted, deadline, asked, ANSWER_TIMEOUT):
            if isinstance(answer, Metadata):
                others.append(answer.topics)
            else:
                log.info("broker %d did not return its list of topics: %s", broker, answer)
        counted = others
        if answers:
            counted = [first.topics, *others]
        topics = merge([first.topics, *others])
        if wanted is None:
            wanted = topics.keys()
        self.confirmed = is_confirmed(counted, len(brokers), wanted)
        return replace(first, topics=topics)

    def _first(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        if self._with_permissions and wanted is not None:
            return self._cluster.metadata(wanted, deadline, with_permissions=True)
        return self._cluster.metadata(wanted, deadline)
