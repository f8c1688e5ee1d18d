"""Topics as a group may rely on them: what one broker alone does not know is not believed to be gone.

A broker that lags behind, or has just started, says of a topic that it does not exist, or has fewer partitions. A
leader that believed it would take these partitions from the whole group.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import TOPIC_AUTHORIZATION_FAILED
from spark_group_source.errors import BrokerUnavailable, DeadlineExceeded, ProtocolError
from spark_group_source.listing import names
from spark_group_source.offsets import Partitions, TopicPartition
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Metadata, Topic, partitions_of

log = logging.getLogger(__name__)

Topics = dict[str, Topic]


class TopicView:
    """What is known of topics so far, and what brokers say of them now. All methods are for the member's thread.

    ``disputed`` are the partitions that the last answer lacked, where no second broker could be asked.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._known: dict[str, Topic] = {}
        self._hidden: frozenset[str] = frozenset()
        self._brokers = 0
        """How many brokers there were when an answer lacked nothing last: one that lags may know only itself."""
        self.disputed: Partitions = frozenset()

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions exist, as members of the group own them."""
        for tp in partitions:
            topic = self._known.get(tp.topic) or Topic(tp.topic, "", {})
            if tp.partition not in topic.partitions:
                self._known[tp.topic] = replace(topic, partitions={**topic.partitions, tp.partition: None})

    def metadata(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        """These topics, or all there are; one that does not exist has an error or is left out.

        Partitions that were known and are missing in one broker's answer are asked of every other broker. They are gone
        once a second answer lacks them as well.

        Raises:
            BrokerUnavailable: no broker answered until the deadline.
        """
        told = self._cluster.metadata(wanted, deadline)
        found: Topics = dict(told.topics)
        known = {name: each for name, each in self._known.items() if wanted is None or name in wanted}
        disputed: Partitions = frozenset()
        if not _missing(known, found):
            self._brokers = len(told.brokers)
        else:
            answers, confirmed = self._all_answers(wanted, deadline)
            found = _merged([found, *answers])
            if not confirmed and (disputed := _missing(known, found)):
                found = _merged([found, known])
        self._warn_of_disputed(disputed)
        self._warn_of_hidden(found)
        found = self._with_hidden(found, known)
        self._known = {name: each for name, each in self._known.items() if name not in known}
        self._known |= {name: each for name, each in found.items() if each.partitions}
        return replace(told, topics=found)

    def _all_answers(self, wanted: Collection[str] | None, deadline: Deadline) -> tuple[list[Topics], bool]:
        """What each broker says that can be asked, and whether that is more than the word of one among several."""
        brokers = self._cluster.broker_ids()
        answers: list[Topics] = []
        for left, broker in zip(range(len(brokers), 0, -1), brokers, strict=True):
            turn = deadline.at_most(deadline.remaining() / left)
            try:
                answers.append(dict(self._cluster.metadata_from(broker, wanted, turn).topics))
            except (BrokerUnavailable, DeadlineExceeded, ProtocolError) as error:
                log.debug("group %s: broker %d could not be asked for topics: %s", self._group_id, broker, error)
        return answers, len(answers) >= min(2, max(self._brokers, len(brokers))) > 0

    def _warn_of_disputed(self, disputed: Partitions) -> None:
        if disputed - self.disputed:
            log.warning(
                "group %s: one broker does not know %s, and no second broker could be asked; they stay assigned",
                self._group_id,
                names(disputed),
            )
        self.disputed = disputed

    def _warn_of_hidden(self, found: Mapping[str, Topic]) -> None:
        hidden = frozenset(name for name, each in found.items() if each.error == TOPIC_AUTHORIZATION_FAILED)
        if hidden - self._hidden:
            log.warning(
                "group %s: this query leads the group and may not describe %s, to which members are subscribed. Their"
                " partitions stay with the members that own them; others are assigned to nobody. Grant this query's"
                " principal DESCRIBE on them.",
                self._group_id,
                ", ".join(sorted(hidden)),
            )
        self._hidden = hidden

    def _with_hidden(self, found: Topics, known: Mapping[str, Topic]) -> Topics:
        """A topic that may not be described is as its owners know it."""
        return {
            name: replace(known[name], error=0) if name in self._hidden and name in known else each
            for name, each in found.items()
        }


def _missing(known: Mapping[str, Topic], found: Mapping[str, Topic]) -> frozenset[TopicPartition]:
    visible = {name for name, each in found.items() if each.error != TOPIC_AUTHORIZATION_FAILED}
    expected = partitions_of(each for name, each in known.items() if name in visible or name not in found)
    return expected - partitions_of(found.values())


def _merged(answers: Iterable[Mapping[str, Topic]]) -> Topics:
    """Every partition that any of the answers has; the first answer goes before the others."""
    merged: Topics = {}
    for topics in answers:
        for name, topic in topics.items():
            before = merged.get(name)
            if before is None or not before.partitions:
                merged[name] = topic if topic.partitions or before is None else before
            else:
                merged[name] = replace(
                    before,
                    partitions={**topic.partitions, **before.partitions},
                    replicas={**topic.replicas, **before.replicas},
                )
    return merged
