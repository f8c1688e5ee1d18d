"""What one broker says of topics may be old: from one broker alone nothing counts as new, gone or recreated.

Each broker answers from its own copy of the cluster's metadata. The copy of a broker that is cut off from the
controller may be old for as long as that lasts. Hence these rules, for every decision that a query makes once:

- **A topic or partition exists** if any broker knows it: :class:`EveryBroker`. Of two leaders, the later epoch applies.
- **It is new** if no broker knew it when the query started. That is certain only if :attr:`EveryBroker.confirmed`.
- **It is gone, or its topic is recreated,** if every broker says so: :func:`unknown_to_all`. A member that owns it
  keeps it until enough brokers do: :func:`is_confirmed`, for ``group/topic_view.py``.
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
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    ProtocolError,
)
from spark_group_source.offsets import UNKNOWN_EPOCH, TopicPartition, may_be_same
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Metadata, Topic

log = logging.getLogger(__name__)

MAX_ASKED = 5
"""Maximum number of brokers that are asked what exists. That all of them lag at once is unlikely in a large cluster,
where an answer about all topics may have megabytes."""

ANSWER_TIMEOUT = 1.0
"""Maximum seconds for the answer of one of these: a broker that does not answer must not delay the start for long."""

CONFIRMING_ANSWERS = 2
"""Number of brokers that have to answer before something counts as gone or new. A cluster may have fewer."""


def is_confirmed(answers: int, brokers: int) -> bool:
    """Whether so many ``answers``, in a cluster of so many ``brokers``, show what exists and what does not."""
    return answers >= max(1, min(CONFIRMING_ANSWERS, brokers))


def metadata_from_each(
    cluster: Cluster,
    topics: Collection[str] | None,
    deadline: Deadline,
    brokers: Sequence[int] | None = None,
    timeout: float = math.inf,
) -> Iterator[tuple[int, Metadata | GroupSourceError]]:
    """Asks each broker for the metadata of these topics, or of all; yields its id, and its answer or error.

    The time is divided between the brokers that are left, so that one that does not answer leaves time for the others.

    Args:
        brokers: the ids of those to ask; by default all.
        timeout: maximum seconds for one answer.
    """
    asked = cluster.broker_ids() if brokers is None else brokers
    for left, broker in zip(range(len(asked), 0, -1), asked, strict=True):
        answer: Metadata | GroupSourceError
        share = min(deadline.remaining() / left, timeout)
        try:
            answer = cluster.metadata_from(broker, topics, deadline.at_most(share))
        except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
            answer = error
        yield broker, answer


def unknown_to_all(
    cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline, ids: Mapping[str, str] | None = None
) -> set[TopicPartition]:
    """Those partitions that no broker knows: they were deleted, or their topic was recreated under another id.

    One broker may lag behind for long, so each has to answer. A caller that has no position yet leaves out ``ids``.
    """
    unknown = set(partitions)
    answers = metadata_from_each(cluster, {tp.topic for tp in unknown}, deadline) if unknown else ()
    for broker, answer in answers:
        if not isinstance(answer, Metadata):
            log.info("broker %d does not say whether %s exist: %s", broker, names(unknown), answer)
            return set()
        unknown = {tp for tp in unknown if not _knows(answer.topics.get(tp.topic), tp, (ids or {}).get(tp.topic, ""))}
    return unknown if cluster.broker_ids() else set()


def _knows(topic: Topic | None, tp: TopicPartition, topic_id: str) -> bool:
    if (
        topic is None
        or topic.error == UNKNOWN_TOPIC_OR_PARTITION
        or (not topic.error and not may_be_same(topic_id, topic.id))
    ):
        return False
    return bool(topic.error) or tp.partition in topic.partitions


def known_ids(cluster: Cluster, topics: Collection[str], deadline: Deadline) -> set[tuple[str, str]]:
    """The names of these topics, each with every id under which a broker knows it."""
    answers = metadata_from_each(cluster, topics, deadline)
    known = [answer.topics.values() for _, answer in answers if isinstance(answer, Metadata)]
    return {(topic.name, topic.id) for each in known for topic in each if not topic.error}


class EveryBroker:
    """The metadata of all brokers, merged; of a large cluster, that of :data:`MAX_ASKED`. A broker that does not answer
    within :data:`ANSWER_TIMEOUT` is left out.

    ``confirmed``: whether so many brokers have answered the last lookup that what none of them knows does not exist.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.confirmed = False
        self._cluster = cluster

    def metadata(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        """As :meth:`Cluster.metadata`; a topic is unknown only if no broker knows it.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        first = self._cluster.metadata(wanted, deadline)
        brokers = self._cluster.broker_ids()
        asked = brokers if len(brokers) <= MAX_ASKED else random.sample(brokers, MAX_ASKED)
        others: list[Mapping[str, Topic]] = []
        for broker, answer in metadata_from_each(self._cluster, wanted, deadline, asked, ANSWER_TIMEOUT):
            if isinstance(answer, Metadata):
                others.append(answer.topics)
            else:
                log.info("broker %d does not say which topics exist: %s", broker, answer)
        self.confirmed = is_confirmed(len(others), len(brokers))
        return replace(first, topics=merge([first.topics, *others]))


def merge(responses: Iterable[Mapping[str, Topic]]) -> dict[str, Topic]:
    """Every partition of any response, with the leader of the latest epoch; else earlier responses take precedence."""
    merged: dict[str, Topic] = {}
    for topics in responses:
        for name, topic in topics.items():
            before = merged.get(name)
            if before is None or not before.partitions:
                merged[name] = topic if topic.partitions or before is None else before
            else:
                merged[name] = _with_partitions_of(topic, before)
    return merged


def _with_partitions_of(topic: Topic, before: Topic) -> Topic:
    """``before`` with the partitions of ``topic`` that it lacks, or that have a later leader epoch there."""

    def is_later(number: int) -> bool:
        # The epochs of a former topic say nothing of its successor.
        same_topic = may_be_same(topic.id, before.id)
        return same_topic and topic.epochs.get(number, UNKNOWN_EPOCH) > before.epochs.get(number, UNKNOWN_EPOCH)

    taken = [number for number in topic.partitions if number not in before.partitions or is_later(number)]
    return replace(
        before,
        partitions={**before.partitions, **{number: topic.partitions[number] for number in taken}},
        replicas={**before.replicas, **{n: topic.replicas[n] for n in taken if n in topic.replicas}},
        epochs={**before.epochs, **{n: topic.epochs[n] for n in taken if n in topic.epochs}},
    )
