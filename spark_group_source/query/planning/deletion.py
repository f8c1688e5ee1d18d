"""Topics and partitions that are unknown to the brokers: whether they were deleted, and what the query does then."""

from __future__ import annotations

import logging
from collections.abc import Set

from spark_group_source.clock import Deadline
from spark_group_source.errors import DataLoss, GroupSourceError
from spark_group_source.group.topics import TopicView
from spark_group_source.offsets import TopicPartition
from spark_group_source.text import names
from spark_group_source.wire.cluster import Cluster, partitions_of

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT = 10.0
"""Maximum seconds for all brokers to answer."""


def raise_or_skip_deleted(deleted: Set[TopicPartition] | Set[str], fail_on_data_loss: bool) -> None:
    """Warns that topics or partitions were deleted, if there are any and ``failOnDataLoss`` is false.

    Raises:
        DataLoss: it is true.
    """
    if not deleted:
        return
    listed = names(deleted)
    if fail_on_data_loss:
        raise DataLoss(
            f"{listed} does not exist any more.",
            "Remove the topic from the subscription, or set failOnDataLoss to false to continue with the others.",
        )
    log.warning("%s does not exist any more; the query continues without, because failOnDataLoss is false", listed)


def unknown_to_all(unknown: set[TopicPartition], cluster: Cluster, group_id: str) -> set[TopicPartition]:
    """Those partitions that no broker knows. A single broker's metadata may lag behind."""
    if not unknown:
        return set()
    view = TopicView(cluster, group_id)
    view.expect(unknown)
    try:
        metadata = view.metadata({tp.topic for tp in unknown}, Deadline.after(LOOKUP_TIMEOUT))
    except GroupSourceError as error:
        if not error.retriable:
            raise
        return set()
    return unknown - partitions_of(metadata.topics.values())
