"""The topics of a subscription, by name or pattern, in a view of the cluster that does not rely on one broker."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from spark_group_source.clock import Deadline
from spark_group_source.offsets import Partitions, TopicPartition, topics_of
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Metadata, Topic, denied_topics, merge, partitions_of
from spark_group_source.wire.stale_metadata import is_confirmed, metadata_from_each

log = logging.getLogger(__name__)

Topics = dict[str, Topic]


class TopicView:
    """The known topics, compared with the brokers' current metadata. Only the member's thread may use it.

    ``disputed`` are known partitions that the last response lacked, and that no second broker could confirm.
    """

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._known: dict[str, Topic] = {}
        self._hidden: set[str] = set()
        self._brokers = 0
        """Number of brokers in the last complete response: a broker with old metadata may know only itself."""
        self.disputed: Partitions = frozenset()

    def expect(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes that these partitions exist: members of the group own them, or other brokers knew them at the start."""
        for tp in partitions:
            topic = self._known.get(tp.topic)
            if topic is None:
                topic = Topic(tp.topic, "", {})
            if tp.partition not in topic.partitions:
                self._known[tp.topic] = replace(topic, partitions={**topic.partitions, tp.partition: None})

    def metadata(self, wanted: Collection[str] | None, deadline: Deadline) -> Metadata:
        """Returns these topics, or all for ``None``; a topic that does not exist has an error or is left out.

        If one broker's response lacks known partitions, every other broker is asked. The partitions count as deleted
        once a second response lacks them too.

        Raises:
            BrokerUnavailable: no broker responded before the deadline.
        """
        response = self._cluster.metadata(wanted, deadline)
        topics: Topics = dict(response.topics)
        known = self._known_of(wanted)
        disputed: Partitions = frozenset()
        if _missing(known, topics):
            answers = self._ask_all_brokers(wanted, deadline)
            topics = merge([topics, *answers])
            disputed = self._disputed(_missing(known, topics), answers)
            if disputed:
                topics = merge([topics, known])
        else:
            self._brokers = len(response.brokers)
        self._warn_of_disputed(disputed)
        self._warn_of_hidden(topics)
        topics = self._with_hidden(topics, known)
        self._remember(known, topics)
        return replace(response, topics=topics)

    def _known_of(self, wanted: Collection[str] | None) -> Topics:
        """The known topics among those ``wanted``."""
        if wanted is None:
            return dict(self._known)
        known = {}
        for name, topic in self._known.items():
            if name in wanted:
                known[name] = topic
        return known

    def _remember(self, former: Topics, topics: Topics) -> None:
        """Forgets the ``former`` topics, and remembers those of ``topics`` that have partitions."""
        for name in former:
            del self._known[name]
        for name, topic in topics.items():
            if topic.partitions:
                self._known[name] = topic

    def _ask_all_brokers(self, wanted: Collection[str] | None, deadline: Deadline) -> list[Topics]:
        """Returns the topics from each broker that responds."""
        responses: list[Topics] = []
        for broker, answer in metadata_from_each(self._cluster, wanted, deadline):
            if isinstance(answer, Metadata):
                responses.append(dict(answer.topics))
            else:
                log.debug("group %s: broker %d returned no topics: %s", self._group_id, broker, answer)
        return responses

    def _disputed(self, missing: Partitions, answers: Sequence[Topics]) -> Partitions:
        """Those partitions, ``missing`` from all answers, that too few brokers have called gone."""
        brokers = max(self._brokers, len(self._cluster.broker_ids()))
        if is_confirmed(answers, brokers, topics_of(missing)):
            return frozenset()
        return missing

    def _warn_of_disputed(self, disputed: Partitions) -> None:
        if disputed - self.disputed:
            log.warning(
                "group %s: one broker does not know %s, and no second broker has confirmed that, so these partitions"
                " stay assigned",
                self._group_id,
                names(disputed),
            )
        self.disputed = disputed

    def _warn_of_hidden(self, topics: Mapping[str, Topic]) -> None:
        hidden = denied_topics(topics)
        if hidden - self._hidden:
            log.warning(
                "group %s: this query leads the group and may not describe %s, to which members are subscribed. The"
                " partitions of these topics stay with their owners; partitions without an owner are not assigned."
                " Grant this query's principal DESCRIBE on these topics.",
                self._group_id,
                names(hidden),
            )
        self._hidden = hidden

    def _with_hidden(self, topics: Topics, known: Mapping[str, Topic]) -> Topics:
        """Replaces topics that this client may not describe with the partitions that members claim to own."""
        shown = dict(topics)
        for name in self._hidden:
            if name in known:
                shown[name] = replace(known[name], error=0)
        return shown


def _missing(known: Mapping[str, Topic], topics: Mapping[str, Topic]) -> frozenset[TopicPartition]:
    """Known partitions that a response lacks, apart from topics that this principal may not describe."""
    hidden = denied_topics(topics)
    expected = [topic for name, topic in known.items() if name not in hidden]
    return partitions_of(expected) - partitions_of(topics.values())
